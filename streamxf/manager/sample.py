"""Blocks that stand for all of a checkpoint: read and checked as in any load."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from streamxf.format.items import ITEMSIZES
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.reading import Box, BoxReader, TensorItem

BLOCK_BYTES = 1 << DEFAULT_BLOCK_LOG2  # that is how the writers cut streams
BLOCKS = 24

_GOLDEN = (math.sqrt(5) - 1) / 2

Ints = tuple[int, ...]
Region = tuple[Ints, Ints]


def read_sample(reader: BoxReader) -> None:
    """Read and check a checkpoint's sample, always the same, without what only torch can read. Raises as a load."""
    items = [item for item in reader.stored.values() if isinstance(item, TensorItem) and item.dtype in ITEMSIZES]
    shards = [(item, chunk) for item in items for chunk in item.chunks]
    boxes = []
    for number, (offset, lengths) in choose_regions([(chunk.shape, ITEMSIZES[item.dtype]) for item, chunk in shards]):
        item, chunk = shards[number]
        boxes.append(Box(item, tuple(map(int.__add__, chunk.offset, offset)), lengths))
    for _ in reader.read_boxes(filter(reader.is_plain, boxes)):
        pass


def choose_regions(shards: Sequence[tuple[Ints, int]]) -> list[tuple[int, Region]]:
    """Up to `BLOCKS` regions, of at most `BLOCK_BYTES` each, spread evenly over the bytes of all shards, which are
    given by shape and bytes of an element; each with its shard's number.

    All bytes are cut into `BLOCKS` stretches of the same length, and a position in each of them finds a region.
    """
    ends = list(accumulate(math.prod(shape) * itemsize for shape, itemsize in shards))
    total = ends[-1] if ends else 0
    regions: dict[tuple[int, Region], None] = {}
    for number in range(BLOCKS if total else 0):
        # Not the middle of each stretch: in a model of 24 equal layers that would be the same tensor every time.
        within = (number + 1) * _GOLDEN % 1
        position = min(int((number + within) / BLOCKS * total), total - 1)
        index = bisect_right(ends, position)
        shape, itemsize = shards[index]
        element = (position - (ends[index] - math.prod(shape) * itemsize)) // itemsize
        regions[index, region_at(shape, element, BLOCK_BYTES // itemsize)] = None
    return list(regions)


def region_at(shape: Ints, element: int, limit: int) -> Region:
    """The offset and the lengths of the region that holds an element, of those of at most `limit` elements that a
    tensor is cut into. Elements are counted in row-major order, and no dimension is zero.
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
