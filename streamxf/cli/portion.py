"""A state dict of bounded size that represents some data: what ``bench`` saves and loads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.handles import as_torch
from streamxf.checkpoint.reading import Box
from streamxf.checkpoint.storage import Storage
from streamxf.cli.timing import State
from streamxf.errors import ParameterError
from streamxf.format.items import TensorItem
from streamxf.formats.opening import open_source
from streamxf.keys import KeyRing
from streamxf.progress import Progress

_GOLDEN = (math.sqrt(5) - 1) / 2
_SPREAD = 0.02  # of weights as transformers are begun with
_SQUARE = 4096
_SHARES = 8  # where there are enough tensors, none is more than this part of the whole


def portion_of(path: str, keys: KeyRing, size: int, progress: Progress | None = None) -> State:
    """Tensors of a checkpoint of any format, up to `size` bytes of them, from all over it; of the largest ones, rows.

    Raises
    ------
    ParameterError
        If it has no tensor with data.
    StreamxfError, OSError
        If it cannot be read.
    """
    with open_source(Storage.of(path), Access.of(keys)) as reader:
        boxes = list(_chosen([item for item in reader.items.values() if isinstance(item, TensorItem)], size))
        if not boxes:
            raise ParameterError("it has no tensor with data, so there is nothing to save", file=path)
        if progress is not None:
            progress.expect(sum(box.size for box in boxes))
        state: State = {}
        for box, elements in zip(boxes, reader.read_boxes(boxes), strict=True):
            state[box.item.name] = as_torch(elements, box.item.dtype)
            if progress is not None:
                progress.advance(box.size)
        return state


def random_weights(size: int) -> State:
    """Weights in bf16 as a model begins with them, of `size` bytes; at least one element, and no half ones."""
    generator = torch.Generator().manual_seed(0)
    rows, rest = divmod(max(1, size // 2), _SQUARE)
    shapes = [(min(_SQUARE, rows - first), _SQUARE) for first in range(0, rows, _SQUARE)]
    if rest:
        shapes.append((1, rest))
    return {
        f"layers.{number}.weight": (torch.randn(shape, generator=generator) * _SPREAD).to(torch.bfloat16)
        for number, shape in enumerate(shapes)
    }


def _chosen(items: list[TensorItem], size: int) -> Iterator[Box]:
    """The first rows of tensors from all over the checkpoint, in the order in which a golden ratio leads through it."""
    full = [item for item in items if item.size]
    order = sorted(range(len(full)), key=lambda number: (number + 1) * _GOLDEN % 1)
    most = max(size / _SHARES, _level([item.size for item in full], size))
    left = size
    spare = 0.0  # what rounding to rows left of the shares of those before
    for number in order:
        item = full[number]
        whole = item.size
        room = min(left, whole, most + spare)
        lengths = _lengths(item.shape, room / whole)
        box = Box(item, (0,) * len(lengths), lengths)
        taken = box.size
        if 0 < taken <= left:
            yield box
            left -= taken
            spare = max(0.0, min(whole, most + spare) - taken)


def _level(sizes: list[int], total: int) -> float:
    """The most that each may contribute for all to come to `total`; infinite if they have less together."""
    left: float = total
    for number, size in enumerate(sorted(sizes)):
        share = left / (len(sizes) - number)
        if size > share:
            return share
        left -= size
    return math.inf


def _lengths(shape: tuple[int, ...], share: float) -> tuple[int, ...]:
    """The shape of what is taken of a tensor: as many rows as make up a share of it, and at least a part of one."""
    if share >= 1 or not shape:
        return shape
    rows = int(shape[0] * share)
    return (rows, *shape[1:]) if rows else (1, *_lengths(shape[1:], share * shape[0]))
