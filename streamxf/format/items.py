"""What a checkpoint consists of, whoever wrote it: items, their chunks, and where these are stored."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from streamxf.descriptor import RAW
from streamxf.errors import MetadataError, UnsupportedError
from streamxf.format.limits import MAX_NDIM, MAX_NUMBER, MAX_PATH, MAX_STEP, MAX_STEPS
from streamxf.format.tiling import check_tiles
from streamxf.lazy import pattern

_BY_SIZE = {
    1: "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "uint16 int16 float16 bfloat16",
    4: "uint32 int32 float32 complex32",
    8: "uint64 int64 float64 complex64",
    16: "complex128",
}

ITEMSIZES = {name: size for size, names in _BY_SIZE.items() for name in names.split()}
"""Bytes of an element, by the dtype's name as torch has it without ``torch.``."""

_OF_A_BYTE = {f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}
_OF_A_BYTE |= {"quint8", "qint8", "bits1x8", "bits2x4", "bits4x2", "bits8"}
_OTHERS = {"quint4x2": 0.5, "quint2x4": 0.25, "bits16": 2, "qint32": 4, "bcomplex32": 4}  # the last from torch 2.14 on
WITHOUT_ELEMENTS: dict[str, float] = {**dict.fromkeys(_OF_A_BYTE, 1), **_OTHERS}
"""Other dtypes of torch, with the bytes of an element: tensors of these are stored as ``torch.save`` writes them."""
DTYPES = WITHOUT_ELEMENTS | ITEMSIZES

_CODED = pattern(r"([a-z][a-z0-9_]{0,31}):(8|16|32|64|128)", re.ASCII)


def is_dtype_name(text: str) -> bool:
    return _CODED.fullmatch(f"{text}:8") is not None


def coded_dtype(dtype: str) -> str:
    """A dtype as it is stored, with the bits of an element; one that is not known here has them in its name."""
    return dtype if ":" in dtype or not dtype else f"{dtype}:{max(8, int(8 * DTYPES[dtype]))}"


def known_dtype(text: object) -> str | None:
    """The dtype that is stored as `text`; None if none can be, as of a known name with other bits."""
    match = _CODED.fullmatch(text) if isinstance(text, str) else None
    if match is None or (match[1] in ITEMSIZES and coded_dtype(match[1]) != match[0]):
        return None
    return match[1] if match[1] in DTYPES and coded_dtype(match[1]) == match[0] else match[0]


def stored_width(dtype: str) -> int:
    """Bytes of an element where these are stored and nothing else."""
    return int(coded_dtype(dtype).partition(":")[2]) // 8


def element_size(dtype: str) -> int:
    """Bytes of an element; 0 where only torch can read one."""
    return ITEMSIZES[dtype] if dtype in ITEMSIZES else stored_width(dtype) if ":" in dtype else 0


