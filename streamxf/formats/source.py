"""`Source`: a checkpoint of any format, opened for reading box by box, so that no tensor is ever held whole."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from streamxf.errors import ParameterError
from streamxf.formats.contents import Contents, Entry
from streamxf.proportion import Budget

BOX_BYTES = 16 * 2**20

Paths = Mapping[str, tuple[str | int, ...]]
"""From names to keys and positions, the outermost first."""


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor, to be read.

    Attributes
    ----------
    entry : Entry
    offsets, lengths : tuple of int
        In elements.
    """

    entry: Entry
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


class Source(abc.ABC):
    """An opened checkpoint; a context manager, which closes its files.

    Attributes
    ----------
    contents : Contents
    budget : Budget
        What may still be decoded, or compared, of it.
    paths : mapping of str to tuple
        Where each entry stands in the nested state dict that was saved, as DCP's ``planner_data`` says it; without
        entries that stand in no such place.
    """

    contents: Contents
    budget: Budget
    paths: Paths

    @abc.abstractmethod
    def read(self, boxes: Iterable[Box]) -> Iterator[torch.Tensor]:
        """Read boxes, in their order.

        Each comes as a contiguous CPU tensor of the box's shape and the entry's dtype, whose memory is the caller's to
        keep. Boxes are taken from the iterable as they are needed; a few of `BOX_BYTES` are in memory at a time.

        Raises
        ------
        StreamxfError
            With file, item and block, if something is not as it was stored.
        PolicyError
            If a tensor's elements are not stored one by one, and there are more of them than the budget has room for.
        """

    @abc.abstractmethod
    def load_object(self, entry: Entry) -> Any:
        """An object, unpickled with ``weights_only`` and nothing else; raises as `read`, and PolicyError."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close what is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_box(box: Box) -> None:
    """Raise ParameterError if a box is not inside of its tensor."""
    shape = box.entry.shape
    inside = box.entry.is_tensor and len(shape) == len(box.offsets) == len(box.lengths)
    places = zip(box.offsets, box.lengths, shape, strict=False)
    if not inside or any(start < 0 or length < 0 or start + length > size for start, length, size in places):
        raise ParameterError(
            f"the box of {box.lengths} at {box.offsets} is not inside of the tensor, which has the shape {shape}",
            item=box.entry.name,
        )


def boxes_of(entry: Entry, itemsize: int, limit: int = BOX_BYTES) -> Iterator[Box]:
    """Cut a tensor into boxes of at most `limit` bytes, in row-major order: one after the other, their elements are the
    tensor's.
    """
    yield from (Box(entry, *box) for box in _cut(entry.shape, max(1, limit // itemsize)))


def _cut(shape: tuple[int, ...], most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    if math.prod(shape) <= most:
        if math.prod(shape) or not shape:
            yield (0,) * len(shape), shape
        return
    inner = math.prod(shape[1:])
    if inner > most:
        for row in range(shape[0]):
            for offsets, lengths in _cut(shape[1:], most):
                yield (row, *offsets), (1, *lengths)
        return
    step = most // inner
    for start in range(0, shape[0], step):
        rest = (0,) * (len(shape) - 1)
        yield (start, *rest), (min(step, shape[0] - start), *shape[1:])
