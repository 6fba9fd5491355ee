"""The parser gives the same events however its bytes arrive, and stays dead once they were wrong."""

from __future__ import annotations

from itertools import pairwise

import pytest
from forge import take_apart
from hypothesis import given
from hypothesis import strategies as st
from samples import BLOCK, data_of, encode

from streamxf.coder import stage_limit
from streamxf.container.header import Header
from streamxf.container.parser import NEED_DATA, Block, ContainerParser, End
from streamxf.errors import ContainerError, StreamxfError


def container(size: int, chain: tuple = ()) -> bytes:
    return take_apart(encode(data_of(size), chain)).container()


def events(pieces: list[bytes]) -> list[object]:
    parser = ContainerParser(stage_limit)
    found = []
    for piece in pieces:
        parser.feed(piece)
        while (event := parser.next_event()) is not NEED_DATA:
            found.append(event)
    parser.finish()
    return found


@pytest.mark.parametrize("size", [0, 1, 300])
def test_byte_by_byte(size):
    data = container(size)
    assert events([bytes([byte]) for byte in data]) == events([data])


THREE = container(2 * BLOCK + 5)


def test_the_events_of_three_blocks():
    header, *blocks, end = events([THREE])
    assert isinstance(header, Header)
    assert [(type(block), block.index, block.last, len(block.payload)) for block in blocks] == [
        (Block, 0, False, BLOCK),
        (Block, 1, False, BLOCK),
        (Block, 2, True, 5),
    ]
    assert end == End(2 * BLOCK + 5)


def edges() -> list[int]:
    header = 52
    ends = [header, *(header + index * (BLOCK + 8) for index in (1, 2)), header + 2 * (BLOCK + 8) + 13]
    return [edge + off for edge in [*ends, len(THREE) - 32] for off in (-1, 0, 1)]


@pytest.mark.parametrize("edge", edges())
def test_cut_at_block_edges(edge):
    assert events([THREE[:edge], THREE[edge:]]) == events([THREE])


@given(places=st.lists(st.integers(0, len(THREE)), max_size=8).map(sorted))
def test_cut_anywhere(places):
    bounds = [0, *places, len(THREE)]
    assert events([THREE[a:b] for a, b in pairwise(bounds)]) == events([THREE])


@pytest.mark.parametrize("extra", [b"\0", THREE[:48], THREE], ids=["a byte", "a header", "a container"])
def test_whatever_follows_is_an_error(extra):
    with pytest.raises(ContainerError, match="follows"):
        events([THREE + extra])
    with pytest.raises(ContainerError, match="follows"):
        events([THREE, extra])


def test_every_truncation_is_an_error():
    data = container(40)
    for size in range(len(data)):
        with pytest.raises(ContainerError):
            events([data[:size]])


def test_dead_after_an_error():
    damaged = bytearray(THREE)
    damaged[100] ^= 1
    parser = ContainerParser(stage_limit)
    parser.feed(bytes(damaged))
    assert isinstance(parser.next_event(), Header)
    with pytest.raises(StreamxfError) as first:
        parser.next_event()
    parser.feed(THREE)
    with pytest.raises(StreamxfError) as again:
        parser.next_event()
    assert again.value is first.value
    with pytest.raises(ContainerError):
        parser.finish()


@given(data=st.binary(max_size=300), start=st.booleans())
def test_any_bytes_are_an_error_or_wait_for_more(data, start):
    parser = ContainerParser(stage_limit)
    parser.feed((THREE[:52] if start else b"") + data)
    try:
        while parser.next_event() is not NEED_DATA:
            pass
        parser.finish()
    except ContainerError:
        return
    raise AssertionError("random bytes passed for a container")