def elements_size(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * element_size(dtype)


def beyond_limits(shape: Sequence[int]) -> str:
    """Which limit of the format a tensor of this shape is beyond; "" for none."""
    if len(shape) > MAX_NDIM:
        return f"it has {len(shape)} dimensions, and a tensor of a streamxf checkpoint has at most {MAX_NDIM}"
    if (count := math.prod(size or 1 for size in shape)) > MAX_NUMBER:
        text = f"the product of its sizes, but for those of 0, is {count:,}"
        return f"{text}, and that of a tensor of a streamxf checkpoint at most {MAX_NUMBER:,}"
    return ""


def check_limits(name: str, shape: Sequence[int]) -> None:
    """Refuse to save a tensor that the format has no place for; raises UnsupportedError."""
    if text := beyond_limits(shape):
        raise UnsupportedError(f"the tensor cannot be saved: {text}. Reshape it, or leave it out", item=name)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major array, as torch gives them: a dimension without elements counts as one."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def boxes_of_run(shape: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, Ranges]]:
    """Split a run of elements of a row-major array into as few boxes as it takes, in order; each comes with its first
    element. A box of several rows of some dimension has all of the dimensions after that one.
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


def unsigned(itemsize: int) -> str:
    """NumPy's name for elements of so many bytes, which are only moved."""
    return "c16" if itemsize == 16 else f"u{itemsize}"


Ranges = tuple[tuple[int, int], ...]  # from where to where, in each dimension
Path = tuple[str | int, ...]  # where an item stands in the nested state dict: keys and positions, the outermost first


def is_path(path: object) -> bool:
    return (
        type(path) is tuple
        and 1 <= len(path) <= MAX_STEPS
        and all(type(step) is str or (type(step) is int and 0 <= step <= MAX_STEP) for step in path)
    )


# which no writer puts into a path: `%`, `?` and `#` mean something else in a URL, so `%2e%2e/` leads out over HTTP
_STRANGE = pattern(r"[\x00-\x1f\x7f-\x9f\\%?#\ud800-\udfff]")
_SURROGATE = pattern(r"[\ud800-\udfff]")
_SHOWN = 120


class Place(NamedTuple):
    """Where the bytes of an item, or of one chunk, are stored: ``file[at : at + size]``.

    - `file`: path relative to the checkpoint.
    - `descriptors`: of what the data passed on save, in that order, as the metadata has them. Stream transforms have a
      ``!`` before them where the metadata tells them from codecs.
    - `digest`: the ordinal of its first digest, where an index is signed.
    - `number`: that of the container, among those of its writer, where an index says it.
    - `crcs`: where an index says that there is no container, the CRC-32C of each MiB, as four bytes, little-endian.
    - `beneath`: of a difference the containers beneath, the newest first: file, at and size of each.
    - `span`: of a value, where it begins and ends in the stream, which other values may share; None of all else.
    """

    file: str
    at: int
    size: int
    descriptors: tuple[str, ...]
    digest: int | None = None
    number: int | None = None
    crcs: bytes | None = None
    beneath: tuple[tuple[str, int, int], ...] = ()
    span: tuple[int, int] | None = None

    @staticmethod
    def check_path(path: object) -> str:
        """Return `path` if it stays inside the checkpoint; raises MetadataError."""
        size = len(path.encode(errors="replace")) if isinstance(path, str) else 0
        if not isinstance(path, str) or not 1 <= size <= MAX_PATH:  # and not shown: its repr may take for ever
            raise MetadataError("the metadata names a file outside the checkpoint: its path is no string, or too long")
        parts = path.split("/")
        if _STRANGE.search(path) or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
            raise MetadataError(f"the metadata names a file outside the checkpoint: {ascii(path)[:_SHOWN]}")
        return path

    @property
    def container(self) -> tuple[Any, ...]:
        """What is the same for values of one container."""
        return self[:-1]

    @property
    def lower(self) -> Place:
        """Where the container is that lies beneath a difference; its number and digest are not those of this one."""
        (file, at, size), *rest = self.beneath
        return self._replace(file=file, at=at, size=size, beneath=tuple(rest))

    @property
    def files(self) -> Iterator[str]:
        """Its file, and those of what lies beneath."""
        yield self.file
        yield from (file for file, _, _ in self.beneath)

    @property
    def share(self) -> int:
        """Its bytes; of those that values share, about what a value takes."""
        return self.size if self.span is None else min(self.size, self.span[1] - self.span[0])

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

    @property
    def raw(self) -> bool:
        """Whether it is stored as its bare elements."""
        return self.place.crcs is not None and not self.framed

    @property
    def chain(self) -> tuple[str, ...]:
        """As `Place.chain`; ``("streamxf.raw/1",)`` if it is raw."""
        return (f"{RAW}/1",) if self.raw else self.place.chain


@dataclass(frozen=True, slots=True)
class TensorItem:
    """A tensor.

    - `dtype`: as torch names it, ``"bfloat16"``.
    - `path`: its place in the nested state dict, if the planner flattened one.
    - `properties`: ``requires_grad``, ``pin_memory``, ``memory_format``, ``layout``, where not those of a plain tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Sequence[Chunk]
    path: Path | None = None
    properties: Mapping[str, bool | str] = field(default_factory=dict)

    @classmethod
    def stored(cls, name: str, dtype: str, chunks: Any) -> TensorItem:
        """That of an index; `chunks` has `shape`, and `more()`, which reads its path and properties."""
        made = cls.__new__(cls)
        for member, value in ("name", name), ("dtype", dtype), ("shape", chunks.shape), ("chunks", chunks):
            object.__setattr__(made, member, value)
        return made

    if not TYPE_CHECKING:

        def __getattr__(self, member: str) -> Any:
            if member not in ("path", "properties"):
                raise AttributeError(member)
            for each, value in zip(("path", "properties"), self.chunks.more(), strict=True):
                object.__setattr__(self, each, value)
            return getattr(self, member)

    @staticmethod
    def merged(items: Sequence[Item]) -> Item | None:
        """What ranks have under one name as one item, with each shard once; None if they contradict each other."""
        first, chunks, seen = items[0], list[Chunk](), set[tuple[Any, ...]]()
        if isinstance(first, ObjectItem):
            return first if all(isinstance(item, ObjectItem) for item in items) else None
        for item in items:
            if not isinstance(item, TensorItem) or (item.dtype, item.shape) != (first.dtype, first.shape):
                return None
            chunks += [chunk for chunk in item.chunks if chunk[:2] not in seen]
            seen.update(chunk[:2] for chunk in item.chunks)
        return replace(first, chunks=tuple(chunks))

    @property
    def size(self) -> int:
        """Bytes of the elements; 0 for a dtype whose element size the format does not know."""
        return elements_size(self.dtype, self.shape)

    @property
    def width(self) -> float:
        """Bytes that torch takes for an element; 0 for a dtype that is not known."""
        return DTYPES.get(self.dtype, 0)

    @property
    def itemsize(self) -> int:
        """Bytes of an element; raises UnsupportedError if only torch can read them, in the frame of ``torch.save``."""
        if (size := element_size(self.dtype)) or not any(chunk.framed for chunk in self.chunks):
            return size or stored_width(self.dtype)
        raise UnsupportedError(f"elements of {self.dtype} can be loaded with torch only", item=self.name)

    @property
    def fits_numpy(self) -> bool:
        """Whether an array can hold its elements, by their size and the number of its dimensions."""
        return self.dtype in ITEMSIZES and len(self.shape) <= MAX_NDIM

    @property
    def beyond_limits(self) -> str:
        """Which limit of the format it is beyond; "" for none."""
        return beyond_limits(self.shape)

    def check_limits(self) -> None:
        """Refuse to save it if it is; raises UnsupportedError."""
        check_limits(self.name, self.shape)

    def check_tiles(self) -> None:
        """Check that its chunks tile it. Raises MetadataError if they do not, or if that takes too long to find out."""
        check_tiles(self.shape, [chunk[:2] for chunk in self.chunks])

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(chunk.place for chunk in self.chunks)

    @property
    def stored_bytes(self) -> int:
        return sum(chunk.place.size for chunk in self.chunks)

    def overlapping(
        self, boxes: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> list[tuple[int, tuple[tuple[int, ...], tuple[int, ...]]]]:
        """The numbers, offsets and shapes of the chunks that reach into one of the boxes, given by offset and shape. As
        DCP sees it, a box without elements that lies inside a chunk overlaps it. Raises ValueError for others."""
        spans = [(begins, tuple(map(int.__add__, begins, sizes))) for begins, sizes in boxes]
        borders = [{(0, 0), (end, end)} for end in self.shape]  # a box that ends where it begins there is in no chunk
        spans = [each for each in spans if not any(map(set.__contains__, borders, zip(*each, strict=True)))]
        if (near := getattr(self.chunks, "overlapping", None)) is not None:  # which need not look at all of them
            found = [near(*span) for span in spans]
            if None not in found:
                return sorted({pair[0]: pair for pairs in found for pair in pairs}.values())
        chunks = enumerate(self.chunks)
        return [(number, chunk[:2]) for number, chunk in chunks if any(chunk.reaches(*span) for span in spans)]


@dataclass(frozen=True, slots=True)
class ObjectItem:
    """An object: a value, or what ``torch.save`` writes of it; `path` as in `TensorItem`."""

    name: str
    place: Place
    path: Path | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        return (self.place,)

    @property
    def stored_bytes(self) -> int:
        return self.place.share


Item = TensorItem | ObjectItem


def check_text(text: str) -> str:
    if not text.isascii() and _SURROGATE.search(text):
        raise MetadataError("a string is not valid Unicode")
    return text


def check_name(name: object) -> str:
    if name == "":
        raise UnsupportedError(
            "an item has the empty name, as of a tensor under the key '' of a state dict, for which the format has no "
            "place: give it a name, and save it again. torch.load, safetensors and torch's own reader of DCP load it"
        )
    if not isinstance(name, str) or (not name.isascii() and _SURROGATE.search(name)):
        raise MetadataError("the metadata has an item whose name is not a string, or not valid Unicode")
    return name
