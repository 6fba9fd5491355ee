"""What a checkpoint consists of, whoever wrote it: items, their chunks, and where these are stored; and whether chunks
tile their tensor: no element is missing, and none is there twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from streamxf.errors import MetadataError
from streamxf.format.limits import MAX_INT, MAX_PATH

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


Path = tuple[str | int, ...]  # where an item stands in the nested state dict: keys and positions, the outermost first

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
    """

    file: str
    at: int
    size: int
    descriptors: tuple[str, ...]
    sha256: bytes | None = None

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
# their signed corners add up to those of the tensor, in any number of dimensions. That takes one pass over the chunks.
# Boxes without elements have no derivative, and dimensions that every chunk spans whole need not be looked at.

MAX_CUT_DIMS = 6  # dimensions along which one tensor is cut into chunks

MAX_CORNERS = 2**20  # corners of all chunks of one tensor, in the dimensions along which it is cut

MAX_RANK_CHUNKS = 1024  # chunks of one tensor in a rank's own metadata: each is compared with its neighbours

Ints = Sequence[int]
Span = tuple[Ints, Ints]  # offsets and sizes


def check_tiles(shape: Ints, chunks: Sequence[Span]) -> None:
    """Check that `chunks` lie in a tensor of `shape` and tile it. Raises MetadataError if they do not, or are cut in a
    way beyond the limits.
    """
    _check_elements(shape)
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


def check_apart(shape: Ints, chunks: Sequence[Span]) -> None:
    """Check that `chunks` lie in a tensor of `shape` and do not overlap; they may leave parts out. Raises MetadataError
    if they do, or are more than a rank may have.
    """
    _check_elements(shape)
    count = sum(0 not in sizes for _, sizes in chunks)
    if count > MAX_RANK_CHUNKS:
        raise MetadataError(f"a rank has {count} chunks of it; {MAX_RANK_CHUNKS} are allowed")
    if overlap(shape, chunks):
        raise MetadataError("its chunks overlap")


def overlap(shape: Ints, chunks: Sequence[Span]) -> bool:
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


def _check_elements(shape: Ints) -> None:
    if math.prod(size or 1 for size in shape) > MAX_INT:
        raise MetadataError("it has more elements than a tensor can have")


def _is_row(shape: Ints, chunks: Sequence[Span]) -> bool:
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
