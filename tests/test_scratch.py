"""`BlockInfo.extend`: no copy where a block of some KiB begins the chain's scratch memory, with room behind."""

import os
from collections.abc import Callable

import pytest

from streamxf import Checksum, FloatZip
from streamxf.buffers import ROOM, Scratch, ScratchPool
from streamxf.chain import Chain, StreamCoder
from streamxf.codec import BlockInfo, StreamInfo

STREAM = StreamInfo(1 << 16, bytes(32), bytes(32))


def info_of(scratch: Scratch, step: int = 1) -> BlockInfo:
    return BlockInfo(0, True, 1 << 17, None, STREAM, lambda size: scratch.take(step, size), scratch)


def filled(view: memoryview) -> memoryview:
    view[:] = bytes(number % 251 for number in range(len(view)))
    return view


def in_place(block: memoryview, extended: memoryview) -> bool:
    """Whether what is written to one shows in the other."""
    before = block[0]
    extended[0] = before ^ 0xFF
    same = block[0] == before ^ 0xFF
    extended[0] = before
    return same


SIZE = 20_000
LEAST = 5 << 18  # bytes of a buffer


@pytest.mark.parametrize("used", [16_385, 19_900, SIZE])
def test_a_block_in_scratch_memory_is_not_copied(used: int) -> None:
    scratch = Scratch()
    block = filled(scratch.take(0, SIZE))[:used]
    extended = info_of(scratch).extend(block, 32)
    assert len(extended) == used + 32
    assert extended[:used] == block
    assert in_place(block, extended)


def elsewhere() -> memoryview:
    return filled(memoryview(bytearray(SIZE)))


OTHERS: dict[str, Callable[[Scratch], memoryview]] = {
    "other memory": lambda scratch: elsewhere(),
    "read-only memory": lambda scratch: memoryview(bytes(elsewhere())),
    "a read-only view of scratch memory": lambda scratch: filled(scratch.take(0, SIZE)).toreadonly(),
    "not at the start": lambda scratch: filled(scratch.take(0, SIZE))[1:],
    "few bytes, which are copied sooner": lambda scratch: filled(scratch.take(0, 16_384)),
    "nothing": lambda scratch: scratch.take(0, SIZE)[:0],
    "no room": lambda scratch: filled(scratch.take(0, LEAST)) and scratch.take(0, LEAST + ROOM - 31),
    "scratch memory of another block": lambda scratch: filled(Scratch().take(0, SIZE)),
    "scratch memory that was replaced": lambda scratch: (
        filled(scratch.take(0, SIZE - 900)),
        scratch.take(0, 2 * LEAST),
    )[0],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_everything_else_is_copied(kind: str) -> None:
    scratch = Scratch()
    block = OTHERS[kind](scratch)
    before = bytes(block)
    extended = info_of(scratch).extend(block, 32)
    assert len(extended) == len(block) + 32
    assert bytes(extended[: len(block)]) == before == bytes(block)
    assert not len(block) or not in_place(block, extended)


def test_a_codec_may_extend_its_own_scratch_memory() -> None:
    """Blocks overlap then, if there is no room, and the copy has to get that right."""
    scratch = Scratch()
    block = filled(scratch.take(1, SIZE))[3:]
    before = bytes(block)
    assert bytes(info_of(scratch).extend(block, 8)[:-8]) == before


def test_without_a_chain_it_is_scratch_memory() -> None:
    info = BlockInfo(0, True, 100, None, STREAM, lambda size: memoryview(bytearray(size)))
    assert bytes(info.extend(memoryview(b"abc"), 2)[:3]) == b"abc"


@pytest.mark.parametrize("algorithm", ["crc32c", "sha256"])
def test_checksums_behind_checksums(algorithm: str) -> None:
    """The second finds the first one's block in scratch memory, and both digests behind one another."""
    coder = StreamCoder(Chain([Checksum(algorithm), Checksum(algorithm), Checksum()]), STREAM)
    data = bytes(range(256)) * 128
    scratch = Scratch()
    stored = coder.encode(memoryview(data), 0, True, scratch)
    assert bytes(coder.decode(memoryview(bytes(stored)), 0, True, Scratch())) == data
    assert stored.obj is scratch.take(0, 1).obj


def test_the_caller_s_memory_is_never_extended() -> None:
    memory = bytearray(range(256)) * 128
    before = bytes(memory)
    coder = StreamCoder(Chain([FloatZip(), Checksum("sha256")]), STREAM)
    coder.encode(memoryview(memory)[:SIZE], 0, True, Scratch())
    assert memory == before


def test_scratch_memory_that_waits_is_bounded_in_bytes() -> None:
    pool = ScratchPool(keep=3 * 2**20)
    lent = [pool.take() for _ in range(3)]
    for scratch in lent:
        scratch.take(0, 4000)
        pool.give(scratch)
    assert [pool.take() is scratch for scratch in reversed(lent[:2])] == [True, True]
    assert pool.take() not in lent


def test_scratch_memory_belongs_to_one_process() -> None:
    """A child that was forked while a block was encoded must not write into the parent's."""
    view = filled(Scratch().take(0, 100))
    before = bytes(view)
    child = os.fork()
    if child == 0:
        view[:] = bytes(100)
        os._exit(0)
    os.waitpid(child, 0)
    assert bytes(view) == before
