"""The layout of a file that is to be written: tensors' elements, and the bytes around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from streamxf.checkpoint.elements import Array
from streamxf.checkpoint.reading import Box, BoxReader, boxes_of
from streamxf.format.items import TensorItem

_WINDOW = 2**20  # bytes that are read at once of the item whose parts are all over the file


class Run(NamedTuple):
    """A tensor's elements, from `start` in a file; `order` has its dimensions, the slowest in the file first, and is
    empty for row-major order.
    """

    start: int
    item: TensorItem
    order: tuple[int, ...] = ()

    def boxes(self) -> Iterator[Box]:
        order = self.order or tuple(range(len(self.item.shape)))
        turned = replace(self.item, shape=tuple(self.item.shape[dim] for dim in order))
        places = [order.index(dim) for dim in range(len(order))]
        for box in boxes_of(turned):
            offset, lengths = (tuple(sides[place] for place in places) for sides in (box.offset, box.lengths))
            yield Box(self.item, offset, lengths)


@dataclass(frozen=True)
class NewFile:
    """A file that is to be written: tensors in the order of their places, and the bytes around them, which an item
    holds as uint8.

    - `name`: its path in the checkpoint's folder; of a single file, its name.
    - `mode`: its permissions, which the umask may restrict; None for the usual ones.
    """

    name: str
    runs: Sequence[Run]
    rest: bytes | TensorItem | None
    mode: int | None = None

    @property
    def rest_size(self) -> int:
        return self.rest.size if isinstance(self.rest, TensorItem) else len(self.rest or b"")

    @property
    def size(self) -> int:
        return self.rest_size + sum(run.item.size for run in self.runs)


def pieces(reader: BoxReader, file: NewFile) -> Iterator[memoryview]:
    """A file's bytes; each piece is valid until the next."""
    arrays = reader.read_boxes(box for run in file.runs for box in run.boxes())
    rest = file.rest if isinstance(file.rest, TensorItem) else None
    windows = reader.read_boxes(boxes_of(rest, _WINDOW) if rest is not None else ())
    window = memoryview(file.rest if isinstance(file.rest, bytes) else b"")
    at = 0
    for run in (*file.runs, None):
        left = (run.start if run is not None else file.size) - at
        while left:
            window = window or _bytes_of(next(windows))
            part, window = window[:left], window[left:]
            left -= len(part)
            yield part
        if run is not None:
            for _ in run.boxes():
                array = next(arrays)
                yield _bytes_of(array.transpose(run.order) if run.order else array)
            at = run.start + run.item.size


def _bytes_of(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
