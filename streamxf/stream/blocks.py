"""Streams that are read block by block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from streamxf.storage.source import FileSlice

_BARE_BLOCK = 2**20


class Blocks(Protocol):
    """A stream, readable block by block from any thread; all blocks but the last have `block_size` bytes."""

    size: int
    block_size: int
    count: int

    def size_of(self, index: int) -> int: ...

    def expect(self, first: int, stop: int) -> None:
        """Take note that the blocks from `first` to `stop` will be read next."""

    def decoder(self, index: int) -> Callable[[memoryview], None]:
        """A function that fills memory of exactly that size with the block; any thread may call it, once."""


class BareBlocks:
    def __init__(self, source: FileSlice) -> None:
        self.size = source.length
        self.block_size = _BARE_BLOCK
        self.count = max(1, -(-self.size // _BARE_BLOCK))
        self._source = source

    def size_of(self, index: int) -> int:
        return min(self.block_size, self.size - index * self.block_size)

    def expect(self, first: int, stop: int) -> None:
        self._source.expect(first * self.block_size, min(self.size, stop * self.block_size))

    def decoder(self, index: int) -> Callable[[memoryview], None]:
        start = index * self.block_size
        return self.range(start, start + self.size_of(index))

    def range(self, start: int, stop: int) -> Callable[[memoryview], None]:
        if self._source.parallel:
            return partial(self._source.read_into, start)
        return partial(_copy, self._source.read_at(start, stop - start))


class MemoryBlocks:
    def __init__(self, data: memoryview) -> None:
        self.size = len(data)
        self.block_size = len(data) or 1
        self.count = 1
        self.data = data

    def size_of(self, index: int) -> int:
        return self.size

    def expect(self, first: int, stop: int) -> None:
        """They are in memory."""

    def decoder(self, index: int) -> Callable[[memoryview], None]:
        return partial(_copy, self.data)


def _copy(data: bytes | memoryview, out: memoryview) -> None:
    out[:] = data
