"""Raw LZ4 blocks that hold too much, too little or nonsense: an error, within the memory of one block."""

from __future__ import annotations

import tracemalloc

import lz4.block
import pytest

from streamxf import LZ4
from streamxf.errors import CodecError
from tests.codecs.blocks import info

LIMIT = 1 << 16


def decode(block: bytes, limit: int = LIMIT) -> bytes:
    return bytes(LZ4().decode(memoryview(block), info(limit)))


BOMB = lz4.block.compress(bytes(16 * 2**20), store_size=False)  # 64 KiB that hold 16 MiB


@pytest.mark.parametrize(
    "block",
    [
        BOMB,
        lz4.block.compress(bytes(LIMIT + 1), store_size=False),
        lz4.block.compress(bytes(100), store_size=True),
        b"",
        b"\xf0",  # a length that goes on, and ends
        b"\xf0" + b"\xff" * 4000,  # literals of a million bytes that are not there
        b"\x1fA\x00\x00" + b"\xff" * 4000,  # a match at offset 0
        b"\x1fA\xff\xff\x00",  # a match from before the start
        lz4.block.compress(bytes(100), store_size=False) + b"\x10",
    ],
    ids=range(9),
)
def test_refused_in_the_memory_of_a_block(block):
    tracemalloc.start()
    try:
        with pytest.raises(CodecError, match="LZ4"):
            decode(block)
        assert tracemalloc.get_traced_memory()[1] < 3 * LIMIT
    finally:
        tracemalloc.stop()


def test_a_block_of_exactly_the_limit_passes():
    block = lz4.block.compress(bytes(LIMIT), store_size=False)
    assert decode(block) == bytes(LIMIT)
    with pytest.raises(CodecError):
        decode(block, LIMIT - 1)


@pytest.mark.parametrize("level", [-64, -1, 0, 1, 9, 12])
def test_nothing_at_all(level):
    block = LZ4(level).encode(memoryview(b""), info())
    assert decode(block, 0) == b""
