"""What a checkpoint consists of, whoever wrote it: items, their chunks, and where these are stored; and whether chunks
tile their tensor: no element is missing, and none is there twice.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, groupby, product
from typing import NamedTuple

from streamxf.budget import Steps, TooMuch
from streamxf.errors import MetadataError
from streamxf.format.limits import MAX_NUMBER, MAX_PATH, MAX_STEP, MAX_STEPS

_BY_SIZE = {
    1: "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "uint16 int16 float16 bfloat16",
    4: "uint32 int32 float32 complex32",
    8: "uint64 int64 float64 complex64",
    16: "complex128",
}

ITEMSIZES = {name: size for size, names in _BY_SIZE.items() for name in names.split()}
"""Bytes of an element, by the dtype's name as torch has it without ``torch.``."""

WITHOUT_ELEMENTS = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}
    | {"quint8", "qint8", "qint32", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"}
    | {"bcomplex32"}  # two of bfloat16, from torch 2.14 on
)
"""Other dtypes of torch: tensors of these are stored as ``torch.save`` writes them."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)


def is_dtype_name(text: object) -> bool:
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def elements_size(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * ITEMSIZES[dtype]


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major array, as torch gives them: a dimension without elements counts as one."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


Path = tuple[str | int, ...]  # where an item stands in the nested state dict: keys and positions, the outermost first


def is_path(path: object) -> bool:
    return (
        type(path) is tuple
        and 1 <= len(path) <= MAX_STEPS
        and all(type(step) is str or (type(step) is int and 0 <= step <= MAX_STEP) for step in path)
    )


# which no writer puts into a path: `%`, `?` and `#` mean something else in a URL, so `%2e%2e/` leads out over HTTP
_STRANGE = re.compile(r"[\x00-\x1f\x7f-\x9f\\%?#\ud800-\udfff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SHOWN = 120


class Place(NamedTuple):
    """Where the bytes of an item, or of one chunk, are stored: ``file[at : at + size]``.

    - `file`: path relative to the checkpoint.
    - `descriptors`: of what the data passed on save, in that order, as the metadata has them. Stream transforms have a
      ``!`` before them where the metadata tells them from codecs.
    - `sha256`: T of the container, where the containers are hashed.
    - `number`: that of the container, among those of its writer, where an index says it.
    """

    file: str
    at: int
    size: int
    descriptors: tuple[str, ...]
    sha256: bytes | None = None
    number: int | None = None

    @property
    def chain(self) -> tuple[str, ...]:
        """The descriptors without their fragments and marks, as in ``("streamxf.zstd/1", "streamxf.checksum/1")``."""
        return _chain(self.descriptors)


@lru_cache(256)
def _chain(descriptors: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text.partition("#")[0].removeprefix("!") for text in descriptors)


class Chunk(NamedTuple):
    """A shard of a tensor.

    - `offset`, `shape`: in elements.
    - `framed`: whether the stream is what ``torch.save`` writes for the shard, and not its elements alone.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    place: Place
    framed: bool

    def reaches(self, begins: Sequence[int], ends: Sequence[int]) -> bool:
        for at, size, begin, end in zip(self.offset, self.shape, begins, ends, strict=True):
            if at >= end or at + size <= begin:
                return False
        return True


@dataclass(frozen=True, slots=True)
class TensorItem:
    """A tensor.

    - `dtype`: as torch names it, ``"bfloat16"``.
    - `path`: its place in the nested state dict, if the planner flattened one.
    - `properties`: what else DCP records: ``requires_grad``, ``pin_memory``, ``memory_format``, ``layout``, where they
      are not those of a plain tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    path: Path | None = None
    properties: Mapping[str, bool | str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the elements; 0 for a dtype whose element size the format does not know."""
        return math.prod(self.shape) * ITEMSIZES.get(self.dtype, 0)

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(chunk.place for chunk in self.chunks)

    @property
    def stored_bytes(self) -> int:
        return sum(chunk.place.size for chunk in self.chunks)

    def overlapping(self, boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[int, Chunk]]:
        """The chunks that reach into one of the boxes, given by offset and shape, with their numbers. As DCP sees it, a
        box without elements that lies inside a chunk overlaps it. Raises ValueError for boxes of other dimensions.
        """
        spans = [(begins, tuple(map(int.__add__, begins, sizes))) for begins, sizes in boxes]
        return [pair for pair in enumerate(self.chunks) if any(pair[1].reaches(*span) for span in spans)]


