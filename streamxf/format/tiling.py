"""Whether chunks tile their tensor, or a box of it: no element is missing, and none is there twice.

Boxes tile a tensor exactly if they lie inside of it, have as many elements together, and do not overlap. To find those
that overlap they are parted into groups, along one dimension after the other; what no dimension parts is compared in
pairs. Boxes without elements overlap nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from itertools import combinations, groupby, product

from streamxf.budget import Steps, TooMuch
from streamxf.errors import MetadataError
from streamxf.format.limits import MAX_NUMBER

MAX_GROUP = 4096
"""Chunks that no dimension parts into groups."""

_FEW = 64  # chunks that are compared one by one
_PAIRS_FREE, _PAIRS = 2**26, 512  # comparisons, and those for each byte that was read
_STRANGE_CUT = "its {} chunks are cut as no writer cuts a tensor: comparing them takes too long"

Ints = Sequence[int]
Span = tuple[Ints, Ints]  # offsets and sizes


class NotTiled(MetadataError):
    """A part of a tensor is missing, or is there twice; or that takes too long to find out."""


def work_for(size: int) -> Steps:
    """The budget for comparing the chunks of an index of `size` bytes, as it is stored."""
    return Steps(_PAIRS_FREE + _PAIRS * size)


def check_elements(shape: Ints) -> None:
    if math.prod(size or 1 for size in shape) > MAX_NUMBER:
        raise MetadataError("it has more elements than a tensor can have")


def check_tiles(shape: Ints, chunks: Sequence[Span], work: Steps | None = None) -> None:
    """Check that `chunks` lie in a tensor of `shape` and tile it. Raises MetadataError if they do not, or are cut in a
    way that takes too long to check, or more than what is left of `work`.
    """
    check_elements(shape)
    whole = len(chunks) == 1 and tuple(chunks[0][1]) == tuple(shape) and tuple(chunks[0][0]) == (0,) * len(shape)
    if whole or is_grid(shape, chunks):
        return
    if overlap(shape, chunks, work) or math.prod(shape) != sum(math.prod(sizes) for _, sizes in chunks):
        raise NotTiled("its chunks leave out a part of it, or cover one twice")


def check_apart(shape: Ints, chunks: Sequence[Span], work: Steps | None = None) -> None:
    """Check that `chunks` lie in a tensor of `shape` and do not overlap; they may leave parts out. Raises as
    `check_tiles`.
    """
    check_elements(shape)
    if overlap(shape, chunks, work):
        raise NotTiled("its chunks overlap")


def overlap(shape: Ints, chunks: Sequence[Span], work: Steps | None = None) -> bool:
    """Whether two chunks share an element. Raises MetadataError if a chunk reaches beyond the tensor's end, or as
    `check_tiles`.
    """
    axes, boxes = _cut(shape, chunks)
    if len(boxes) < 2:
        return False
    if not axes:
        return True
    work = work or work_for(16 * len(chunks))
    groups = [boxes]
    try:
        while groups:
            group = groups.pop()
            for axis in range(len(axes)):
                work.spend(len(group))
                if len(parts := _parted(group, axis)) > 1:
                    groups += [part for part in parts if len(part) > 1]
                    break
            else:
                work.spend(len(group) ** 2 // 2)
                if len(group) > MAX_GROUP:
                    raise TooMuch
                if _any_share(group):
                    return True
    except TooMuch:
        raise NotTiled(_STRANGE_CUT.format(len(chunks))) from None
    return False


def _parted(boxes: list[tuple[Ints, Ints]], axis: int) -> list[list[tuple[Ints, Ints]]]:
    """Boxes in groups that are apart along one dimension."""
    parts: list[list[tuple[Ints, Ints]]] = []
    stop = 0
    for box in sorted(boxes, key=lambda box: box[0][axis]):
        if not parts or box[0][axis] >= stop:
            parts.append([])
        parts[-1].append(box)
        stop = max(stop, box[1][axis])
    return parts


def _any_share(boxes: list[tuple[Ints, Ints]]) -> bool:
    if len(boxes) <= _FEW:
        return any(share(one, other) for one, other in combinations(boxes, 2))
    import numpy

    begins, ends = (numpy.array(side) for side in zip(*boxes, strict=True))
    return any(
        bool(((begins[at + 1 :] < ends[at]) & (begins[at] < ends[at + 1 :])).all(axis=1).any())
        for at in range(len(boxes) - 1)
    )


def check_offsets(chunks: Iterable[Span]) -> None:
    """Check that no two have the same offset; raises MetadataError."""
    offsets = sorted([tuple(chunk[0]) for chunk in chunks])  # in a set all may have one hash: numbers have none of ours
    if any(map(operator.eq, offsets, offsets[1:])):
        raise MetadataError("the metadata is malformed: two chunks have the same offset")


def share(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> bool:
    """Whether two boxes, each from where it begins to where it ends, have an element in common."""
    return all(map(operator.lt, one[0], other[1])) and all(map(operator.lt, other[0], one[1]))


def is_grid(shape: Ints, chunks: Sequence[Span]) -> bool:
    """Whether `chunks` are the parts of a tensor that is cut along each dimension as a whole, and none of them empty.
    That is what most are, and needs no more than sorting them.
    """
    ndim = len(shape)
    if not chunks or any(len(offsets) != ndim or len(sizes) != ndim for offsets, sizes in chunks):
        return False
    cuts: list[list[int]] = []
    columns = zip(*[offsets for offsets, _ in chunks], strict=True), zip(*[sizes for _, sizes in chunks], strict=True)
    for whole, begins, lengths in zip(shape, *columns, strict=True):
        if lengths.count(whole) == len(chunks) and not any(begins):
            cuts.append([0])
            continue
        spans = [span for span, _ in groupby(sorted(zip(begins, lengths, strict=True)))]
        ends = [begin + size for begin, size in spans if size > 0]
        if len(ends) < len(spans) or [begin for begin, _ in spans] + [whole] != [0, *ends]:
            return False
        cuts.append([begin for begin, _ in spans])
    if math.prod(map(len, cuts)) != len(chunks):
        return False
    return sorted(tuple(offsets) for offsets, _ in chunks) == [*product(*cuts)]


def _cut(shape: Ints, chunks: Iterable[Span]) -> tuple[list[int], list[tuple[Ints, Ints]]]:
    """The dimensions along which a tensor is cut, and where the chunks that have elements begin and end in them."""
    whole = tuple(shape)
    axes: set[int] = set()
    boxes: list[tuple[Ints, Ints]] = []
    for offsets, sizes in chunks:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise NotTiled("its chunks have another number of dimensions than the tensor")
        ends = tuple(map(int.__add__, offsets, sizes))
        if any(map(int.__gt__, ends, whole)):
            raise NotTiled("its chunks reach beyond its end")
        if 0 not in sizes:
            axes.update(axis for axis, size in enumerate(sizes) if size != whole[axis])
            boxes.append((offsets, ends))
    kept = sorted(axes)
    if len(kept) == len(whole):
        return kept, boxes
    return kept, [(tuple(begins[axis] for axis in kept), tuple(ends[axis] for axis in kept)) for begins, ends in boxes]
