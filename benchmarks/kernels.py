"""Codecs without a writer: block by block in the calling thread, from memory to memory.

This is what a save has to do at least. What it takes longer than these kernels, divided by the cores, is the price of
threads, framing and files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from typing_extensions import Buffer

from benchmarks.dcp_sides import BLOCK_SIZE, State, raw_bytes
from benchmarks.harness import Phases
from benchmarks.peers import flat_bytes, zipnn_coder
from streamxf import Codec
from streamxf.buffers import Scratch
from streamxf.chain import Chain, StreamCoder
from streamxf.codec import StreamInfo
from streamxf.format.container import pack_head
from streamxf.format.header import Identity, Kind
from streamxf.report import Meter
from streamxf.stream.encoder import encoding_facts


def same(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers hold the same bytes; memoryviews would compare them one by one."""
    return np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8))


class Block(NamedTuple):
    """One block of a tensor's memory, with the coder of its stream."""

    coder: StreamCoder
    index: int
    data: memoryview

    def encode(self, scratch: Scratch) -> memoryview:
        return self.coder.encode(self.data, self.index, False, scratch)


def blocks_of(state: State, codecs: Sequence[Codec], meter: Meter | None = None) -> Iterator[Block]:
    """The memory of all tensors cut into blocks, each tensor a stream that is told what the writer tells it."""
    for name, tensor in state.items():
        shape = tuple(tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        identity = Identity(bytes(16), Kind.TENSOR, name, dtype, (0,) * len(shape), shape, shape)
        stream = StreamInfo(BLOCK_SIZE, os.urandom(32), os.urandom(32), *encoding_facts(identity))
        coder = StreamCoder(Chain(codecs), stream, meter=meter)
        view = memoryview(flat_bytes(tensor))
        for index, start in enumerate(range(0, len(view), BLOCK_SIZE)):
            yield Block(coder, index, view[start : start + BLOCK_SIZE])


class OneThread:
    """Encodes and decodes a state dict with a chain, in this thread, between buffers touched before."""

    def __init__(self, state: State, codecs: Sequence[Codec]) -> None:
        self._blocks = list(blocks_of(state, codecs))
        raw = raw_bytes(state)
        self._stored = memoryview(bytearray(b"\1") * (raw * 17 // 16 + 4096 * len(self._blocks)))
        self._raw = memoryview(bytearray(b"\1") * raw)
        self._scratch = Scratch()

    def compress_and_decompress(self) -> Phases:
        """Seconds to encode all blocks into memory, and to decode them again; AssertionError if one changed."""
        ends = [0]
        start = time.perf_counter()
        for block in self._blocks:
            data = block.encode(self._scratch)
            ends.append(ends[-1] + len(data))
            self._stored[ends[-2] : ends[-1]] = data
        compressing = time.perf_counter() - start
        stored = [self._stored[begin:end] for begin, end in pairwise(ends)]
        sizes = accumulate((len(block.data) for block in self._blocks), initial=0)
        targets = [self._raw[begin:end] for begin, end in pairwise(sizes)]
        start = time.perf_counter()
        for block, data, target in zip(self._blocks, stored, targets, strict=True):
            block.coder.decode(data, block.index, False, self._scratch, target)
        decompressing = time.perf_counter() - start
        for block, target in zip(self._blocks, targets, strict=True):
            if not same(target, block.data):
                raise AssertionError(f"block {block.index} did not come back as it was")
        return {"compress": compressing, "decompress": decompressing}


def encoded_bytes(state: State, codecs: Sequence[Codec]) -> int:
    """Bytes that the codecs make of a state's tensors, each cut into blocks as the writer cuts it; no framing."""
    scratch = Scratch()
    return sum(len(block.encode(scratch)) for block in blocks_of(state, codecs))


def zipnn_one_thread(state: State) -> Phases:
    """Seconds of ZipNN with one thread, from memory to memory, tensor by tensor.

    The copy that it needs, because it changes its input in place, is made outside of the timing. AssertionError if a
    tensor does not come back as it was.
    """
    seconds = {"compress": 0.0, "decompress": 0.0}
    for name, tensor in state.items():
        coder = zipnn_coder(tensor.dtype, 1)
        data = bytearray(flat_bytes(tensor))
        start = time.perf_counter()
        compressed = coder.compress(data)
        between = time.perf_counter()
        raw = coder.decompress(compressed)
        seconds["compress"] += between - start
        seconds["decompress"] += time.perf_counter() - between
        if not same(raw, flat_bytes(tensor)):
            raise AssertionError(f"ZipNN did not give back {name} as it was")
    return seconds


def kernels_alone(state: State, codecs: Sequence[Codec], file: Path) -> Phases:
    """Seconds of each step of a save, one block after the other in this thread: every codec by its name, the
    container's CRC, the file's writes, and the fsync at the end.
    """
    meter = Meter()
    scratch = Scratch()
    seconds = {"container CRC": 0.0, "write": 0.0, "fsync": 0.0}
    with file.open("wb", buffering=0) as output:
        for block in blocks_of(state, codecs, meter):
            data = block.encode(scratch)
            start = time.perf_counter()
            head = pack_head(block.coder.stream.header_digest, block.index, False, data)
            seconds["container CRC"] += time.perf_counter() - start
            start = time.perf_counter()
            written = output.write(head) + output.write(data)
            seconds["write"] += time.perf_counter() - start
            if written != len(head) + len(data):
                raise OSError(f"{file} took only a part of block {block.index}")
        start = time.perf_counter()
        os.fsync(output.fileno())
        seconds["fsync"] = time.perf_counter() - start
    return {**meter.total().busy, **seconds}
