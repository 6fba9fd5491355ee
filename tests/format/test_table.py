"""Table and footer: read in pieces of any size, and refused at the first entry that cannot be."""

import hashlib
import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import ContainerError
from streamxf.format import container
from streamxf.format.header import Header
from tests.altered import bit_flips
from tests.forge import crc_of
from tests.samples import BLOCK

PLAIN = Header(16, (), bytes(16))
START = PLAIN.size
DIGEST = PLAIN.digest


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], int]:
    """Lengths, and the size of the stream."""
    lengths = draw(st.lists(st.integers(1, container.stage_limit(BLOCK)), min_size=1, max_size=50))
    whole = (len(lengths) - 1) * BLOCK
    return lengths, draw(st.integers(whole + (len(lengths) > 1), whole + BLOCK))


@given(table=tables(), step=st.integers(1, 60))
def test_round_trip(table: tuple[list[int], int], step: int) -> None:
    lengths, raw_size = table
    tail = container.pack_tail(DIGEST, lengths, raw_size)
    ends = [START + 8 * number + length for number, length in enumerate(accumulate(lengths), 1)]
    footer = container.Footer.parse(tail[-20:])
    assert (footer.raw_size, footer.blocks(PLAIN)) == (raw_size, len(lengths))
    assert container.tail_size(footer.blocks(PLAIN)) == len(tail) == 4 * len(lengths) + 20
    read = container.Table(PLAIN)
    step *= 4
    for at in range(0, len(tail) - 20, step):
        read.feed(tail[:-20][at : at + step])
    read.finish(footer, ends[-1] + len(tail))
    assert list(read.ends) == ends
    assert read.edges(raw_size) == hashlib.sha256(PLAIN.pack() + tail).digest()


def tail_of(lengths: list[int], raw_size: int) -> bytes:
    """A table and a footer with the right CRC."""
    covered = struct.pack(f"<{len(lengths)}IQ", *lengths, raw_size)
    return covered + crc_of(DIGEST[:16] + covered) + b"\n\x1a\r\nFXS\xd3"


def read_tail(tail: bytes, size: int, header: Header = PLAIN) -> container.Footer:
    table = container.Table(header)
    table.feed(tail[:-20])
    footer = container.Footer.parse(tail[-20:])
    table.finish(footer, size)
    return footer


LENGTHS = [1, 984, 8]
SIZE = START + 24 + sum(LENGTHS) + 12 + 20
RAW = 2 * BLOCK + 5
MOST = container.stage_limit(BLOCK)


def test_the_tail_of_these_tests_is_right() -> None:
    assert read_tail(tail_of(LENGTHS, RAW), SIZE).raw_size == RAW


def test_an_entry_that_cannot_be_is_refused_before_the_footer_is_known() -> None:
    for wrong in (0, MOST + 1):
        table = container.Table(PLAIN)
        table.feed(struct.pack("<I", 7))
        with pytest.raises(ContainerError, match="malformed"):
            table.feed(struct.pack("<I", wrong))
    container.Table(PLAIN).feed(bytes(4))  # an empty stream's, as far as is known
    with pytest.raises(ContainerError, match="malformed"):
        container.Table(PLAIN).feed(bytes(8))


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, 0])
def test_a_container_of_another_size(size: int) -> None:
    with pytest.raises(ContainerError, match="it was truncated or appended to"):
        read_tail(tail_of(LENGTHS, RAW), size)


def test_every_flipped_bit_is_found() -> None:
    for tail in bit_flips(tail_of(LENGTHS, RAW)):
        with pytest.raises(ContainerError):
            read_tail(tail, SIZE)


def test_another_containers_table() -> None:
    with pytest.raises(ContainerError, match="another container's"):
        read_tail(tail_of(LENGTHS, RAW), SIZE, Header(16, (), bytes(15) + b"\1"))


@pytest.mark.parametrize("size", [0, 19, 21])
def test_a_footer_of_another_size(size: int) -> None:
    with pytest.raises(ContainerError, match="truncated"):
        container.Footer.parse(bytes(size))


@pytest.mark.parametrize("raw_size", [0, 1, BLOCK])
def test_a_stream_of_one_block(raw_size: int) -> None:
    length = min(1, raw_size)
    tail = container.pack_tail(DIGEST, [length], raw_size)
    assert read_tail(tail, START + 8 + length + len(tail)).raw_size == raw_size


def test_a_footer_of_the_most_blocks() -> None:
    """Whether they are there is seen by the container's size."""
    sizes = struct.pack("<Q", 2**48)
    footer = container.Footer.parse(sizes + crc_of(sizes) + b"\n\x1a\r\nFXS\xd3")
    assert footer.blocks(PLAIN) == 2**32


def lone(payload: bytes, raw_size: int, header: Header = PLAIN) -> bytes:
    head = container.pack_head(header.digest, 0, True, memoryview(payload))
    return header.pack() + head + payload + container.pack_tail(header.digest, [len(payload)], raw_size)


@pytest.mark.parametrize(("payload", "raw_size"), [(b"payload", 9), (b"", 0), (bytes(MOST), BLOCK)])
def test_one_block_is_taken_at_a_glance(payload: bytes, raw_size: int) -> None:
    assert container.lone_block(memoryview(lone(payload, raw_size)), PLAIN) == (payload, raw_size)


@pytest.mark.parametrize(
    "stored",
    [lone(bytes(MOST + 1), BLOCK), lone(b"payload", BLOCK + 1), lone(b"payload", 9)[:-1], lone(b"payload", 9) + b"\0"]
    + [lone(b"", 0)[: START + size] for size in range(32)],
    ids=len,
)
def test_what_is_no_such_container(stored: bytes) -> None:
    assert container.lone_block(memoryview(stored), PLAIN) is None


def test_no_flipped_bit_is_overlooked_at_a_glance() -> None:
    for stored in bit_flips(lone(b"payload", 9), START):
        assert container.lone_block(memoryview(stored), PLAIN) is None
