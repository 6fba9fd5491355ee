"""Whether chunks tile their tensor: no element is missing, and none is there twice.

The signed corners of a box are its corners, each with the sign (-1)^(number of coordinates that are upper ends). They
are the box's mixed derivative, so they determine it, and they add up as boxes do: boxes tile a tensor exactly when
their signed corners add up to those of the tensor, in any number of dimensions. That takes one pass over the chunks.
Boxes without elements have no derivative, and dimensions that every chunk spans whole need not be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from streamxf.errors import MetadataError
from streamxf.format.limits import MAX_INT

MAX_CUT_DIMS = 6  # dimensions along which one tensor is cut into chunks

MAX_CORNERS = 2**20  # corners of all chunks of one tensor, in the dimensions along which it is cut

MAX_RANK_CHUNKS = 1024  # chunks of one tensor in a rank's own metadata: each is compared with its neighbours

Ints = Sequence[int]
Chunk = tuple[Ints, Ints]  # offsets and sizes


def check_tiles(shape: Ints, chunks: Sequence[Chunk]) -> None:
    """Check that `chunks` lie in a tensor of `shape` and tile it. Raises MetadataError if they do not, or are cut in a
    way beyond the limits.
    """
    _check_size(shape)
    if len(chunks) == 1 and tuple(chunks[0][1]) == tuple(shape) and tuple(chunks[0][0]) == (0,) * len(shape):
        return
    if _is_row(shape, chunks):
        return
    axes, boxes = _cut(shape, chunks)
    if len(axes) > MAX_CUT_DIMS or (len(axes) > 1 and len(boxes) << len(axes) > MAX_CORNERS):
        raise MetadataError(
            f"its {len(boxes)} chunks are cut along {len(axes)} dimensions; at most {MAX_CUT_DIMS} dimensions and "
            f"{MAX_CORNERS} corners are allowed"
        )
    corners: dict[tuple[int, ...], int] = {}
    for begins, ends in boxes:
        _add_corners(corners, begins, ends, 1)
    whole = tuple(shape[axis] for axis in axes)
    if all(shape):
        _add_corners(corners, (0,) * len(axes), whole, -1)
    if corners:
        raise MetadataError("its chunks leave out a part of it, or cover one twice")


def check_apart(shape: Ints, chunks: Sequence[Chunk]) -> None:
    """Check that `chunks` lie in a tensor of `shape` and do not overlap; they may leave parts out. Raises MetadataError
    if they do, or are more than a rank may have.
    """
    _check_size(shape)
    count = sum(0 not in sizes for _, sizes in chunks)
    if count > MAX_RANK_CHUNKS:
        raise MetadataError(f"a rank has {count} chunks of it; {MAX_RANK_CHUNKS} are allowed")
    if overlap(shape, chunks):
        raise MetadataError("its chunks overlap")


def overlap(shape: Ints, chunks: Sequence[Chunk]) -> bool:
    """Whether two chunks share an element. Raises MetadataError if a chunk reaches beyond the tensor's end."""
    axes, boxes = _cut(shape, chunks)
    if len(boxes) < 2:
        return False
    if not axes:
        return True
    # along the dimension that parts them best, only neighbours need to be compared
    axis = max(range(len(axes)), key=lambda axis: len({begins[axis] for begins, _ in boxes}))
    boxes.sort(key=lambda box: box[0][axis])
    open_boxes: list[tuple[Ints, Ints]] = []
    for begins, ends in boxes:
        open_boxes = [box for box in open_boxes if box[1][axis] > begins[axis]]
        for other_begins, other_ends in open_boxes:
            if all(
                begin < other_end and other_begin < end
                for begin, end, other_begin, other_end in zip(begins, ends, other_begins, other_ends, strict=True)
            ):
                return True
        open_boxes.append((begins, ends))
    return False


def _check_size(shape: Ints) -> None:
    if math.prod(size or 1 for size in shape) > MAX_INT:
        raise MetadataError("it has more elements than a tensor can have")


def _is_row(shape: Ints, chunks: Sequence[Chunk]) -> bool:
    """Whether `chunks` are the parts of a tensor that is cut along one dimension, none of them empty. That is what most
    are, and needs no more than a look at each dimension as a whole.
    """
    ndim = len(shape)
    if not chunks or any(len(offsets) != ndim or len(sizes) != ndim for offsets, sizes in chunks):
        return False
    cut: tuple[Ints, Ints] | None = None
    columns = zip(
        zip(*[offsets for offsets, _ in chunks], strict=True),
        zip(*[sizes for _, sizes in chunks], strict=True),
        strict=True,
    )
    for whole, (begins, lengths) in zip(shape, columns, strict=True):
        if lengths.count(whole) == len(chunks) and not any(begins):
            continue
        if cut is not None:
            return False
        cut = begins, lengths
        length = whole
    if cut is None:
        return False
    at = 0
    for begin, size in sorted(zip(*cut, strict=True)):
        if begin != at or size < 1:
            return False
        at += size
    return at == length


def _cut(shape: Ints, chunks: Iterable[Chunk]) -> tuple[list[int], list[tuple[Ints, Ints]]]:
    """The dimensions along which a tensor is cut, and where the chunks that have elements begin and end in them."""
    whole = tuple(shape)
    axes: set[int] = set()
    boxes: list[tuple[Ints, Ints]] = []
    for offsets, sizes in chunks:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise MetadataError("its chunks have another number of dimensions than the tensor")
        ends = tuple(map(int.__add__, offsets, sizes))
        if any(map(int.__gt__, ends, whole)):
            raise MetadataError("its chunks reach beyond its end")
        if 0 not in sizes:
            axes.update(axis for axis, size in enumerate(sizes) if size != whole[axis])
            boxes.append((offsets, ends))
    kept = sorted(axes)
    if len(kept) == len(whole):
        return kept, boxes
    return kept, [(tuple(begins[axis] for axis in kept), tuple(ends[axis] for axis in kept)) for begins, ends in boxes]


def _add_corners(corners: dict[tuple[int, ...], int], begins: Ints, ends: Ints, sign: int) -> None:
    signed: list[tuple[tuple[int, ...], int]] = [((), sign)]
    for begin, end in zip(begins, ends, strict=True):
        signed = [
            entry for corner, weight in signed for entry in (((*corner, begin), weight), ((*corner, end), -weight))
        ]
    for corner, weight in signed:
        total = corners.get(corner, 0) + weight
        if total:
            corners[corner] = total
        else:
            del corners[corner]  # inner corners cancel out, so few are held at a time
