"""CRCs that are put together are those of the bytes themselves."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from streamxf.buffers import Scratch
from streamxf.container.blocks import check_payload, crc_of_stored, pack_head, parse_head
from streamxf.container.combine import combined, shifted
from streamxf.errors import BlockError

sizes = st.one_of(st.integers(0, 600), st.sampled_from([65535, 65536, 65537, 2**24 + 3]))


@given(first=st.binary(max_size=64), size=sizes, byte=st.integers(0, 255))
@example(first=b"", size=0, byte=0)
@example(first=b"a", size=256, byte=7)
def test_two_pieces(first: bytes, size: int, byte: int) -> None:
    second = bytes([byte]) * size
    assert combined(crc32c(first), crc32c(second), size) == crc32c(first + second)


@given(pieces=st.lists(st.binary(max_size=40), max_size=8))
def test_pieces_joined_in_any_order(pieces: list[bytes]) -> None:
    """From the left and from the right alike."""
    whole = crc32c(b"".join(pieces))
    left = 0
    for piece in pieces:
        left = combined(left, crc32c(piece), len(piece))
    right, size = 0, 0
    for piece in reversed(pieces):
        right = combined(crc32c(piece), right, size)
        size += len(piece)
    assert left == right == whole


@given(start=st.integers(0, 2**32 - 1), data=st.binary(max_size=600))
def test_where_another_crc_begins(start: int, data: bytes) -> None:
    assert crc32c(data, start) == shifted(start, len(data)) ^ crc32c(data)


@given(crc=st.integers(0, 2**32 - 1), one=st.integers(0, 2**61), other=st.integers(0, 2**61))
def test_sizes_beyond_any_memory(crc: int, one: int, other: int) -> None:
    """They add up; and the powers of x come round after 2^31 - 1, as P is x + 1 times a primitive polynomial."""
    assert shifted(shifted(crc, one), other) == shifted(crc, one + other)
    assert shifted(crc, 2**31 - 1) == crc


@pytest.mark.parametrize("last", [True, False])
@given(payload=st.binary(max_size=3000), digest=st.binary(min_size=32, max_size=32), index=st.integers(0, 2**32 - 2))
def test_a_stored_block(payload: bytes, digest: bytes, index: int, last: bool) -> None:
    head = pack_head(digest, index, last, memoryview(payload))
    stored = Scratch().take(0, len(head) + len(payload))
    stored[:] = head + payload
    assert crc_of_stored(stored, digest, index) == crc32c(stored)


def test_a_damaged_block_does_not_get_that_far() -> None:
    """What its CRC says then would not be the CRC of its bytes."""
    digest, payload = bytes(32), b"payload"
    head = pack_head(digest, 0, True, memoryview(payload))
    damaged = head + b"pAyload"
    with pytest.raises(BlockError):
        check_payload(parse_head(head, 0, 100), digest, 0, memoryview(damaged)[8:])
    assert crc_of_stored(memoryview(damaged), digest, 0) != crc32c(damaged)