@dataclass(frozen=True, slots=True)
class ObjectItem:
    """An object, as ``torch.save`` writes it; `path` as in `TensorItem`."""

    name: str
    place: Place
    path: Path | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        return (self.place,)

    @property
    def stored_bytes(self) -> int:
        return self.place.size


Item = TensorItem | ObjectItem


def check_text(text: str) -> str:
    if not text.isascii() and _SURROGATE.search(text):
        raise MetadataError("a string is not valid Unicode")
    return text


def check_name(name: object) -> str:
    if not isinstance(name, str) or not name or (not name.isascii() and _SURROGATE.search(name)):
        raise MetadataError("the metadata has an item whose name is empty, not a string, or not valid Unicode")
    return name


def check_path(path: object) -> str:
    """Return `path` if it stays inside the checkpoint; raises MetadataError."""
    if not isinstance(path, str) or not 1 <= len(path) <= MAX_PATH:  # and not shown: its repr may take for ever
        raise MetadataError("the metadata names a file outside the checkpoint: its path is not a string, or too long")
    parts = path.split("/")
    if _STRANGE.search(path) or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        raise MetadataError(f"the metadata names a file outside the checkpoint: {ascii(path)[:_SHOWN]}")
    return path


# -- tiling ------------------------------------------------------------------------------------------------
# The signed corners of a box are its corners, each with the sign (-1)^(number of coordinates that are upper ends). They
# are the box's mixed derivative, so they determine it, and they add up as boxes do: boxes tile a tensor exactly when
# their signed corners add up to those of the tensor, in any number of dimensions. Sorting finds those that meet.
# Boxes without elements have no derivative, and dimensions that every chunk spans whole need not be looked at.

MAX_CUT_DIMS = 6  # dimensions along which one tensor is cut into chunks

MAX_CORNERS = 2**20  # corners of all chunks of one tensor, in the dimensions along which it is cut

MAX_RANK_CHUNKS = 1024  # chunks of one tensor in a rank's own metadata: each is compared with its neighbours

_MAX_GROUP = 64  # chunks that no dimension parts into groups
_MAX_LEVELS = 16  # of groups in groups
_STRANGE_CUT = "its {} chunks are cut as no writer cuts a tensor: comparing them takes too long"

Ints = Sequence[int]
Span = tuple[Ints, Ints]  # offsets and sizes
Spans = tuple[tuple[int, int], ...]  # where a box begins and ends, along each dimension


def check_offsets(chunks: Sequence[Chunk]) -> None:
    """Check that no two have the same offset; raises MetadataError."""
    offsets = sorted([chunk.offset for chunk in chunks])  # in a set all may have one hash: numbers have none of ours
    if any(map(operator.eq, offsets, offsets[1:])):
        raise MetadataError("the metadata is malformed: two chunks have the same offset")


