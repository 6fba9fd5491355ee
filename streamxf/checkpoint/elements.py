"""`Elements`: the elements of a stored shard, wherever they stand, and how a part of them comes into an array.

What is wanted of a shard is decoded block by block, each block once. Where the wanted elements stand in the stream as
they do in the array, blocks are decoded straight into its memory; else into reused memory, from which the wanted parts
are copied. Elements are moved as bytes, so any dtype will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamxf.checkpoint.boxes import Selection
from streamxf.stream.blocks import Blocks

Array = npt.NDArray[Any]

INLINE_BYTES = 128 * 1024
"""Bytes; a box of no more is decoded in the calling thread, since handing it to a worker would cost more."""

_UNSIGNED: dict[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: np.dtype("c16")}


@dataclass(slots=True)
class Elements:
    """The elements of a shard: a run of bytes of a stream, row-major.

    Attributes
    ----------
    blocks : Blocks
    origin : int
        Where the first element stands in the stream, in bytes; a multiple of `itemsize`.
    itemsize : int
        Bytes of an element.
    shape : tuple of int
        The shard's.
    """

    blocks: Blocks
    origin: int
    itemsize: int
    shape: tuple[int, ...]

    def jobs(
        self, offset: tuple[int, ...], lengths: tuple[int, ...], out: Array
    ) -> Iterator[tuple[Callable[[], None], int]]:
        """The calls that fill `out` with the box at `offset`, one for each block, and the bytes that each decodes.

        Parameters
        ----------
        offset, lengths : tuple of int
            The box, in elements of the shard.
        out : array
            Of the shape `lengths`, and of any dtype of `itemsize` bytes; any strides.
        """
        wanted = Selection.of(self.shape, offset, lengths)
        if wanted is None:  # it has no elements
            return
        begin = self.origin + wanted.start * self.itemsize
        end = self.origin + wanted.stop * self.itemsize
        memory = out.reshape(-1).view(np.uint8).data if wanted.is_run and out.flags.c_contiguous else None
        size = self.blocks.block_size
        for index in range(begin // size, -(-end // size)):
            start, length = index * size, self.blocks.size_of(index)
            decode = self.blocks.decoder(index)
            if memory is not None and begin <= start and start + length <= end:
                yield partial(decode, memory[start - begin : start - begin + length]), length
            elif memory is not None:
                yield partial(_fill_edge, decode, length, start, begin, end, memory), length
            else:
                yield partial(self._scatter, decode, length, start, wanted, out), length

    def _scatter(
        self, decode: Callable[[memoryview], None], length: int, start: int, wanted: Selection, out: Array
    ) -> None:
        buffer = _buffers.take(length)
        data = memoryview(buffer)[:length]
        decode(data)
        first = max(wanted.start, (start - self.origin) // self.itemsize)
        last = min(wanted.stop, (start + length - self.origin) // self.itemsize)
        elements = np.frombuffer(data, np.uint8)[self.origin + first * self.itemsize - start :]
        elements = elements[: (last - first) * self.itemsize].view(unsigned(self.itemsize))
        for at, outer, inner in wanted.parts(first, last):
            shape = [stop - begin for begin, stop in outer]
            part = elements[at - first : at - first + math.prod(shape)].reshape(shape)
            source = tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(inner, outer, strict=True))
            target = tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(inner, wanted.box, strict=True))
            out[target] = part[source]
        _buffers.give(buffer)


def unsigned(itemsize: int) -> np.dtype[Any]:
    """A dtype for elements of that many bytes that are only moved."""
    return _UNSIGNED[itemsize]


def _fill_edge(
    decode: Callable[[memoryview], None], length: int, start: int, begin: int, end: int, memory: memoryview
) -> None:
    """Decode a block of which only a part is wanted."""
    buffer = _buffers.take(length)
    data = memoryview(buffer)[:length]
    decode(data)
    first, last = max(begin, start), min(end, start + length)
    memory[first - begin : last - begin] = data[first - start : last - start]
    _buffers.give(buffer)


class _Buffers:
    """Memory for decoded blocks, reused; any thread takes and gives."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        try:
            buffer = self._free.pop()
        except IndexError:
            return bytearray(size)
        return buffer if len(buffer) >= size else bytearray(size)

    def give(self, buffer: bytearray) -> None:
        if len(self._free) < self._keep:
            self._free.append(buffer)


_buffers = _Buffers(keep=16)
