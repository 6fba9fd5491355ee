"""Streams that are read while they are encoded, block by block, so that they are never held whole."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from streamxf.errors import ChecksumError, located
from streamxf.stream.encoder import Load
from streamxf.stream.reader import StreamReader
from streamxf.stream.source import BareBlocks, Blocks

Fill = Callable[[memoryview], None]


@dataclass(eq=False)
class Reads:
    """A `ByteSource` of ranges that are read in order: `begin` returns, for a start and a stop, what fills memory with
    that range, in any thread. Errors name `file` and `item`.
    """

    size: int
    begin: Callable[[int, int], Fill]
    file: str
    item: str

    def load(self, start: int, stop: int) -> Load:
        with located(file=self.file, item=self.item):
            return _Range(self, self.begin(start, stop), stop - start)


@dataclass(eq=False)
class _Range:
    source: Reads
    fill: Fill
    size: int
    lent: bool = False

    def take(self, scratch: Callable[[int], memoryview]) -> memoryview:
        memory = scratch(self.size)
        with located(file=self.source.file, item=self.source.item):
            self.fill(memory)
        return memory

    def release(self) -> None:
        """The memory belongs to the block."""


def reads_of(blocks: Blocks, file: str, item: str, start: int = 0, size: int | None = None, crc: int = 0) -> Reads:
    """A stream, or a part of one. Ranges that are whole blocks are decoded in the thread that encodes them.

    `crc` is the CRC-32 that ``torch.save`` noted for it, or 0. Torch never compares it when it loads. Here it is the
    last chance: the copy has checksums of its own, which would match the damaged bytes.
    """
    length = blocks.size - start if size is None else size
    reader = StreamReader(blocks)
    found = 0

    def fill(first: int, stop: int) -> Fill:
        if isinstance(blocks, BareBlocks):
            return blocks.range(first, stop)
        index, rest = divmod(first, blocks.block_size)
        if not rest and stop - first == blocks.size_of(index):
            return blocks.decoder(index)
        data = memoryview(bytearray(stop - first))
        reader.readinto_at(first, data)
        return partial(_copy, data)

    def begin(first: int, stop: int) -> Fill:
        nonlocal found
        decode = fill(start + first, start + stop)
        if not crc:
            return decode
        data = memoryview(bytearray(stop - first))
        decode(data)
        found = zlib.crc32(data, found)
        if stop == length and found != crc:
            raise ChecksumError(
                "the tensor's bytes do not match the CRC-32 that torch saved with them: they were damaged since. "
                "Restore the file from a copy"
            )
        return partial(_copy, data)

    return Reads(length, begin, file, item)


def _copy(data: memoryview, out: memoryview) -> None:
    out[:] = data
