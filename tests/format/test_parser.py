"""The parser gives the same events however its bytes arrive, and stays dead once they were wrong."""

import hashlib
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import BlockError, ContainerError, StreamxfError
from streamxf.format.container import NEED_DATA, Block, ContainerParser, End, check_stored
from streamxf.format.header import Header
from tests.altered import bit_flips, flipped
from tests.forge import BOUND, PUBLISHED, Parts, Places, identity_of
from tests.samples import BLOCK, data_of


def parts_of(data: bytes) -> Parts:
    """A container that stores data as it is."""
    stops = range(0, len(data) or 1, BLOCK)
    blocks = tuple((at + BLOCK >= len(data), data[at : at + BLOCK]) for at in stops)
    return Parts(flags=BOUND | PUBLISHED, identity=identity_of("o"), blocks=blocks, raw_size=len(data))


def events(pieces: Iterable[bytes]) -> list[object]:
    parser = ContainerParser()
    found: list[object] = []
    for piece in pieces:
        parser.feed(piece)
        while (event := parser.next_event()) is not NEED_DATA:
            found.append(event)
    parser.finish()
    return found


@pytest.mark.parametrize("size", [0, 1, 300])
def test_byte_by_byte(size: int) -> None:
    data = parts_of(data_of(size)).container()
    assert events([bytes([byte]) for byte in data]) == events([data])


PARTS = parts_of(data_of(2 * BLOCK + 5))
THREE = PARTS.container()


def test_the_events_of_three_blocks() -> None:
    header, *blocks, end = events([THREE])
    assert isinstance(header, Header)
    assert [(type(block), block.index, block.last, len(block.payload)) for block in blocks] == [
        (Block, 0, False, BLOCK),
        (Block, 1, False, BLOCK),
        (Block, 2, True, 5),
    ]
    edges = header.pack() + THREE[len(THREE) - 20 - 3 * 4 :]
    assert end == End(2 * BLOCK + 5, hashlib.sha256(edges).digest(), 3)
    assert end.edges == PARTS.digests[0]


def edges(data: bytes) -> list[int]:
    at = Places.of(data)
    places = [33, at.header_crc + 4, *(end for _, end in at.blocks), at.table, at.end - 20]
    return [edge + off for edge in places for off in (-1, 0, 1)]


@pytest.mark.parametrize("edge", edges(THREE))
def test_cut_at_edges(edge: int) -> None:
    assert events([THREE[:edge], THREE[edge:]]) == events([THREE])


@given(data=st.data())
def test_cut_anywhere(data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(THREE)), max_size=8).map(sorted))
    assert events([THREE[a:b] for a, b in pairwise([0, *places, len(THREE)])]) == events([THREE])


@pytest.mark.parametrize("extra", [b"\0", THREE[:33], THREE], ids=["a byte", "a header", "a container"])
def test_what_follows_is_an_error_or_the_next_one(extra: bytes) -> None:
    for pieces in ([THREE + extra], [THREE, extra]):
        with pytest.raises(ContainerError, match="behind the container"):
            events(pieces)
    parser = ContainerParser()
    parser.feed(THREE + extra)
    while parser.next_event() is not NEED_DATA:
        """Up to the end of the first."""
    with pytest.raises(ContainerError, match="behind the container"):
        parser.finish()
    assert parser.rest == extra


def test_every_truncation_is_an_error() -> None:
    data = parts_of(data_of(40)).container()
    for size in range(len(data)):
        with pytest.raises(ContainerError):
            events([data[:size]])


def test_every_flipped_bit_is_an_error() -> None:
    for damaged in bit_flips(parts_of(b"four").container()):
        with pytest.raises(ContainerError):
            events([damaged])


