"""Which pieces of a source stand for all of it, and what each of them weighs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from streamxf.container.header import Identity
from streamxf.container.limits import DEFAULT_BLOCK_LOG2

BLOCK_BYTES = 1 << DEFAULT_BLOCK_LOG2  # that is how the writers cut streams
BLOCKS = 24

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Part:
    """A piece of a source that a save turns into a stream of its own: a tensor, a shard or a file.

    Attributes
    ----------
    name : str
        Its name in the state dict, or the file's path.
    dtype : str or None
        The name of its torch dtype, as `StreamInfo` has it; None for a file.
    shape : tuple of int
        In elements.
    itemsize : int
        Bytes of an element.
    identity : Identity or None
        What its container is bound to; None for a file.
    row : int or None
        Elements in a row, as `StreamInfo` has it.
    """

    name: str
    dtype: str | None
    shape: tuple[int, ...]
    itemsize: int
    identity: Identity | None = None
    row: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole part."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class Box:
    """A box of elements that are neighbours in row-major order.

    Attributes
    ----------
    offsets, lengths : tuple of int
        Where it begins and how far it reaches, in elements, for each dimension.
    """

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A block of the sample.

    Attributes
    ----------
    part : int
        The part's number in its source.
    box : Box
        At most `BLOCK_BYTES`.
    weight : float
        How many bytes of the source it stands for.
    """

    part: int
    box: Box
    weight: float


@dataclass(frozen=True)
class Block:
    """A block that was read.

    Attributes
    ----------
    item : str
        The name of its part.
    dtype, row
        As in `Part`.
    data : bytes
    weight : float
        As in `Place`.
    """

    item: str
    dtype: str | None
    data: bytes
    weight: float
    row: int | None = None


class Source(Protocol):
    """What a sample is taken from."""

    @property
    def parts(self) -> Sequence[Part]:
        """In the order in which they are saved, as far as that is known."""

    def read(self, places: Sequence[Place]) -> list[bytes]:
        """The bytes at `places`; nothing else is read, or copied from another device."""


def take_sample(source: Source) -> list[Block]:
    """Read the sample of a source; it is the same each time, and empty where the source has no bytes."""
    places = places_in(source.parts)
    parts = [source.parts[place.part] for place in places]
    return [
        Block(part.name, part.dtype, data, place.weight, part.row)
        for part, place, data in zip(parts, places, source.read(places), strict=True)
    ]


def places_in(parts: Sequence[Part]) -> list[Place]:
    """Up to `BLOCKS` places, spread evenly over the bytes of all parts.

    The source is cut into `BLOCKS` stretches of the same length, and a position in each of them finds a block. A small
    tensor gives a small block, and one that several positions meet weighs as much as all of them.
    """
    ends = list(accumulate(part.nbytes for part in parts))
    total = ends[-1] if ends else 0
    if not total:
        return []
    hits: dict[tuple[int, Box], int] = {}
    for number in range(BLOCKS):
        # Not the middle of each stretch: in a model of 24 equal layers that would be the same tensor every time.
        within = (number + 1) * _GOLDEN % 1
        position = min(int((number + within) / BLOCKS * total), total - 1)
        index = bisect_right(ends, position)
        part = parts[index]
        box = box_at(
            part.shape, (position - (ends[index] - part.nbytes)) // part.itemsize, BLOCK_BYTES // part.itemsize
        )
        hits[index, box] = hits.get((index, box), 0) + 1
    return [Place(index, box, count * total / BLOCKS) for (index, box), count in hits.items()]


def box_at(shape: tuple[int, ...], element: int, limit: int) -> Box:
    """The box that holds an element, of those that a tensor is cut into.

    Parameters
    ----------
    shape : tuple of int
        No dimension is zero.
    element : int
        Counted in row-major order.
    limit : int
        The most elements in a box; at least 1.
    """
    inner = math.prod(shape)
    for dim, length in enumerate(shape):
        inner //= length  # elements in one step along this dimension
        if inner <= limit:
            step = min(limit // inner, length)
            before, row = divmod(element // inner, length)
            start = row // step * step
            lead = _unravel(before, shape[:dim])
            rest = len(shape) - dim - 1
            return Box((*lead, start, *[0] * rest), (*[1] * dim, min(step, length - start), *shape[dim + 1 :]))
    return Box((), ())


def _unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found: list[int] = []
    for length in reversed(shape):
        index, position = divmod(index, length)
        found.append(position)
    return tuple(reversed(found))
