"""Boxes and runs: which elements of a row-major array are wanted, and where a run of its elements lies.

A box is a range in each dimension; a run is a range of the array's elements in row-major order, as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a stored array that is to be read.

    Attributes
    ----------
    shape : tuple of int
        Of the whole array.
    box : tuple of (int, int)
        The wanted range in each dimension.
    start, stop : int
        The shortest run, in elements, that holds the box.
    """

    shape: tuple[int, ...]
    box: Box
    start: int
    stop: int

    @classmethod
    def of(cls, shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> Selection | None:
        """The box at `offsets` of the size `lengths`; None if it is empty, or not inside of the array."""
        if not len(shape) == len(offsets) == len(lengths):
            return None
        if not any(offsets) and tuple(lengths) == tuple(shape):  # all of it, as nearly always
            count = math.prod(shape)
            return cls(tuple(shape), tuple([(0, size) for size in shape]), 0, count) if count else None
        box = tuple((offset, offset + length) for offset, length in zip(offsets, lengths, strict=True))
        if any(not 0 <= begin < end <= size for (begin, end), size in zip(box, shape, strict=True)):
            return None
        strides = contiguous_strides(shape)
        start = sum(begin * stride for (begin, _), stride in zip(box, strides, strict=True))
        last = sum((end - 1) * stride for (_, end), stride in zip(box, strides, strict=True))
        return cls(tuple(shape), box, start, last + 1)

    @property
    def whole(self) -> bool:
        """Whether that is all of the array."""
        return self.start == 0 and self.stop == math.prod(self.shape)

    @property
    def is_run(self) -> bool:
        """Whether the run holds the box and nothing else."""
        return self.stop - self.start == math.prod(end - begin for begin, end in self.box)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, Box, Box]]:
        """Split the run from `start` to `stop` into boxes, and cut each one down to what is wanted.

        Yields
        ------
        first : int
            The element at which a box of the run begins.
        outer : Box
            That box.
        inner : Box
            The wanted part of it, in the array's coordinates too; never empty.
        """
        for first, outer in boxes_of_run(self.shape, start, stop):
            inner = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(outer, self.box, strict=True))
            if all(begin < end for begin, end in inner):
                yield first, outer, inner


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major array, as torch gives them: a dimension without elements counts as one."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def boxes_of_run(shape: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, Box]]:
    """Split a run of elements of a row-major array into as few boxes as it takes, in order; each comes with its first
    element.

    A box of several rows of some dimension has all of the dimensions after that one.
    """
    strides = contiguous_strides(shape)
    while start < stop:
        # the outermost dimension of which the run, where it begins, holds a whole row
        axis = next(
            (axis for axis, stride in enumerate(strides) if start % stride == 0 and start + stride <= stop), len(shape)
        )
        if axis == len(shape):  # a single element of an array without dimensions
            yield start, ()
            return
        position = start // strides[axis] % shape[axis]
        rows = min(shape[axis] - position, (stop - start) // strides[axis])
        outer = tuple((at := start // strides[dim] % shape[dim], at + 1) for dim in range(axis))
        inner = tuple((0, size) for size in shape[axis + 1 :])
        yield start, (*outer, (position, position + rows), *inner)
        start += rows * strides[axis]
