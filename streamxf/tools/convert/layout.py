"""What stands in a file that is to be written, before any tensor is read: bytes, and runs of tensors' elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from streamxf.checkpoint.elements import Array
from streamxf.checkpoint.reading import Box, BoxReader, boxes_of
from streamxf.format.items import TensorItem

_WINDOW = 2**20  # bytes that are read at once of an item whose parts stand all over a file


class Run(NamedTuple):
    """A tensor's elements.

    Attributes
    ----------
    item : TensorItem
    order : tuple of int
        Its dimensions, the one that changes slowest in the file first.
    """

    item: TensorItem
    order: tuple[int, ...]

    @classmethod
    def of(cls, item: TensorItem) -> Run:
        """All of it, in row-major order."""
        return cls(item, tuple(range(len(item.shape))))

    def boxes(self) -> Iterator[Box]:
        """What to read, one after the other."""
        turned = replace(self.item, shape=tuple(self.item.shape[dim] for dim in self.order))
        places = [self.order.index(dim) for dim in range(len(self.order))]
        for box in boxes_of(turned):
            offset, lengths = (tuple(sides[place] for place in places) for sides in (box.offset, box.lengths))
            yield Box(self.item, offset, lengths)


@dataclass(frozen=True)
class Draft:
    """A file that is to be written.

    Attributes
    ----------
    name : str
        Relative to the checkpoint's folder; where the file is the checkpoint, its name.
    segments : tuple
        What stands in it: bytes, runs of elements, and for a number so many of the next bytes of `rest`.
    rest : TensorItem or None
        A row of bytes.
    mode : int or None
        Its permissions, as far as the umask allows them; None for the usual ones.
    """

    name: str
    segments: tuple[bytes | Run | int, ...]
    rest: TensorItem | None = None
    mode: int | None = None

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(
            each.item.size if isinstance(each, Run) else each if isinstance(each, int) else len(each)
            for each in self.segments
        )


def pieces(reader: BoxReader, file: Draft) -> Iterator[memoryview]:
    """A file's bytes; each piece is valid until the next."""
    runs = [segment for segment in file.segments if isinstance(segment, Run)]
    arrays = reader.read_boxes(box for run in runs for box in run.boxes())
    windows = reader.read_boxes(boxes_of(file.rest, _WINDOW) if file.rest is not None else ())
    window = memoryview(b"")
    for segment in file.segments:
        if isinstance(segment, Run):
            for _ in segment.boxes():
                yield _bytes_of(next(arrays).transpose(segment.order))
        elif isinstance(segment, bytes):
            yield memoryview(segment)
        else:
            left = segment
            while left:
                window = window or _bytes_of(next(windows))
                part, window = window[:left], window[left:]
                left -= len(part)
                yield part


def _bytes_of(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
