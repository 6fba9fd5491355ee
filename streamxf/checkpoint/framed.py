"""Framed tensors: what ``torch.save`` wrote of a shard, opened so that its elements can be read.

Elements that are stored in another order than row-major are gathered block by block when they are asked for, so a
tensor of any size takes the memory of a few blocks.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable
from functools import partial

from streamxf.checkpoint.elements import Array, Elements, boxes_of_run, unsigned
from streamxf.errors import PolicyError
from streamxf.proportion import most
from streamxf.storage.source import FileSlice
from streamxf.stream.blocks import Blocks, MemoryBlocks
from streamxf.stream.reader import StreamReader
from streamxf.torchsave.framed import find_framed

_BLOCK = 16 * 2**20  # bytes; with less, the pieces to be read become short
_SPAN = 8 * 2**20  # bytes that are read at once where the wanted elements have gaps between them
_FREE_SPAN = 4096  # bytes; so little is read at once, however few of them are wanted
_DENSITY = 4  # bytes read for one that is wanted, at most

Ints = tuple[int, ...]


def strided_elements(source: FileSlice, itemsize: int, shape: Ints, strides: Ints) -> Elements:
    """The elements of a tensor of which `source` has those from the first to the last; `strides` are in elements.
    Raises PolicyError if they repeat elements, and make far more of them than are stored.
    """
    size = math.prod(shape) * itemsize
    if size > most(source.length):
        raise PolicyError(
            f"the tensor's strides make {size} bytes of {source.length} stored ones, which is out of proportion; load "
            "it with torch if you trust it"
        )
    return Elements(StridedBlocks(source, itemsize, shape, strides), 0, itemsize, shape)


class StridedBlocks:
    def __init__(self, source: FileSlice, itemsize: int, shape: Ints, strides: Ints) -> None:
        self.size = math.prod(shape) * itemsize
        self.block_size = _BLOCK
        self.count = max(1, -(-self.size // _BLOCK))
        self._source = source
        self._itemsize = itemsize
        self._shape = shape
        self._steps = tuple(stride * itemsize for stride in strides)

    def size_of(self, index: int) -> int:
        return min(_BLOCK, self.size - index * _BLOCK)

    def expect(self, first: int, stop: int) -> None:
        """Where the elements of a block stand depends on the strides."""

    def decoder(self, index: int) -> Callable[[memoryview], None]:
        return partial(self._gather, index * _BLOCK // self._itemsize)

    def _gather(self, first: int, out: memoryview) -> None:
        import numpy as np

        elements = np.frombuffer(out, unsigned(self._itemsize))
        for at, box in boxes_of_run(self._shape, first, first + len(elements)):
            lengths = [stop - start for start, stop in box]
            part = elements[at - first :][: math.prod(lengths)].reshape(lengths)
            start = sum(begin * step for (begin, _), step in zip(box, self._steps, strict=True))
            self._fill(start, part)

    def _fill(self, first: int, out: Array) -> None:
        """Fill `out` with the elements that stand in the tensor's steps from `first`."""
        from numpy import frombuffer
        from numpy.lib.stride_tricks import as_strided

        steps = self._steps
        dims = sorted((dim for dim, size in enumerate(out.shape) if size > 1 and steps[dim]), key=steps.__getitem__)
        # pieces are read whole, as long as they are not much more than what is wanted of them
        reach = wanted = self._itemsize
        inner = 0
        for dim in dims:
            longer = reach + (out.shape[dim] - 1) * steps[dim]
            if longer > max(_FREE_SPAN, wanted * out.shape[dim] * _DENSITY):
                break
            reach, wanted, inner = longer, wanted * out.shape[dim], inner + 1
        outer = dims[inner:]
        count = math.prod(out.shape[dim] for dim in outer)
        if count * reach > _SPAN and dims:
            half = out.shape[dims[-1]] // 2
            before: list[slice] = [slice(None)] * dims[-1]
            self._fill(first, out[*before, :half])
            self._fill(first + half * steps[dims[-1]], out[*before, half:])
            return
        data = bytearray(count * reach)
        memory = memoryview(data)
        places = itertools.product(*(range(0, out.shape[dim] * steps[dim], steps[dim]) for dim in outer))
        for number, place in enumerate(places):
            self._source.read_into(first + sum(place), memory[number * reach : (number + 1) * reach])
        packed = [steps[dim] if dim in dims[:inner] else 0 for dim in range(out.ndim)]
        for dim in reversed(outer):
            packed[dim] = reach
            reach *= out.shape[dim]
        out[...] = as_strided(frombuffer(data, out.dtype), out.shape, packed, writeable=False)


def framed_elements(blocks: Blocks, dtype: str, shape: tuple[int, ...]) -> Elements:
    """The elements of the plain tensor that a stream holds; row-major ones are read where they stand. Raises as
    `find_framed`.
    """
    stream = StreamReader(blocks)
    found = find_framed(stream, blocks.size, dtype, shape)
    itemsize = found.tensor.itemsize
    if not found.tensor.extent:
        return Elements(MemoryBlocks(memoryview(b"")), 0, itemsize, shape)
    if found.tensor.is_row_major and found.start % itemsize == 0:
        return Elements(blocks, found.start, itemsize, shape)
    data = bytearray(found.tensor.extent)
    stream.readinto_at(found.start, data)
    return strided_elements(FileSlice(io.BytesIO(), 0, len(data), data), itemsize, shape, found.tensor.strides)
