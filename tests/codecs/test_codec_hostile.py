"""Zstandard frames that no encoder of ours makes, which their header refuses before memory is taken; and raw LZ4 blocks
that hold too much, too little or nonsense: an error, within the memory of one block.
"""

import struct

import lz4.block
import pytest
import zstandard

from streamxf import LZ4, ZStandard
from streamxf.errors import CodecError
from tests.codecs.blocks import info
from tests.traced import memory_below

LIMIT = 1 << 16
MAGIC = b"\x28\xb5\x2f\xfd"


def decode(frame: bytes, limit: int = LIMIT) -> bytes:
    return bytes(ZStandard().decode(memoryview(frame), info(limit)))


def rle_frame(declared: int, blocks: int, *, single_segment: bool = False, window: int = 0x58) -> bytes:
    """A frame that declares `declared` bytes and holds `blocks` times 128 KiB of one byte, four bytes for each.

    `window` is the descriptor of RFC 8878, 2 MiB by default.
    """
    descriptor = bytes([0x80 | (0x20 if single_segment else 0)])  # content size in 4 bytes
    heads = [(1 if number == blocks - 1 else 0) | 1 << 1 | (128 * 1024) << 3 for number in range(blocks)]
    body = b"".join(struct.pack("<I", head)[:3] + b"A" for head in heads)
    return MAGIC + descriptor + (b"" if single_segment else bytes([window])) + struct.pack("<I", declared) + body


def test_the_forged_frame_is_a_real_one():
    assert zstandard.ZstdDecompressor().decompress(rle_frame(4 * 128 * 1024, 4)) == b"A" * (4 * 128 * 1024)


GOOD = zstandard.ZstdCompressor(write_content_size=True).compress(b"some text, some text, some text" * 50)
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(b"no size")
WITH_DICTIONARY = zstandard.ZstdCompressor(
    dict_data=zstandard.train_dictionary(1024, [b"%d some sample text %d" % (i, i * i) for i in range(2000)])
).compress(b"7 some sample text 49")
SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"skip"
EMPTY = zstandard.ZstdCompressor(write_content_size=True).compress(b"")


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        *[(rle_frame(256 * 2**20, 2048), "declares 268435456 bytes"), (rle_frame(LIMIT + 1, 1), "declares")],
        *[(UNSIZED, "does not declare"), (rle_frame(100, 1, window=0x89), "window of 150994944 bytes")],
        *[(rle_frame(100, 1, window=0xFF), "header"), (WITH_DICTIONARY, "dictionary"), (SKIPPABLE, "not a zstd frame")],
        *[(SKIPPABLE + GOOD, "not a zstd frame"), (GOOD + SKIPPABLE, "damaged"), (GOOD + GOOD, "damaged")],
        *[(GOOD + b"\0", "damaged"), (EMPTY + b"\0", "data follows it"), (EMPTY + EMPTY, "data follows it")],
        *[(EMPTY[:-1], "truncated"), (rle_frame(100, 2048), "damaged")],
        *[(rle_frame(100, 2048, single_segment=True), "damaged"), (rle_frame(0, 2048), "damaged")],
        *[(rle_frame(0, 2048, single_segment=True), "damaged"), (b"", "not a zstd frame"), (MAGIC, "header")],
        (b"plain data", "not a zstd frame"),
    ],
)
def test_refused_in_little_memory(frame, says):
    decode(GOOD)  # the thread's decompressor is made once
    with memory_below(4 * LIMIT), pytest.raises(CodecError, match=says):  # zstandard hands out 128 KiB at a time
        decode(frame)


@pytest.mark.parametrize("frame", [GOOD, EMPTY, ZStandard(19).encode(memoryview(bytes(1000)), info())])
def test_every_truncation(frame):
    decode(frame)
    for size in range(len(frame)):
        with pytest.raises(CodecError):
            decode(frame[:size])


def test_a_frame_of_exactly_the_limit_passes():
    frame = bytes(ZStandard().encode(memoryview(bytes(LIMIT)), info()))
    assert decode(frame) == bytes(LIMIT)
    with pytest.raises(CodecError, match="65535 are allowed"):
        decode(frame, LIMIT - 1)


def decode_lz4(block: bytes, limit: int = LIMIT) -> bytes:
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
def test_lz4_is_refused_in_the_memory_of_a_block(block):
    with memory_below(3 * LIMIT), pytest.raises(CodecError, match="LZ4"):
        decode_lz4(block)


def test_an_lz4_block_of_exactly_the_limit_passes():
    block = lz4.block.compress(bytes(LIMIT), store_size=False)
    assert decode_lz4(block) == bytes(LIMIT)
    with pytest.raises(CodecError):
        decode_lz4(block, LIMIT - 1)


@pytest.mark.parametrize("level", [-64, -1, 0, 1, 9, 12])
def test_an_lz4_block_of_nothing(level):
    block = LZ4(level).encode(memoryview(b""), info())
    assert decode_lz4(block, 0) == b""
