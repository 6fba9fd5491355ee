"""Codecs without a writer: block by block in the calling thread, from memory to memory.

This is what a save has to do at least. What it takes longer than these kernels, divided by the cores, is the price of
threads, framing and files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.dcp_sides import BLOCK_SIZE, State
from benchmarks.harness import Phases
from benchmarks.peers import flat_bytes, zipnn_coder
from streamxf import Chain, Codec, StreamInfo
from streamxf.buffers import Scratch
from streamxf.codec import BlockInfo
from streamxf.coder import StreamCoder, stage_limit
from streamxf.container.blocks import pack_head


class Memory:
    """One large buffer that blocks are packed into, its pages touched before anything is timed."""

    def __init__(self, size: int) -> None:
        self._data = memoryview(bytearray(size))
        self._data[:] = bytes(1) * size
        self._end = 0

    def clear(self) -> None:
        self._end = 0

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        place = self._data[self._end : self._end + size]
        self._end += size
        return place

    def add(self, block: memoryview) -> memoryview:
        """Copy a block behind the last one and return where it lies now."""
        place = self.take(len(block))
        place[:] = block
        return place


class OneThread:
    """Encodes and decodes tensors with a chain, in this thread.

    Parameters
    ----------
    state : dict of str to Tensor
        All of one dtype.
    codecs : sequence of Codec
    """

    def __init__(self, state: State, codecs: Sequence[Codec]) -> None:
        dtype = next(iter(state.values())).dtype
        self._coder = StreamCoder(Chain(codecs), stream_of(dtype))
        self._blocks = blocks_of(state)
        self._memory = Memory(sum(map(len, self._blocks)) * 17 // 16 + 4096 * len(self._blocks))
        self._scratch = Scratch()
        self._targets = Memory(sum(map(len, self._blocks)))

    def compress_and_decompress(self) -> Phases:
        """Seconds to encode all blocks into memory, and to decode them again.

        Raises
        ------
        AssertionError
            If a block does not come back as it was.
        """
        self._memory.clear()
        self._targets.clear()
        start = time.perf_counter()
        stored = [
            self._memory.add(self._coder.encode(block, index, False, self._scratch))
            for index, block in enumerate(self._blocks)
        ]
        compressing = time.perf_counter() - start
        targets = [self._targets.take(len(block)) for block in self._blocks]
        start = time.perf_counter()
        for index, (data, target) in enumerate(zip(stored, targets, strict=True)):
            self._coder.decode(data, index, False, self._scratch, target)
        decompressing = time.perf_counter() - start
        for index, (block, target) in enumerate(zip(self._blocks, targets, strict=True)):
            if target != block:
                raise AssertionError(f"block {index} did not come back as it was")
        return {"compress": compressing, "decompress": decompressing}


def encoded_bytes(state: State, codecs: Sequence[Codec]) -> int:
    """Bytes that the codecs make of a state's tensors, each cut into blocks as the writer cuts it; no framing."""
    coder = StreamCoder(Chain(codecs), stream_of(next(iter(state.values())).dtype))
    scratch = Scratch()
    return sum(len(coder.encode(block, index, False, scratch)) for index, block in enumerate(blocks_of(state)))


def zipnn_one_thread(state: State) -> Phases:
    """Seconds of ZipNN with one thread, from memory to memory, tensor by tensor.

    The copy that it needs, because it changes its input in place, is made outside of the timing.

    Raises
    ------
    AssertionError
        If a tensor does not come back as it was.
    """
    seconds = {"compress": 0.0, "decompress": 0.0}
    for name, tensor in state.items():
        coder = zipnn_coder(tensor.dtype, 1)
        data = bytearray(flat_bytes(tensor))
        start = time.perf_counter()
        compressed = coder.compress(data)
        seconds["compress"] += time.perf_counter() - start
        start = time.perf_counter()
        raw = coder.decompress(compressed)
        seconds["decompress"] += time.perf_counter() - start
        if memoryview(raw) != memoryview(flat_bytes(tensor)):
            raise AssertionError(f"ZipNN did not give back {name} as it was")
    return seconds


def kernels_alone(state: State, codecs: Sequence[Codec], file: Path) -> Phases:
    """Seconds of each step of a save, one block after the other in this thread: every codec, the container's CRC, the
    file's writes, and the fsync at the end.
    """
    dtype = next(iter(state.values())).dtype
    stream = stream_of(dtype)
    steps = [(codec, codec.start(stream)) for codec in codecs]
    scratch = Scratch()
    limit = stage_limit(BLOCK_SIZE)
    names = [type(codec).__name__ for codec in codecs]
    seconds = dict.fromkeys([*names, "container CRC", "write", "fsync"], 0.0)
    with file.open("wb", buffering=0) as output:
        for index, block in enumerate(blocks_of(state)):
            data = block
            for number, (codec, started) in enumerate(steps):
                info = BlockInfo(index, False, limit, started, stream, lambda size, at=number: scratch.take(at, size))
                start = time.perf_counter()
                data = memoryview(codec.encode(data, info))
                seconds[names[number]] += time.perf_counter() - start
            start = time.perf_counter()
            head = pack_head(stream.header_digest, index, False, data)
            seconds["container CRC"] += time.perf_counter() - start
            start = time.perf_counter()
            written = output.write(head) + output.write(data)
            seconds["write"] += time.perf_counter() - start
            if written != len(head) + len(data):
                raise OSError(f"{file} took only a part of block {index}")
        start = time.perf_counter()
        os.fsync(output.fileno())
        seconds["fsync"] = time.perf_counter() - start
    return seconds


def blocks_of(state: State) -> list[memoryview]:
    """The memory of all tensors, cut into blocks as the writer cuts it."""
    return [
        memoryview(flat_bytes(tensor))[start : start + BLOCK_SIZE]
        for tensor in state.values()
        for start in range(0, tensor.nbytes, BLOCK_SIZE)
    ]


def stream_of(dtype: torch.dtype) -> StreamInfo:
    """A stream as the writer would start it for tensors of `dtype`."""
    return StreamInfo(BLOCK_SIZE, os.urandom(32), os.urandom(32), dtype=str(dtype).removeprefix("torch."))
