"""What is copied, as streams that are read while they are encoded, block by block, and never held whole."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from streamxf.checkpoint.opening import too_much
from streamxf.checkpoint.transforms import Undone
from streamxf.errors import ChecksumError, ContainerError, located
from streamxf.stream.blocks import BareBlocks, Blocks
from streamxf.stream.reader import StreamReader

Fill = Callable[[memoryview], None]

_STEP = 2**20
_ENDS = 2**16  # bytes; torch writes about a thousand before the elements of a tensor alone, and as many behind them


@dataclass(frozen=True)
class Reads:
    """A `ByteSource` of ranges that are read one by one.

    Attributes
    ----------
    size : int
    begin : callable
        Is told where a range starts and stops, in their order, and gives what fills memory with it, in any thread.
    file, item : str
        For errors.
    """

    size: int
    begin: Callable[[int, int], Fill]
    file: str
    item: str

    def load(self, start: int, stop: int) -> _Reading:
        with located(file=self.file, item=self.item):
            return _Reading(self, self.begin(start, stop), stop - start)


@dataclass(frozen=True, slots=True)
class _Reading:
    source: Reads
    fill: Fill
    size: int

    @property
    def lent(self) -> bool:
        return False

    def take(self, scratch: Callable[[int], memoryview]) -> memoryview:
        memory = scratch(self.size)
        with located(file=self.source.file, item=self.source.item):
            self.fill(memory)
        return memory

    def release(self) -> None:
        """The memory belongs to the block."""


def reads_of(blocks: Blocks, file: str, item: str) -> Reads:
    """A stream as it is: ranges that are its blocks are decoded by whoever wants them."""
    reader = StreamReader(blocks)

    def begin(start: int, stop: int) -> Fill:
        index, rest = divmod(start, blocks.block_size)
        if not rest and stop - start == blocks.size_of(index):
            return blocks.decoder(index)
        if isinstance(blocks, BareBlocks):
            return blocks.range(start, stop)
        data = memoryview(bytearray(stop - start))
        reader.readinto_at(start, data)
        return partial(_copy, data)

    return Reads(blocks.size, begin, file, item)


def in_order(read: Callable[[int, memoryview], Any], size: int, crc: int, file: str, item: str) -> Reads:
    """What is read from its beginning to its end, in one thread.

    Parameters
    ----------
    read : callable
        Fills memory from a position; raises if it cannot be filled.
    crc : int
        What ``torch.save`` noted as the CRC-32 of all of it; 0 if it did not. Torch never compares that when it loads.
        Here it is the last chance: the copy gets checksums of its own, which would vouch for damage from then on.
    """
    found = 0

    def begin(start: int, stop: int) -> Fill:
        nonlocal found
        data = memoryview(bytearray(stop - start))
        read(start, data)
        found = zlib.crc32(data, found) if crc else 0
        if crc and stop == size and found != crc:
            raise ChecksumError(
                "the tensor's bytes do not match the CRC-32 that torch saved with them: they were damaged since. "
                "Restore the file from a copy"
            )
        return partial(_copy, data)

    return Reads(size, begin, file, item)


def _copy(data: memoryview, out: memoryview) -> None:
    out[:] = data


class Once:
    """Reads what can be read only once, from its beginning to its end.

    Parameters
    ----------
    opened : Undone
    skip : int
        How many bytes come before what is wanted.
    """

    def __init__(self, opened: Undone, skip: int) -> None:
        self._stream = opened
        self._left = skip

    def read(self, position: int, out: memoryview) -> None:
        """Fill `out` with what comes next."""
        while self._left:
            self._left -= len(self._some(min(self._left, _STEP)))
        done = 0
        while done < len(out):
            part = self._some(len(out) - done)
            out[done : done + len(part)] = part
            done += len(part)

    def _some(self, size: int) -> bytes:
        part = self._stream.read(size)
        if not part:
            raise ContainerError("the item ends before the tensor does: it was cut, or changed while it was read")
        return part


class Ends(io.RawIOBase):
    """The beginning and the end of what can be read only once; between them nothing can be read.

    Parameters
    ----------
    stream : Undone
        It is read to its end.
    limit : int or None
        The most bytes that it may have.

    Attributes
    ----------
    size : int
        Bytes of all of it.
    """

    def __init__(self, stream: Undone, limit: int | None) -> None:
        super().__init__()
        head, tail, self.size = b"", b"", 0
        while part := stream.read(_STEP):
            self.size += len(part)
            if limit is not None and self.size > limit:
                raise too_much(limit)
            head = head if len(head) >= _ENDS else (head + part)[:_ENDS]
            tail = (tail + part)[-_ENDS:]
        self._head, self._tail = head, tail
        self._position = 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}
        self._position = base[whence] + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Nothing where it is not known."""
        start, stop = self._position, self.size if size is None or size < 0 else min(self._position + size, self.size)
        begin = self.size - len(self._tail)
        if stop <= len(self._head):
            part = self._head[start:stop]
        else:
            part = self._tail[start - begin : stop - begin] if start >= begin else b""
        self._position += len(part)
        return part
