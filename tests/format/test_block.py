"""What stands before a stored block: it covers the block's place, its length and its bytes."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import BlockError
from streamxf.format.container import LAST, pack_head, parse_head
from tests.altered import flipped

digests = st.binary(min_size=32, max_size=32)
indices = st.integers(0, 2**32 - 2)


@given(payload=st.binary(min_size=1, max_size=3000), digest=digests, index=indices, last=st.booleans())
def test_round_trip(payload: bytes, digest: bytes, index: int, last: bool) -> None:
    packed = pack_head(digest, index, last, memoryview(payload))
    word = last << 31 | len(payload)
    covered = digest[:16] + struct.pack("<II", index, word) + payload
    assert packed == struct.pack("<II", word, crc32c(covered))
    assert parse_head(packed, index, len(payload)) == (last, len(payload))


@given(payload=st.binary(min_size=1, max_size=100), digest=digests, index=indices, last=st.booleans(), data=st.data())
def test_whatever_changes_is_found(payload: bytes, digest: bytes, index: int, last: bool, data: st.DataObject) -> None:
    head = pack_head(digest, index, last, memoryview(payload))
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    for wrong in (
        (digest, index, flipped(payload, bit // 8, 1 << bit % 8)),
        (digest, index + 1, payload),
        (flipped(digest, 0), index, payload),
        (digest, index, payload[:-1]),
        (digest, index, payload + b"\0"),
    ):
        assert pack_head(*wrong[:2], last, memoryview(wrong[2])) != head
    assert pack_head(digest, index, not last, memoryview(payload)) != head


def test_a_length_above_the_limit() -> None:
    with pytest.raises(BlockError, match="1001 stored bytes, 1000 are allowed") as caught:
        parse_head(struct.pack("<II", LAST | 1001, 0), 7, 1000)
    assert caught.value.block == 7
    assert parse_head(struct.pack("<II", LAST | 1000, 0), 7, 1000) == (True, 1000)


@pytest.mark.parametrize(("index", "last"), [(0, False), (1, False), (1, True)])
def test_no_stored_bytes(index: int, last: bool) -> None:
    """Only the block of an empty stream may have none: a hole in a file is no row of blocks."""
    with pytest.raises(BlockError, match="0 stored bytes"):
        parse_head(struct.pack("<II", last << 31, 0), index, 1000)
    assert parse_head(struct.pack("<II", LAST, 0), 0, 1000) == (True, 0)
