"""Descriptors: their text, the codec that is built from it, and the wrapped keys in a fragment."""

import random
from collections.abc import Iterable

import streamxf
from streamxf import LZ4, Checksum, Encrypt, FloatZip, ZStandard
from streamxf.chain import Chain
from streamxf.codec import CodecRegistry
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.keys import KeyRing
from tests.fuzz.oracle import agree, attempt
from tests.fuzz.target import Havoc, Target
from tests.samples import KEY

REGISTRY = CodecRegistry()
_TOKENS = (
    *(b"?", b"#", b"&", b"=", b"/", b".", b":", b"-7"),
    *(b"level=", b"algorithm=", b"dek=", b"w=", b"w=aeskw:", b"sig="),
)


def run(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    found, _ = attempt(lambda: Descriptor.parse(text))
    if found is not None:
        agree(Descriptor.parse(str(found)) == found, "a descriptor does not survive its own text")
        codec, _ = attempt(lambda: REGISTRY.build(found, KeyRing.of(KEY)))
        if codec is not None:
            agree(codec.name == found.name, "another codec than the descriptor names")
            if codec.name == ENCRYPT:
                agree(len(codec.data_key.secret) == 32, "a data key of another length")
            else:
                agree(type(codec).from_descriptor(str(found).partition("/")[2]) == codec, "built in two ways")
    chain, _ = attempt(lambda: Chain.parse(text, keys=KEY, codecs=REGISTRY))
    if chain is not None:
        agree(
            str(Chain.parse(str(chain), keys=KEY, codecs=REGISTRY)) == str(chain),
            "a chain does not survive its own text",
        )


def seeds() -> Iterable[bytes]:
    other = streamxf.Key(bytes(range(1, 33)))
    codecs = (ZStandard(-7), LZ4(12), FloatZip(), Checksum(), Checksum("sha256"), Encrypt(KEY), Encrypt([other, KEY]))
    yield from (str(codec.descriptor()).encode() for codec in codecs)
    yield b"zstd:level=3+checksum:algorithm=sha256+encrypt"
    yield b"acme.delta/7?stride=4&x=#y=1"


def mutate(data: bytes, choose: random.Random, havoc: Havoc) -> bytes:
    """Change characters, or move, double and drop whole parts."""
    if choose.random() < 0.5:
        return havoc(data)
    separator = choose.choice((b"&", b":", b"#", b"?", b"+"))
    parts = data.split(separator)
    at = choose.randrange(len(parts))
    match choose.randrange(4):
        case 0:
            parts[at] = havoc(parts[at])
        case 1:
            parts.insert(at, choose.choice(parts))
        case 2:
            del parts[at]
        case _:
            parts.insert(at, choose.choice(_TOKENS))
    return separator.join(parts)


TARGET = Target(run, seeds, mutate, max_len=8192)
