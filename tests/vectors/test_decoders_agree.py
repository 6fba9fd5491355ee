"""streamxf and the reference decoder agree on each vector with a flipped bit, and on many with all CRCs right again."""

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamxf.errors import StreamxfError
from tests.forge import Places
from tests.lots import in_lots
from tests.reference_codecs import Refused
from tests.vectors.described import READERS, bytes_of, unpack, vectors

SMALL = 4096  # bytes; all bits of larger files would take too long
FEW, MANY = 2, 200  # flips of each file, where not all of its bits are tried


def verdict(action: Callable[[], Any], *refusals: type[Exception]) -> Any:
    """What a decoder reads; None if it refuses."""
    try:
        return action()
    except refusals:
        return None


def agree(subject: str, name: str, stored: bytes | Path) -> None:
    """`stored` is a file, or the folder of a checkpoint."""
    entry = vectors(subject)[name]
    by_streamxf, by_reference = READERS[subject]
    found = verdict(lambda: by_streamxf(entry, stored), StreamxfError)
    assert found == verdict(lambda: by_reference(entry, stored), Refused)


def flips(data: bytes, name: str, count: int | None) -> Iterator[bytes]:
    """`data` with one bit flipped: some times, or each once."""
    bits = range(8 * len(data)) if len(data) <= SMALL else range(0, 8 * len(data), 8 * len(data) // SMALL + 1)
    chosen = bits if count is None else random.Random(name).sample(bits, min(count, len(bits)))
    for bit in chosen:
        yield data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def mended(data: bytes) -> bytes | None:
    """A container with all CRCs right again; None if its pieces are not found any more."""
    try:
        return Places.of(data).mend(data)
    except (struct.error, IndexError, OverflowError, ValueError):
        return None


FILES = [(subject, name) for subject in READERS if subject != "checkpoint" for name in vectors(subject)]


@in_lots("subject, name", FILES)
def test_files(subject: str, name: str) -> None:
    check_file(subject, name, FEW)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("subject", "name"), FILES)
def test_all_bits_of_files(subject: str, name: str) -> None:
    check_file(subject, name, None)


def check_file(subject: str, name: str, count: int | None) -> None:
    more = count if subject == "plain" or count is None else 10 * count
    for data in flips(bytes_of(vectors(subject)[name]["file"]), name, more):
        agree(subject, name, data)
        if subject == "container" and (made := mended(data)) is not None:
            agree(subject, name, made)


@in_lots("name", vectors("checkpoint"))
def test_checkpoints(name: str, tmp_path: Path) -> None:
    check_checkpoint(name, FEW, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", vectors("checkpoint"))
def test_many_bits_of_checkpoints(name: str, tmp_path: Path) -> None:
    check_checkpoint(name, MANY, tmp_path)


def check_checkpoint(name: str, count: int, tmp_path: Path) -> None:
    entry = vectors("checkpoint")[name]
    unpack(entry, tmp_path)
    for file, stored in entry["files"].items():
        whole = bytes_of(stored)
        for data in flips(whole, file, count):
            (tmp_path / file).write_bytes(data)
            agree("checkpoint", name, tmp_path)
        (tmp_path / file).write_bytes(whole)
