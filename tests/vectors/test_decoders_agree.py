"""streamxf and the reference decoder agree on each vector with a flipped bit, and on many with all CRCs right again."""

import io
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamxf.errors import StreamxfError
from tests.forge import Places
from tests.reference_codecs import Refused
from tests.vectors.described import (
    Entry,
    bytes_of,
    checkpoint_by_reference,
    checkpoint_by_streamxf,
    container_by_reference,
    container_by_streamxf,
    note_by_reference,
    note_by_streamxf,
    plain_by_reference,
    plain_by_streamxf,
    unpack,
    vectors,
)

SMALL = 4096  # bytes; all bits of larger files would take too long
FEW, MANY = 2, 200  # flips of each file, where not all of its bits are tried


def verdict(action: Callable[[], Any], *refusals: type[Exception]) -> Any:
    """What a decoder reads; None if it refuses."""
    try:
        return action()
    except refusals:
        return None


def agree(by_streamxf: Callable[[], Any], by_reference: Callable[[], Any]) -> None:
    assert verdict(by_streamxf, StreamxfError) == verdict(by_reference, Refused)


def flips(data: bytes, name: str, count: int | None) -> Iterator[bytes]:
    """`data` with one bit flipped: some times, or each once."""
    bits = range(8 * len(data)) if len(data) <= SMALL else range(0, 8 * len(data), 8 * len(data) // SMALL + 1)
    chosen = bits if count is None else random.Random(name).sample(bits, min(count, len(bits)))
    for bit in chosen:
        yield data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def read_plain(entry: Entry, data: bytes) -> None:
    agree(lambda: plain_by_streamxf(entry, io.BytesIO(data)), lambda: plain_by_reference(entry, data))


def read_container(entry: Entry, data: bytes) -> None:
    dek = entry.get("dek")
    agree(lambda: container_by_streamxf(data, dek), lambda: container_by_reference(data, dek))


def read_note(entry: Entry, data: bytes) -> None:
    agree(lambda: note_by_streamxf(entry, data), lambda: note_by_reference(entry, data))


def mended(data: bytes) -> bytes | None:
    """A container with all CRCs right again; None if its pieces are not found any more."""
    try:
        return Places.of(data).mend(data)
    except (struct.error, IndexError, OverflowError, ValueError):
        return None


AMOUNTS = pytest.mark.parametrize("count", [FEW, pytest.param(None, marks=pytest.mark.exhaustive)], ids=["few", "all"])


@AMOUNTS
@pytest.mark.parametrize("name", vectors("plain"))
def test_plain_files(name: str, count: int | None) -> None:
    entry = vectors("plain")[name]
    for data in flips(bytes_of(entry["file"]), name, count):
        read_plain(entry, data)


@AMOUNTS
@pytest.mark.parametrize("name", vectors("container"))
def test_containers(name: str, count: int | None) -> None:
    entry = vectors("container")[name]
    for data in flips(bytes_of(entry["file"]), name, None if count is None else 10 * count):
        read_container(entry, data)
        if (made := mended(data)) is not None:
            read_container(entry, made)


@AMOUNTS
@pytest.mark.parametrize("name", vectors("note"))
def test_notes(name: str, count: int | None) -> None:
    entry = vectors("note")[name]
    for data in flips(bytes_of(entry["file"]), name, None if count is None else 10 * count):
        read_note(entry, data)


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", vectors("checkpoint"))
def test_checkpoints(name: str, count: int, tmp_path: Path) -> None:
    entry = vectors("checkpoint")[name]
    unpack(entry, tmp_path)
    for file, stored in entry["files"].items():
        whole = bytes_of(stored)
        for data in flips(whole, file, count):
            (tmp_path / file).write_bytes(data)
            agree(lambda: checkpoint_by_streamxf(entry, tmp_path), lambda: checkpoint_by_reference(entry, tmp_path))
        (tmp_path / file).write_bytes(whole)