def check_tiles(shape: Ints, chunks: Sequence[Span], steps: Steps | None = None) -> None:
    """Check that `chunks` lie in a tensor of `shape` and tile it. Raises MetadataError if they do not, or are cut in a
    way beyond the limits, or take more than what is left of `steps`.
    """
    _check_elements(shape)
    whole = len(chunks) == 1 and tuple(chunks[0][1]) == tuple(shape) and tuple(chunks[0][0]) == (0,) * len(shape)
    if whole or _is_grid(shape, chunks):
        return
    axes, boxes = _cut(shape, chunks)
    if _beyond_limits(len(axes), len(boxes)):
        raise MetadataError(
            f"its {len(boxes)} chunks are cut along {len(axes)} dimensions; at most {MAX_CUT_DIMS} dimensions and "
            f"{MAX_CORNERS} corners are allowed"
        )
    _spend(steps, (len(boxes) << len(axes)) // 2, chunks)
    signed = [(tuple(zip(begins, ends, strict=True)), 1) for begins, ends in boxes]
    if all(shape):
        signed.append((tuple((0, shape[axis]) for axis in axes), -1))
    if not _cancel(signed):
        raise MetadataError("its chunks leave out a part of it, or cover one twice")


def check_apart(shape: Ints, chunks: Sequence[Span], steps: Steps | None = None) -> None:
    """Check that `chunks` lie in a tensor of `shape` and do not overlap; they may leave parts out. Raises MetadataError
    if they do, or are more than a rank may have, or take more than what is left of `steps`.
    """
    _check_elements(shape)
    count = sum(0 not in sizes for _, sizes in chunks)
    if count > MAX_RANK_CHUNKS:
        raise MetadataError(f"a rank has {count} chunks of it; {MAX_RANK_CHUNKS} are allowed")
    if overlap(shape, chunks, steps):
        raise MetadataError("its chunks overlap")


def overlap(shape: Ints, chunks: Sequence[Span], steps: Steps | None = None) -> bool:
    """Whether two chunks share an element. Raises MetadataError if a chunk reaches beyond the tensor's end, or that
    takes more than what is left of `steps`.
    """
    axes, boxes = _cut(shape, chunks)
    if len(boxes) < 2:
        return False
    if not axes:
        return True
    groups = [(boxes, _MAX_LEVELS)]
    while groups:
        group, levels = groups.pop()
        for axis in range(len(axes)):
            _spend(steps, len(group), chunks)
            if len(parts := _parted(group, axis)) > 1:
                groups += [(part, levels - 1) for part in parts if len(part) > 1]
                break
        else:
            if any(_share(one, other) for one, other in combinations(group[:_MAX_GROUP], 2)):
                return True
            levels = 0 if len(group) > _MAX_GROUP else levels
        if not levels:
            raise MetadataError(_STRANGE_CUT.format(len(chunks)))
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


def _share(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> bool:
    return all(map(operator.lt, one[0], other[1])) and all(map(operator.lt, other[0], one[1]))


def _spend(steps: Steps | None, count: int, chunks: Sequence[Span]) -> None:
    try:
        (steps or Steps(64 * len(chunks))).spend(count)
    except TooMuch:
        raise MetadataError(_STRANGE_CUT.format(len(chunks))) from None


def _check_elements(shape: Ints) -> None:
    if math.prod(size or 1 for size in shape) > MAX_NUMBER:
        raise MetadataError("it has more elements than a tensor can have")


def _is_grid(shape: Ints, chunks: Sequence[Span]) -> bool:
    """Whether `chunks` are the parts of a tensor that is cut along each dimension as a whole, within the limits, and
    none of them empty. That is what most are, and needs no more than sorting them.
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
    if math.prod(map(len, cuts)) != len(chunks) or _beyond_limits(sum(len(each) > 1 for each in cuts), len(chunks)):
        return False
    return sorted(tuple(offsets) for offsets, _ in chunks) == [*product(*cuts)]


def _beyond_limits(dims: int, count: int) -> bool:
    return dims > MAX_CUT_DIMS or (dims > 1 and count << dims > MAX_CORNERS)


def _cut(shape: Ints, chunks: Iterable[Span]) -> tuple[list[int], list[tuple[Ints, Ints]]]:
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


def _cancel(boxes: list[tuple[Spans, int]]) -> bool:
    """Whether the corners of boxes with signs add up to nothing: at each place along the first dimension, those of the
    boxes that begin or end there. So few are held at a time, however many there are.
    """
    groups = groupby(sorted(boxes), key=operator.itemgetter(0))
    left = [(spans, total) for spans, group in groups if (total := sum(sign for _, sign in group))]
    if not left or not left[0][0]:
        return not left
    places = sorted(
        [(at, spans[1:], way * sign) for spans, sign in left for at, way in zip(spans[0], (1, -1), strict=True)]
    )
    return all(
        _cancel([(rest, sign) for _, rest, sign in group]) for _, group in groupby(places, key=operator.itemgetter(0))
    )
