"""Whether chunks tile their tensor, or a box of it: no element is missing, and none is there twice.

Boxes inside of a tensor tile it exactly if their corners, counted by signs that alternate along each edge, cancel out
but for those of the tensor. To find those that overlap where gaps are allowed they are parted into groups, along one
dimension after the other; what no dimension parts is compared in pairs. Boxes without elements overlap nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from streamxf.budget import Steps, TooMuch
from streamxf.errors import MetadataError
from streamxf.format.limits import MAX_NUMBER
from streamxf.lazy import numpy

MAX_GROUP = 4096  # chunks that no dimension parts into groups
MAX_CORNERS = 2**20  # of all chunks of a tensor, but for grids
_FEW = 64  # chunks that are compared in pairs at once
_PAIRS_FREE, _PAIRS = 2**26, 512  # comparisons, and those for each byte that was read
_STRANGE_CUT = "its {} chunks are cut as no writer cuts a tensor: comparing them takes too long"

Ints = Sequence[int]
Span = tuple[Ints, Ints]  # offsets and sizes
Box = tuple[tuple[int, ...], tuple[int, ...]]  # a span as chunks have it


class NotTiled(MetadataError):
    """A part of a tensor is missing, or is there twice; or that takes too long to find out."""


class Boxes(NamedTuple):
    """Chunks as two arrays of 64-bit integers, each with a row for a chunk and a column for a dimension."""

    offsets: Any
    sizes: Any

    @classmethod
    def of(cls, chunks: Sequence[Span] | Boxes, ndim: int) -> Boxes:
        if isinstance(chunks, Boxes):
            return chunks
        try:
            sides = ([chunk[side] for chunk in chunks] for side in (0, 1))
            return cls(*(numpy.array(side, numpy.int64).reshape(len(chunks), ndim) for side in sides))
        except ValueError:
            raise NotTiled("its chunks have another number of dimensions than the tensor") from None
        except OverflowError:
            raise _beyond() from None

    def spans(self) -> list[Box]:
        return [*zip(map(tuple, self.offsets.tolist()), map(tuple, self.sizes.tolist()), strict=True)]

    def rise(self) -> bool:
        """Whether each offset is greater than the one before."""
        steps = numpy.diff(self.offsets, axis=0)
        if not steps.size:
            return not len(steps)
        return bool((steps[numpy.arange(len(steps)), (steps != 0).argmax(axis=1)] > 0).all())

    def is_grid(self, shape: Ints) -> bool:
        """Whether they cut a tensor along each dimension as a whole, none empty, as most do: sorting them tells."""
        count, place = 1, numpy.zeros(len(self.offsets), numpy.int64)
        for whole, begins, sizes in zip(shape, self.offsets.T, self.sizes.T, strict=True):
            if whole and (sizes == whole).all() and not begins.any():
                continue
            cuts, first, at = numpy.unique(begins, return_index=True, return_inverse=True)
            lengths = sizes[first]
            ends = cuts + lengths
            if not cuts.size or (lengths <= 0).any() or (sizes != lengths[at]).any():
                return False
            if cuts[0] or ends[-1] != whole or (cuts[1:] != ends[:-1]).any():
                return False
            count *= cuts.size
            if count > place.size:
                return False
            place = place * cuts.size + at
        return count == place.size == numpy.unique(place).size

    def full(self, shape: Ints) -> tuple[Any, Any, Any]:
        """Begins and ends of those with elements, in the dimensions that are cut, and which these are. Raises
        MetadataError for one beyond the tensor.
        """
        whole = numpy.array(shape, numpy.int64)
        if (self.offsets > whole - self.sizes).any():
            raise _beyond()
        begins, sizes = self.with_elements()
        axes = (sizes != whole).any(axis=0)
        return begins[:, axes], (begins + sizes)[:, axes], axes

    def with_elements(self) -> Boxes:
        rows = (self.sizes > 0).all(axis=1)
        return Boxes(self.offsets[rows], self.sizes[rows])

    def corners(self, shape: Ints) -> int:
        """How many corners they have in the dimensions that are cut; raises as `full`."""
        begins, _, axes = self.full(shape)
        return len(begins) << int(axes.sum())


def _beyond() -> NotTiled:
    return NotTiled("its chunks reach beyond its end")


def work_for(size: int) -> Steps:
    """The budget for comparing the chunks of an index of `size` bytes, as it is stored."""
    return Steps(_PAIRS_FREE + _PAIRS * size)


def check_elements(shape: Ints) -> None:
    """What has no elements may have any shape; raises MetadataError."""
    if math.prod(shape) > MAX_NUMBER:
        raise MetadataError("it has more elements than a tensor can have")


def check_tiles(shape: Ints, chunks: Sequence[Span] | Boxes, work: Steps | None = None) -> None:
    """Check that `chunks` lie in a tensor of `shape` and tile it. Raises MetadataError if they do not, or are cut in a
    way that takes too long to check, or more than what is left of `work`.
    """
    check_elements(shape)
    whole = (0,) * len(shape), tuple(shape)
    if not isinstance(chunks, Boxes) and len(chunks) == 1 and tuple(map(tuple, chunks[0][:2])) == whole:
        return
    boxes = Boxes.of(chunks, len(shape))
    if boxes.is_grid(shape):
        return
    if not _cancel_out(shape, boxes, work or work_for(16 * len(boxes.offsets))):
        raise NotTiled("its chunks leave out a part of it, or cover one twice")


def _cancel_out(shape: Ints, boxes: Boxes, work: Steps) -> bool:
    """Whether the corners of all boxes and of the tensor, with opposite signs, do."""
    begins, ends, axes = boxes.full(shape)
    if not math.prod(shape) or boxes.with_elements().is_grid(shape):
        return True
    try:
        work.spend(count := len(begins) << int(axes.sum()))
    except TooMuch:
        count = MAX_CORNERS + 1
    if count > MAX_CORNERS:
        raise NotTiled(_STRANGE_CUT.format(len(boxes.offsets)))
    whole = numpy.array([shape], numpy.int64)[:, axes]
    sides = numpy.concatenate([begins, whole * 0, ends, whole]).T
    corners, signs, most = numpy.zeros((1, len(begins) + 1), numpy.int64), numpy.ones((1, len(begins) + 1), "i1"), 1
    signs[0, -1] = -1
    for side in sides:
        cuts, places = numpy.unique(side, return_inverse=True)
        begin, end = places.reshape(2, -1)
        if most * cuts.size > MAX_NUMBER:
            known, corners = numpy.unique(corners.ravel(), return_inverse=True)
            corners, most = corners.reshape(signs.shape), known.size
        corners, most = numpy.vstack([corners * cuts.size + begin, corners * cuts.size + end]), most * cuts.size
        signs = numpy.vstack([signs, -signs])
    _, places = numpy.unique(corners.ravel(), return_inverse=True)
    return not numpy.bincount(places.ravel(), signs.ravel()).any()


def check_apart(shape: Ints, chunks: Sequence[Span] | Boxes, work: Steps | None = None) -> None:
    """Check that `chunks` lie in a tensor of `shape` without overlaps; gaps are allowed. Raises as `check_tiles`."""
    check_elements(shape)
    if overlap(shape, chunks, work):
        raise NotTiled("its chunks overlap")


def overlap(shape: Ints, chunks: Sequence[Span] | Boxes, work: Steps | None = None) -> bool:
    """Whether two chunks share an element. Raises MetadataError for one beyond the tensor, or as `check_tiles`."""
    boxes = Boxes.of(chunks, len(shape))
    begins, ends, axes = boxes.full(shape)
    if len(begins) < 2 or not axes.any():
        return len(begins) > 1
    work = work or work_for(16 * len(boxes.offsets))
    groups = [numpy.arange(len(begins))]
    try:
        while groups:
            group = groups.pop()
            parts = _parted(group, begins, ends, work) if len(group) > _FEW else []
            groups += [part for part in parts if len(part) > 1]
            if not parts and _any_share(begins[group], ends[group], work):
                return True
    except TooMuch:
        raise NotTiled(_STRANGE_CUT.format(len(boxes.offsets))) from None
    return False


def _parted(group: Any, begins: Any, ends: Any, work: Steps) -> list[Any]:
    """Boxes in groups that are apart along one dimension; none if no dimension parts them."""
    for axis in range(begins.shape[1]):
        work.spend(len(group))
        order = group[numpy.argsort(begins[group, axis])]
        reached = numpy.maximum.accumulate(ends[order, axis])
        cuts = numpy.flatnonzero(begins[order[1:], axis] >= reached[:-1])
        if cuts.size:
            return numpy.split(order, cuts + 1)
    return []


def _any_share(begins: Any, ends: Any, work: Steps) -> bool:
    work.spend(len(begins) ** 2 // 2)
    if len(begins) > MAX_GROUP:
        raise TooMuch
    return any(
        bool(((begins[at + 1 :] < ends[at]) & (begins[at] < ends[at + 1 :])).all(axis=1).any())
        for at in range(len(begins) - 1)
    )


def check_offsets(chunks: Iterable[Span]) -> None:
    """Check that no two have the same offset; raises MetadataError."""
    offsets = sorted([tuple(chunk[0]) for chunk in chunks])  # in a set all may have one hash: numbers have none of ours
    if any(map(operator.eq, offsets, offsets[1:])):
        raise MetadataError("the metadata is malformed: two chunks have the same offset")
