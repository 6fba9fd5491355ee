"""What stands before the container in a plain file."""

from __future__ import annotations

import random
from collections.abc import Iterable

from forge import prefix_of
from samples import KEY
from streamxf.fileio.prefix import START_BYTES, pack_prefix, parse_prefix, prefix_size

from fuzz.oracle import agree, attempt
from fuzz.target import Havoc, Target
from streamxf import Encrypt
from streamxf.chain import Chain
from streamxf.descriptor import parse_parameters
from streamxf.keys import KeyRing


def run(data: bytes) -> None:
    size, refused = attempt(lambda: prefix_size(data[:START_BYTES]))
    text, error = attempt(lambda: parse_prefix(data))
    agree(refused is None or error is not None, "a prefix is read whose size is refused")
    if text is None:
        return
    agree(size == len(data), "a prefix is read that is not as long as it says")
    agree("\0" not in text[-1:], "the filling is a part of the fragment")
    parameters, _ = attempt(lambda: parse_parameters(text, repeatable=("w",)))
    if parameters is not None:
        attempt(lambda: KeyRing.of(KEY).unwrap(parameters))


def seeds() -> Iterable[bytes]:
    yield pack_prefix(Chain())
    yield pack_prefix(Chain([Encrypt(KEY)]))


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change the fragment and make length and CRC right, or change anything."""
    if choose.random() < 0.1:
        return havoc(data)
    return prefix_of(havoc(data[START_BYTES:-4].rstrip(b"\0")), choose.choice((1, 16, 512, 512)))


TARGET = Target(run, seeds, mutate)
