"""Tensors whose elements stand in a file as they are: a box of one is read out of whatever order they stand in."""

from __future__ import annotations

import bisect
import itertools
import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

SPAN = 8 * 2**20
"""Bytes that are read at once, where a box has gaps in the file."""

_MAPPED = 2**20  # bytes, from which on memory is taken from the system and given back to it
_FREE_SPAN = 4096  # bytes; so little is read at once, however few of them are wanted
_DENSITY = 4  # bytes read for one that is wanted, at the most

ReadInto = Callable[[int, memoryview], None]
"""Fills memory from a position; raises a StreamxfError where the file ends before."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A tensor's place.

    Attributes
    ----------
    start : int
        Where its first element stands, in bytes.
    dtype : torch.dtype
    shape, strides : tuple of int
        In elements.
    """

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self, read_into: ReadInto, offsets: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """A box of it, in memory of its own."""
        out = empty(self.dtype, lengths)
        self.fill(read_into, offsets, out)
        return out

    def fill(self, read_into: ReadInto, offsets: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out`, which has its dtype, with the box at `offsets` that has the shape of `out`."""
        if out.numel():
            first = sum(offset * stride for offset, stride in zip(offsets, self.strides, strict=True))
            _fill(read_into, self.start + first * self.dtype.itemsize, self.strides, out)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Bytes that are scattered over a file, as one row of ``uint8``.

    Attributes
    ----------
    starts : tuple of int
        Where each piece begins in the file.
    stops : tuple of int
        Where each ends in the row.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.stops[-1],)

    def read(self, read_into: ReadInto, offsets: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """A part of the row, in memory of its own."""
        out = empty(torch.uint8, lengths)
        memory = out.numpy().data
        at, stop = offsets[0], offsets[0] + lengths[0]
        number = bisect.bisect_right(self.stops, at)
        while at < stop:
            begin = self.stops[number - 1] if number else 0
            end = min(stop, self.stops[number])
            read_into(self.starts[number] + at - begin, memory[at - offsets[0] : end - offsets[0]])
            at, number = end, number + 1
        return out


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions, the slowest first, in whose order the elements follow one another without gaps; None if they do
    not.
    """
    order = tuple(sorted(range(len(shape)), key=lambda dim: (-strides[dim], -shape[dim])))
    expected = 1
    for dim in reversed(order):
        if shape[dim] != 1 and strides[dim] != expected:
            return None
        expected *= shape[dim]
    return order


def empty(dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor on the CPU, to be filled."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _MAPPED:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    # from malloc, what is freed would stay with the process, up to several times the size of what is in use
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(tuple(shape))


def _fill(read_into: ReadInto, first: int, strides: Sequence[int], out: torch.Tensor) -> None:
    """Fill `out` with elements that stand in steps of `strides` from `first`."""
    if out.is_contiguous() and _same_order(out, strides):
        read_into(first, out.view(-1).view(torch.uint8).numpy().data)
        return
    itemsize = out.element_size()
    steps = [stride * itemsize for stride in strides]
    dims = sorted((dim for dim, size in enumerate(out.shape) if size > 1 and steps[dim]), key=steps.__getitem__)
    # pieces are read whole, as long as they are not much more than what is wanted of them
    reach = wanted = itemsize
    inner = 0
    for dim in dims:
        longer = reach + (out.shape[dim] - 1) * steps[dim]
        if longer > max(_FREE_SPAN, wanted * out.shape[dim] * _DENSITY):
            break
        reach, wanted, inner = longer, wanted * out.shape[dim], inner + 1
    outer = dims[inner:]
    count = math.prod(out.shape[dim] for dim in outer)
    if count * reach > SPAN:
        _halve(read_into, first, strides, out, dims[-1])
        return
    data = torch.empty(count * reach, dtype=torch.uint8, device="cpu")
    memory = data.numpy().data
    places = itertools.product(*(range(0, out.shape[dim] * steps[dim], steps[dim]) for dim in outer))
    for number, place in enumerate(places):
        read_into(first + sum(place), memory[number * reach : (number + 1) * reach])
    packed = [steps[dim] if dim in dims[:inner] else 0 for dim in range(out.ndim)]
    for dim in reversed(outer):
        packed[dim] = reach
        reach *= out.shape[dim]
    # as bytes: copy_ knows not every dtype
    out.unsqueeze(-1).view(torch.uint8).copy_(data.as_strided((*out.shape, itemsize), (*packed, 1)))


def _halve(read_into: ReadInto, first: int, strides: Sequence[int], out: torch.Tensor, dim: int) -> None:
    half = out.shape[dim] // 2
    for start, length in ((0, half), (half, out.shape[dim] - half)):
        begin = first + start * strides[dim] * out.element_size()
        _fill(read_into, begin, strides, out.narrow(dim, start, length))


def _same_order(out: torch.Tensor, strides: Sequence[int]) -> bool:
    return all(size == 1 or own == other for size, own, other in zip(out.shape, out.stride(), strides, strict=True))
