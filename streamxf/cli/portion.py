"""A state dict of bounded size that represents some data: what ``bench`` saves and loads."""

from __future__ import annotations

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

_SPREAD = 0.02  # of weights as transformers are initialized
_SQUARE = 4096
_MOST = 64  # tensors, where these hold enough: many small parts of tensors would take longer than they do whole


def portion_of(path: str, keys: KeyRing, size: int, progress: Progress | None = None) -> State:
    """The first rows of tensors from all over a checkpoint of any format, `size` bytes together or all that there is.

    Raises ParameterError if no tensor has data.
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
    """Weights in bf16 as a model is initialized, of `size` bytes; at least one element, and no half ones."""
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
    """The same share of each tensor. The largest one comes last, and gets what rounding to rows left over."""
    full = [item for item in items if item.size]
    fewer = full[:: -(-len(full) // _MOST) or 1]
    if sum(item.size for item in fewer) >= size:
        full = fewer
    full.sort(key=lambda item: item.size)
    left, total = size, sum(item.size for item in full)
    for item in full:
        lengths = _lengths(item.shape, left / total)
        total -= item.size
        box = Box(item, (0,) * len(lengths), lengths)
        if box.size <= left:
            yield box
            left -= box.size


def _lengths(shape: tuple[int, ...], share: float) -> tuple[int, ...]:
    """The shape of what is taken of a tensor: as many rows as make up a share of it, and at least a part of one."""
    if share >= 1 or not shape:
        return shape
    rows = int(shape[0] * share)
    return (rows, *shape[1:]) if rows else (1, *_lengths(shape[1:], share * shape[0]))
