"""Table and footer: read in pieces of any size, and refused at the first entry that cannot be."""

from __future__ import annotations

import hashlib
import struct

import pytest
from forge import crc_of
from hypothesis import given
from hypothesis import strategies as st
from samples import BLOCK

from streamxf.errors import ContainerError
from streamxf.format.container import Footer, Table, entry_size, pack_tail, stage_limit

DIGEST = bytes(range(32))
START = 100


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], list[bytes], int]:
    """Ends, hashes, and the size of the stream."""
    sizes = draw(st.lists(st.integers(0, stage_limit(BLOCK)), min_size=1, max_size=50))
    ends, at = [], START
    for size in sizes:
        at += 8 + size
        ends.append(at)
    hashed = draw(st.booleans())
    hashes = [hashlib.sha256(b"%d" % end).digest() for end in ends] if hashed else []
    whole = (len(ends) - 1) * BLOCK
    return ends, hashes, draw(st.integers(whole + (len(ends) > 1), whole + BLOCK))


@given(table=tables(), step=st.integers(1, 60))
def test_round_trip(table: tuple[list[int], list[bytes], int], step: int) -> None:
    ends, hashes, raw_size = table
    tail, digest = pack_tail(DIGEST, ends, hashes, raw_size)
    size = ends[-1] + len(tail)
    hashed = bool(hashes)
    footer = Footer.parse(tail[-32:], BLOCK)
    assert footer.tail_size(hashed) == len(tail) == entry_size(hashed) * len(ends) + 32
    read = Table(DIGEST, START, BLOCK, hashed)
    for at in range(0, len(tail) - 32, step * read.entry_size):
        read.feed(tail[:-32][at : at + step * read.entry_size])
    found = Footer.parse(tail[-32:], BLOCK)
    read.finish(found, size)
    assert (found.raw_size, found.container_size, found.blocks) == (raw_size, size, len(ends))
    assert list(read.ends) == ends
    assert read.hashes == hashes
    assert read.digest == digest == hashlib.sha256(DIGEST + tail[:-12]).digest()


def tail_of(ends: list[int], raw_size: int, *, count: int | None = None, size: int | None = None) -> bytes:
    """A table and a footer with the right CRC."""
    table = struct.pack(f"<{len(ends)}Q", *ends)
    whole = ends[-1] + len(table) + 32 if size is None else size
    sizes = struct.pack("<QQI", raw_size, whole, len(ends) if count is None else count)
    return table + sizes + crc_of(DIGEST[:16] + table + sizes) + b"\n\x1a\r\nFXS\xd3"


def read_tail(tail: bytes, size: int, start: int = START) -> Footer:
    table = Table(DIGEST, start, BLOCK, False)
    table.feed(tail[:-32])
    footer = Footer.parse(tail[-32:], BLOCK)
    table.finish(footer, size)
    return footer


ENDS = [START + 8, START + 1000, START + 1016]
SIZE = ENDS[-1] + 24 + 32
RAW = 2 * BLOCK + 5


def test_the_tail_of_these_tests_is_right() -> None:
    assert read_tail(tail_of(ENDS, RAW), SIZE).raw_size == RAW


@pytest.mark.parametrize(
    "ends",
    [
        [START + 7, *ENDS[1:]],
        [0, 0, 0],
        [ENDS[1], ENDS[0], ENDS[2]],
        [ENDS[0], ENDS[0], ENDS[2]],
        [ENDS[0], ENDS[0] + 7, ENDS[2]],
        [2**64 - 1, *ENDS[1:]],
        [START + 9 + stage_limit(BLOCK), START + 17 + stage_limit(BLOCK), START + 25 + stage_limit(BLOCK)],
        [*ENDS[:2], ENDS[2] + 1],
        [*ENDS[:2], ENDS[2] - 1],
    ],
    ids=str,
)
def test_ends_that_cannot_be(ends: list[int]) -> None:
    with pytest.raises(ContainerError):
        read_tail(tail_of(ends, RAW, size=SIZE), SIZE)


@pytest.mark.parametrize(
    ("raw_size", "fields"),
    [
        (2 * BLOCK, {}),
        (3 * BLOCK + 1, {}),
        (0, {}),
        (2**48 + 1, {}),
        (RAW, {"count": 2}),
        (RAW, {"count": 0}),
        (RAW, {"count": 4}),
        (RAW, {"size": SIZE - 1}),
        (RAW, {"size": SIZE + 1}),
    ],
)
def test_sizes_that_cannot_be(raw_size: int, fields: dict[str, int]) -> None:
    with pytest.raises(ContainerError):
        read_tail(tail_of(ENDS, raw_size, **fields), SIZE)


def test_every_flipped_bit_is_found() -> None:
    tail = bytearray(tail_of(ENDS, RAW))
    for bit in range(8 * len(tail)):
        tail[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ContainerError):
            read_tail(bytes(tail), SIZE)
        tail[bit // 8] ^= 1 << bit % 8


def test_another_containers_table() -> None:
    other = Table(bytes(32), START, BLOCK, False)
    tail = tail_of(ENDS, RAW)
    other.feed(tail[:-32])
    with pytest.raises(ContainerError, match="another container's"):
        other.finish(Footer.parse(tail[-32:], BLOCK), SIZE)
    with pytest.raises(ContainerError, match=r"does not begin where|malformed"):
        read_tail(tail, SIZE, start=START + 1)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_footer_of_another_size(size: int) -> None:
    with pytest.raises(ContainerError, match="truncated"):
        Footer.parse(bytes(size), BLOCK)


@pytest.mark.parametrize("raw_size", [0, 1, BLOCK])
def test_a_stream_of_one_block(raw_size: int) -> None:
    tail, _ = pack_tail(DIGEST, [START + 8], [], raw_size)
    assert read_tail(tail, START + 8 + len(tail)).raw_size == raw_size


@pytest.mark.parametrize("blocks", [2**32 - 1, 2**32 - 2])
def test_a_footer_of_the_most_blocks(blocks: int) -> None:
    """Whether they are there is seen by the container's size."""
    sizes = struct.pack("<QQI", blocks * BLOCK, 0, blocks)
    assert Footer.parse(sizes + crc_of(sizes) + b"\n\x1a\r\nFXS\xd3", BLOCK).blocks == blocks
