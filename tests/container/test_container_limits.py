"""Hostile lengths, index and footer, with every CRC right: an error before memory is taken, with and without a key."""

from __future__ import annotations

import io
import tracemalloc

import pytest
from forge import take_apart
from samples import BLOCK, FULL, KEY, READERS, OneWay, data_of, encode

import streamxf
from streamxf.errors import ContainerError, StreamxfError

DATA = data_of(2 * BLOCK + 10)
PLAIN = take_apart(encode(DATA, ()))
KEYED = take_apart(encode(DATA, FULL))
MEBIBYTE = 2**20
BOTH = pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
EITHER = pytest.mark.parametrize("parts", [PLAIN, KEYED], ids=["plain", "keyed"])


def refuse_in(size: int, read, file: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(StreamxfError):
            read(file)
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


@BOTH
@EITHER
@pytest.mark.parametrize(
    "change",
    [
        {"count": 0},
        {"count": 1},
        {"count": 4},
        {"count": 2**32 - 1},
        {"count": 2**32 - 1, "raw_size": (2**32 - 2) * BLOCK + 1},
        {"count": 2**31, "raw_size": 2**31 * BLOCK},
        {"raw_size": 0},
        {"raw_size": 2 * BLOCK},
        {"raw_size": 3 * BLOCK + 1},
        {"raw_size": 2**48},
        {"raw_size": 2**48 + 1},
        {"raw_size": 2**64 - 1},
        {"container_size": 0},
        {"container_size": 2**63},
        {"ends": ()},
        {"ends": (0, 0, 0)},
        {"ends": (2**64 - 1,) * 3},
        {"ends": (2**63, 1, 2**63)},
    ],
    ids=str,
)
def test_footers(read, parts, change):
    refuse_in(3 * MEBIBYTE, read, parts.change(**change).pack())


@BOTH
@pytest.mark.parametrize("shift", [-1, 1, 8, -8])
@pytest.mark.parametrize("which", range(3))
def test_an_index_that_is_off(read, shift, which):
    ends = []
    at = len(PLAIN.container()) - 32 - 24 - sum(len(payload) + 8 for _, payload in PLAIN.blocks)
    for _, payload in PLAIN.blocks:
        at += 8 + len(payload)
        ends.append(at)
    assert read(PLAIN.change(ends=tuple(ends)).pack()) == DATA
    ends[which] += shift
    refuse_in(3 * MEBIBYTE, read, PLAIN.change(ends=tuple(ends)).pack())


@BOTH
@pytest.mark.parametrize("word", [2**31 - 1, 2**32 - 1, BLOCK + BLOCK // 16 + 1024 + 1, 2**31 | (2**31 - 1)])
def test_block_lengths(read, word):
    file = bytearray(PLAIN.pack())
    at = len(PLAIN.prefix) + 52
    file[at : at + 4] = word.to_bytes(4, "little")
    refuse_in(3 * MEBIBYTE, read, bytes(file))


@BOTH
def test_a_prefix_length_over_the_limit(read):
    for length in (65537, 2**32 - 1):
        refuse_in(MEBIBYTE, read, PLAIN.prefix[:8] + length.to_bytes(4, "little") + PLAIN.pack()[12:])


@BOTH
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK + 1])
@pytest.mark.parametrize("which", range(3))
def test_blocks_of_the_wrong_size(read, which, size):
    """Without a key the sizes are all that says whether a block is what it should be."""
    blocks = list(PLAIN.blocks)
    blocks[which] = (blocks[which][0], bytes(size))
    refuse_in(3 * MEBIBYTE, read, PLAIN.change(blocks=tuple(blocks)).pack())


@BOTH
def test_a_small_file_that_claims_to_be_large(read):
    """64 empty blocks of 16 MiB are 1 GiB by their footer, and 1 KiB by their weight."""
    blocks = ((False, b""),) * 63 + ((True, b""),)
    file = PLAIN.change(block_log2=24, blocks=blocks, raw_size=64 << 24).pack()
    # a reader that seeks takes the memory of one step, which is 64 MiB
    refuse_in(70 * MEBIBYTE, read, file)


def test_the_size_is_believed_only_where_a_block_vouches_for_it():
    """What a keyed file says is checked when it is opened, before anybody makes plans with it."""
    blocks = KEYED.blocks[:2]
    cut = KEYED.change(blocks=(blocks[0], (True, blocks[1][1])), raw_size=2 * BLOCK).pack()
    with pytest.raises(StreamxfError):
        streamxf.open(io.BytesIO(cut), keys=KEY)


def test_bytes_that_follow_for_ever_are_not_taken_in():
    class Endless(OneWay):
        served = 0

        def readinto(self, buffer):
            count = super().readinto(buffer)
            if not count:
                self.served += len(buffer)
                assert self.served < 16 * MEBIBYTE, "reads on and on"
                count = len(buffer)
            return count

    with streamxf.open(Endless(PLAIN.pack())) as file:
        with pytest.raises(ContainerError, match="follows"):
            file.read()
