"""What is copied, as streams that are read while they are encoded, block by block, and never held whole."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from streamxf.checkpoint.opening import too_much
from streamxf.checkpoint.transforms import Undone
from streamxf.errors import ChecksumError, ContainerError, located
from streamxf.stream.blocks import BareBlocks, Blocks
from streamxf.stream.encoder import Load
from streamxf.stream.reader import StreamReader

Fill = Callable[[memoryview], None]

_STEP = 2**20
_ENDS = 2**16  # bytes; torch writes about a thousand before the elements of a tensor alone, and as many behind them


@dataclass(eq=False)
class Reads:
    """A `ByteSource` of ranges that are read one by one: from where each starts and stops, in order, `begin` gives
    what fills memory with it, in any thread. Errors name `file` and `item`.
    """

    size: int
    begin: Callable[[int, int], Fill]
    file: str
    item: str

    def load(self, start: int, stop: int) -> Load:
        with located(file=self.file, item=self.item):
            return _Reading(self, self.begin(start, stop), stop - start)


@dataclass(eq=False)
class _Reading:
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


def reads_of(blocks: Blocks, file: str, item: str, start: int = 0, size: int | None = None) -> Reads:
    """A stream, or a part of one. Ranges that are its blocks are decoded by whoever wants them."""
    size = blocks.size - start if size is None else size
    if isinstance(blocks, BareBlocks):
        return Reads(size, blocks.part(start, size).range, file, item)
    reader = StreamReader(blocks)

    def begin(first: int, stop: int) -> Fill:
        index, rest = divmod(start + first, blocks.block_size)
        if not rest and stop - first == blocks.size_of(index):
            return blocks.decoder(index)
        data = memoryview(bytearray(stop - first))
        reader.readinto_at(start + first, data)
        return partial(_copy, data)

    return Reads(size, begin, file, item)


def checked(reads: Reads, crc: int) -> Reads:
    """The same, compared with what ``torch.save`` noted as the CRC-32 of all of it, unless that is 0.

    Torch never does so when it loads. Here it is the last chance: the copy gets checksums of its own, which would vouch
    for damage from then on.
    """
    if not crc:
        return reads
    found = 0

    def begin(start: int, stop: int) -> Fill:
        nonlocal found
        data = memoryview(bytearray(stop - start))
        reads.begin(start, stop)(data)
        found = zlib.crc32(data, found)
        if stop == reads.size and found != crc:
            raise ChecksumError(
                "the tensor's bytes do not match the CRC-32 that torch saved with them: they were damaged since. "
                "Restore the file from a copy"
            )
        return partial(_copy, data)

    return Reads(reads.size, begin, reads.file, reads.item)


def reads_once(stream: Undone, skip: int, size: int, file: str, item: str) -> Reads:
    """What can be read only once, from its beginning to its end; `skip` bytes come before what is wanted."""
    left = skip

    def some(most: int) -> bytes:
        part = stream.read(most)
        if not part:
            raise ContainerError("the item ends before the tensor does: it was cut, or changed while it was read")
        return part

    def begin(start: int, stop: int) -> Fill:
        nonlocal left
        while left:
            left -= len(some(min(left, _STEP)))
        data = memoryview(bytearray(stop - start))
        done = 0
        while done < len(data):
            part = some(len(data) - done)
            data[done : done + len(part)] = part
            done += len(part)
        return partial(_copy, data)

    return Reads(size, begin, file, item)


def _copy(data: memoryview, out: memoryview) -> None:
    out[:] = data


class Ends:
    """The beginning and the end of what can be read only once, as a file in which nothing can be read between them.

    The stream is read to its end, and may have at most `limit` bytes; `size` is how many it has.
    """

    def __init__(self, stream: Undone, limit: int | None) -> None:
        head, tail, self.size = b"", b"", 0
        while part := stream.read(_STEP):
            self.size += len(part)
            if limit is not None and self.size > limit:
                raise too_much(limit)
            head = head if len(head) >= _ENDS else (head + part)[:_ENDS]
            tail = (tail + part)[-_ENDS:]
        self._parts = (0, head), (self.size - len(tail), tail)
        self._position = 0

    def seek(self, position: int) -> None:
        self._position = position

    def read(self, size: int) -> bytes:
        for begin, data in self._parts:
            start = self._position - begin
            if start >= 0 and start + size <= len(data):
                self._position += size
                return data[start : start + size]
        return b""
