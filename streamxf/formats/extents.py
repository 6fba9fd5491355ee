"""Tensors whose elements stand in a file as they are: a box of one is read out of whatever order they stand in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

SPAN = 8 * 2**20
"""Bytes that are read at once, where a box has gaps in the file."""

_FREE_SPAN = 64 * 1024  # bytes; so little is read at once however few of them are wanted
_DENSITY = 64  # bytes read for one that is wanted, at the most

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
        out = torch.empty(tuple(lengths), dtype=self.dtype, device="cpu")
        self.fill(read_into, offsets, out)
        return out

    def fill(self, read_into: ReadInto, offsets: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out`, which has its dtype, with the box at `offsets` that has the shape of `out`."""
        if out.numel():
            first = sum(offset * stride for offset, stride in zip(offsets, self.strides, strict=True))
            _fill(read_into, self.start + first * self.dtype.itemsize, self.strides, out)


def _fill(read_into: ReadInto, first: int, strides: Sequence[int], out: torch.Tensor) -> None:
    """Fill `out` with elements that stand in steps of `strides` from `first`."""
    itemsize = out.element_size()
    steps = [(size - 1) * stride for size, stride in zip(out.shape, strides, strict=True)]
    reach = (sum(steps) + 1) * itemsize
    if out.is_contiguous() and _same_order(out, strides):
        read_into(first, out.view(-1).view(torch.uint8).numpy().data)
        return
    if reach <= _FREE_SPAN or (reach <= SPAN and reach <= out.numel() * itemsize * _DENSITY):
        data = torch.empty(reach, dtype=torch.uint8, device="cpu")
        read_into(first, data.numpy().data)
        # as bytes: copy_ knows not every dtype
        stored = data.as_strided((*out.shape, itemsize), (*(stride * itemsize for stride in strides), 1))
        out.unsqueeze(-1).view(torch.uint8).copy_(stored)
        return
    dim = max(range(out.ndim), key=steps.__getitem__)
    half = out.shape[dim] // 2
    for start, length in ((0, half), (half, out.shape[dim] - half)):
        _fill(read_into, first + start * strides[dim] * itemsize, strides, out.narrow(dim, start, length))


def _same_order(out: torch.Tensor, strides: Sequence[int]) -> bool:
    return all(size == 1 or own == other for size, own, other in zip(out.shape, out.stride(), strides, strict=True))
