"""Which pieces of a source represent all of it, and with what weight; checkpoints and files as sources, of which only
these pieces are read, checked as in any load.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from streamxf.checkpoint.reading import Box, BoxReader
from streamxf.format.header import Identity, Kind
from streamxf.format.items import ITEMSIZES, TensorItem
from streamxf.format.limits import DEFAULT_BLOCK_LOG2, WRITER_ID_BYTES
from streamxf.storage.opening import open_storage

BLOCK_BYTES = 1 << DEFAULT_BLOCK_LOG2  # that is how the writers cut streams
BLOCKS = 24

GOLDEN = (math.sqrt(5) - 1) / 2

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A piece of a source that a save turns into a stream of its own: a tensor, a shard or a file.

    `name` is its name in the state dict, or the file's path; `identity`, what its container is bound to, is None for a
    file.
    """

    name: str
    shape: Ints
    itemsize: int
    identity: Identity | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


def identity_of(name: str, dtype: str, offset: Ints, shape: Ints, tensor_shape: Ints) -> Identity:
    """The identity that a save would give a shard, up to the writer's id."""
    kind = Kind.TENSOR if dtype in ITEMSIZES else Kind.FRAMED
    return Identity(bytes(WRITER_ID_BYTES), kind, name, dtype, offset, shape, tensor_shape)


class Span(NamedTuple):
    """A block of the sample: elements that are neighbours in row-major order, at most `BLOCK_BYTES` of them."""

    part: int  # its number in the source
    offset: Ints
    lengths: Ints
    weight: float  # how many bytes of the source it represents


@dataclass(frozen=True)
class Sample:
    """A block that was read, with the weight of its `Span`."""

    part: Part
    data: bytes
    weight: float


class Sampled(Protocol):
    """What a sample is taken from."""

    @property
    def parts(self) -> Sequence[Part]:
        """In the order in which they are saved, as far as that is known."""

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """The bytes of `spans`; nothing else is read, or copied from another device."""


def take_sample(source: Sampled) -> list[Sample]:
    """Read the sample of a source; it is the same each time, and empty where the source has no bytes."""
    spans = spans_in(source.parts)
    read = zip(spans, source.read(spans), strict=True)
    return [Sample(source.parts[span.part], data, span.weight) for span, data in read if data]


def spans_in(parts: Sequence[Part]) -> list[Span]:
    """Up to `BLOCKS` spans, spread evenly over the bytes of all parts.

    The source is cut into `BLOCKS` stretches of the same length, and a position in each of them finds a block. A small
    tensor gives a small block, and one that several positions meet weighs as much as all of them.
    """
    ends = list(accumulate(part.nbytes for part in parts))
    total = ends[-1] if ends else 0
    if not total:
        return []
    hits: dict[tuple[int, Ints, Ints], int] = {}
    for number in range(BLOCKS):
        # Not the middle of each stretch: in a model of 24 equal layers that would be the same tensor every time.
        within = (number + 1) * GOLDEN % 1
        position = min(int((number + within) / BLOCKS * total), total - 1)
        index = bisect_right(ends, position)
        part = parts[index]
        element = (position - (ends[index] - part.nbytes)) // part.itemsize
        hit = (index, *box_at(part.shape, element, BLOCK_BYTES // part.itemsize))
        hits[hit] = hits.get(hit, 0) + 1
    return [Span(*hit, count * total / BLOCKS) for hit, count in hits.items()]


def box_at(shape: Ints, element: int, limit: int) -> tuple[Ints, Ints]:
    """The offset and the lengths of the box that holds an element, of those of at most `limit` elements that a tensor
    is cut into. Elements are counted in row-major order, and no dimension is zero.
    """
    inner = math.prod(shape)
    for dim, length in enumerate(shape):
        inner //= length  # elements in one step along this dimension
        if inner <= limit:
            step = min(limit // inner, length)
            before, row = divmod(element // inner, length)
            start = row // step * step
            lead = map(int, np.unravel_index(before, shape[:dim])) if dim else ()
            rest = len(shape) - dim - 1
            return (*lead, start, *[0] * rest), (*[1] * dim, min(step, length - start), *shape[dim + 1 :])
    return (), ()


class StoredTensors:
    """The tensors of a checkpoint, shard by shard; of those whose elements only torch can read, `read` gives
    nothing. It closes the reader.
    """

    def __init__(self, reader: BoxReader) -> None:
        self._reader = reader
        self._shards: list[tuple[TensorItem, Ints]] = []
        self.parts: list[Part] = []
        for item in reader.stored.values():
            if isinstance(item, TensorItem) and item.dtype in ITEMSIZES:
                for chunk in item.chunks:
                    self._shards.append((item, chunk.offset))
                    identity = identity_of(item.name, item.dtype, chunk.offset, chunk.shape, item.shape)
                    self.parts.append(Part(item.name, chunk.shape, ITEMSIZES[item.dtype], identity))

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        boxes = []
        for span in spans:
            item, start = self._shards[span.part]
            boxes.append(Box(item, tuple(map(int.__add__, start, span.offset)), span.lengths))
        with self._reader as reader:
            plain = [reader.is_plain(box) for box in boxes]
            read = reader.read_boxes(box for box, is_plain in zip(boxes, plain, strict=True) if is_plain)
            return [next(read).tobytes() if is_plain else b"" for is_plain in plain]


class RawFile:
    """A file of any kind: bytes of unknown meaning."""

    def __init__(self, path: str) -> None:
        self._storage = open_storage(path)
        with self._storage.open(random=True) as file:
            self.parts = [Part(path, (file.size,), 1)]

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        with self._storage.open(random=True) as file:
            return [file.read(span.offset[0], span.lengths[0]) for span in spans]
