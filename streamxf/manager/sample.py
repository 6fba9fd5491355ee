"""Blocks that stand for all of a checkpoint: read and checked as in any load."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import located
from streamxf.pipeline import run_jobs
from streamxf.reading import TensorItem

BLOCKS = 24

_GOLDEN = (math.sqrt(5) - 1) / 2


def read_sample(reader: Checkpoint) -> None:
    """Read and check a checkpoint's sample, always the same. Raises as a load."""
    run_jobs(_jobs(reader))


def _jobs(reader: Checkpoint) -> Iterator[tuple[Callable[[], None], int]]:
    items = (item for item in reader.stored.values() if isinstance(item, TensorItem))
    shards = [(item, chunk) for item in items for chunk in item.chunks]
    for number, places in choose_places([chunk.place.size for _, chunk in shards]).items():
        item, chunk = shards[number]
        blocks = reader.blocks(item, chunk)
        chosen = sorted({at * blocks.count // chunk.place.size for at in places})
        with (place := located(file=reader.label(chunk.place.file), item=item.name, doing="reading")):
            blocks.expect(*((index, index + 1) for index in chosen))
            for index in chosen:
                size = blocks.size_of(index)
                yield partial(place.run, partial(blocks.decoder(index), memoryview(bytearray(size)))), size


def choose_places(sizes: Sequence[int]) -> dict[int, list[int]]:
    """Up to `BLOCKS` places, spread evenly over all bytes of streams of these sizes: by a stream's number, its bytes.

    All bytes are cut into `BLOCKS` stretches of the same length, with a place in each.
    """
    ends, chosen = list(accumulate(sizes)), dict[int, list[int]]()
    total = ends[-1] if ends else 0
    for number in range(BLOCKS if total else 0):
        # Not the middle of each stretch: in a model of 24 equal layers that would be the same tensor every time.
        within = (number + 1) * _GOLDEN % 1
        position = min(int((number + within) / BLOCKS * total), total - 1)
        index = bisect_right(ends, position)
        chosen.setdefault(index, []).append(position - (ends[index] - sizes[index]))
    return chosen
