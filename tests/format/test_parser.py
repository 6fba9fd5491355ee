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
from tests.forge import BOUND, HASHED, PUBLISHED, Parts, Places, identity_of
from tests.samples import BLOCK, data_of


def parts_of(data: bytes, *, hashed: bool = False) -> Parts:
    """A container that stores data as it is."""
    stops = range(0, len(data) or 1, BLOCK)
    blocks = tuple((at + BLOCK >= len(data), data[at : at + BLOCK]) for at in stops)
    flags = BOUND | PUBLISHED | (HASHED if hashed else 0)
    return Parts(flags=flags, identity=identity_of("o"), blocks=blocks, raw_size=len(data))


def events(pieces: Iterable[bytes]) -> list[object]:
    parser = ContainerParser()
    found: list[object] = []
    for piece in pieces:
        parser.feed(piece)
        while (event := parser.next_event()) is not NEED_DATA:
            found.append(event)
    parser.finish()
    return found


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("size", [0, 1, 300])
def test_byte_by_byte(size: int, hashed: bool) -> None:
    data = parts_of(data_of(size), hashed=hashed).container()
    assert events([bytes([byte]) for byte in data]) == events([data])


PARTS = parts_of(data_of(2 * BLOCK + 5))
HASHES = parts_of(data_of(2 * BLOCK + 5), hashed=True)
THREE, THREE_HASHED = PARTS.container(), HASHES.container()
WHOLE = {"plain": THREE, "hashed": THREE_HASHED}
BOTH = pytest.mark.parametrize("kind", WHOLE)


@pytest.mark.parametrize("parts", [PARTS, HASHES], ids=["plain", "hashed"])
def test_the_events_of_three_blocks(parts: Parts) -> None:
    data = parts.container()
    header, *blocks, end = events([data])
    assert isinstance(header, Header)
    assert header.hashed == (parts is HASHES)
    assert [(type(block), block.index, block.last, len(block.payload)) for block in blocks] == [
        (Block, 0, False, BLOCK),
        (Block, 1, False, BLOCK),
        (Block, 2, True, 5),
    ]
    entries = 36 if header.hashed else 4
    table = data[len(data) - 20 - 3 * entries : -12]
    assert end == End(2 * BLOCK + 5, hashlib.sha256(header.digest + table).digest())
    assert end.table_digest == parts.table_digest


def edges(data: bytes) -> list[int]:
    at = Places.of(data)
    places = [33, at.header_crc + 4, *(end for _, end in at.blocks), at.table, at.end - 20]
    return [edge + off for edge in places for off in (-1, 0, 1)]


@pytest.mark.parametrize(("kind", "edge"), [(kind, edge) for kind, data in WHOLE.items() for edge in edges(data)])
def test_cut_at_edges(kind: str, edge: int) -> None:
    data = WHOLE[kind]
    assert events([data[:edge], data[edge:]]) == events([data])


@BOTH
@given(data=st.data())
def test_cut_anywhere(kind: str, data: st.DataObject) -> None:
    whole = WHOLE[kind]
    places = data.draw(st.lists(st.integers(0, len(whole)), max_size=8).map(sorted))
    assert events([whole[a:b] for a, b in pairwise([0, *places, len(whole)])]) == events([whole])


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


@pytest.mark.parametrize("hashed", [False, True])
def test_every_truncation_is_an_error(hashed: bool) -> None:
    data = parts_of(data_of(40), hashed=hashed).container()
    for size in range(len(data)):
        with pytest.raises(ContainerError):
            events([data[:size]])


@pytest.mark.parametrize("hashed", [False, True])
def test_every_flipped_bit_is_an_error(hashed: bool) -> None:
    for damaged in bit_flips(parts_of(b"four", hashed=hashed).container()):
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
        {"hashes": (bytes(32),) * 3},
        {"hashes": tuple(hashlib.sha256(b"%d" % number).digest() for number in range(3))},
        {"lengths": (1, 2, 3)},
        {"lengths": (BLOCK, BLOCK)},
        {"lengths": (BLOCK, BLOCK, 5, 5)},
        {"lengths": (BLOCK, BLOCK, 6)},
        {"raw_size": 0},
        {"raw_size": 2 * BLOCK},
        {"raw_size": 4 * BLOCK},
        {"blocks": (*HASHES.blocks[:2], (False, b"12345"))},
        {"blocks": ((True, b""), *HASHES.blocks[1:])},
        {"blocks": ((False, b""), *HASHES.blocks[1:])},
        {"blocks": (*HASHES.blocks[:2], (True, b"")), "raw_size": 2 * BLOCK + 1},
        {"blocks": ((False, bytes(BLOCK + BLOCK // 16 + 1025)), *HASHES.blocks[1:])},
        {"crcs": (bytes(4),) * 3},
    ],
    ids=str,
)
def test_what_contradicts_the_blocks(change: dict[str, object]) -> None:
    with pytest.raises(ContainerError):
        events([HASHES.change(**change).container()])


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
    header = Header.parse(THREE_HASHED[: Places.of(THREE_HASHED).header_crc + 4])
    begin, end = Places.of(THREE_HASHED).blocks[1]
    stored = memoryview(THREE_HASHED)[begin:end]
    digest = hashlib.sha256(stored).digest()
    assert check_stored(stored, 1, header, last=False, expected_hash=digest) == stored[8:]
    wrong = [
        (stored, 1, True, digest),
        (stored, 2, False, digest),
        (stored, 1, False, bytes(32)),
        (stored[:-1], 1, False, digest),
        (memoryview(THREE_HASHED)[begin : end + 1], 1, False, digest),
        (memoryview(bytes(stored[:4]) + b"\0\0\0\0" + bytes(stored[8:])), 1, False, None),
    ]
    for block, index, last, expected in wrong:
        with pytest.raises(BlockError) as caught:
            check_stored(block, index, header, last=last, expected_hash=expected)
        assert caught.value.block == index