def test_blocks_beyond_the_largest_stream_are_refused_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the table is there, which would say so."""
    monkeypatch.setattr("streamxf.format.limits.MAX_RAW_SIZE", 2 * BLOCK)
    two = parts_of(data_of(2 * BLOCK)).container()
    assert events([two])
    parser = ContainerParser()
    parser.feed(THREE)
    assert isinstance(parser.next_event(), Header)
    assert [parser.next_event().index for _ in range(2)] == [0, 1]
    with pytest.raises(ContainerError, match="more blocks than the format allows"):
        parser.next_event()


def test_dead_after_an_error() -> None:
    parser = ContainerParser()
    parser.feed(flipped(THREE, 200))
    assert isinstance(parser.next_event(), Header)
    with pytest.raises(StreamxfError) as first:
        parser.next_event()
    parser.feed(THREE)
    with pytest.raises(StreamxfError) as again:
        parser.next_event()
    assert again.value is first.value
    with pytest.raises(ContainerError):
        parser.finish()


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": (1, 2, 3)},
        {"lengths": (BLOCK, BLOCK)},
        {"lengths": (BLOCK, BLOCK, 5, 5)},
        {"lengths": (BLOCK, BLOCK, 6)},
        {"raw_size": 0},
        {"raw_size": 2 * BLOCK},
        {"raw_size": 4 * BLOCK},
        {"blocks": (*PARTS.blocks[:2], (False, b"12345"))},
        {"blocks": ((True, b""), *PARTS.blocks[1:])},
        {"blocks": ((False, b""), *PARTS.blocks[1:])},
        {"blocks": (*PARTS.blocks[:2], (True, b"")), "raw_size": 2 * BLOCK + 1},
        {"blocks": ((False, bytes(BLOCK + BLOCK // 16 + 1025)), *PARTS.blocks[1:])},
        {"crcs": (bytes(4),) * 3},
    ],
    ids=str,
)
def test_what_contradicts_the_blocks(change: dict[str, object]) -> None:
    with pytest.raises(ContainerError):
        events([PARTS.change(**change).container()])


def test_a_wrong_entry_ends_it_before_the_rest_is_there() -> None:
    """Nobody waits for the rest of a table that is wrong already."""
    at = Places.of(THREE)
    parser = ContainerParser()
    parser.feed(THREE[: at.table])
    while parser.next_event() is not NEED_DATA:
        """Header and blocks."""
    parser.feed(THREE[at.table : at.table + 4] + b"\1")
    assert parser.next_event() is NEED_DATA
    parser.feed(bytes(3))
    with pytest.raises(ContainerError, match="table"):
        parser.next_event()


@given(data=st.binary(max_size=300), start=st.booleans())
def test_any_bytes_are_an_error_or_wait_for_more(data: bytes, start: bool) -> None:
    parser = ContainerParser()
    parser.feed((THREE[: Places.of(THREE).header_crc + 4] if start else b"") + data)
    try:
        while parser.next_event() is not NEED_DATA:
            """Whatever they are."""
        parser.finish()
    except ContainerError:
        return
    raise AssertionError("random bytes passed for a container")


def test_a_block_that_was_found_by_the_table() -> None:
    header = Header.parse(THREE[: Places.of(THREE).header_crc + 4])
    begin, end = Places.of(THREE).blocks[1]
    stored = memoryview(THREE)[begin:end]
    digest = b"".join(PARTS.digests[1:])
    assert check_stored(stored, 1, header, last=False, digests=digest) == stored[8:]
    wrong = [
        (stored, 1, True, digest),
        (stored, 2, False, digest),
        (stored, 1, False, digest[32:] + digest[:32]),
        (stored[:-1], 1, False, digest),
        (memoryview(THREE)[begin : end + 1], 1, False, digest),
        (memoryview(bytes(stored[:4]) + b"\0\0\0\0" + bytes(stored[8:])), 1, False, None),
    ]
    for block, index, last, expected in wrong:
        with pytest.raises(BlockError) as caught:
            check_stored(block, index, header, last=last, digests=expected)
        assert caught.value.block == index
