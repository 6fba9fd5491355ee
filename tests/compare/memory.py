"""A checkpoint that lies in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from streamxf.formats.contents import Contents, Entry, Format
from streamxf.formats.source import Box, Source
from streamxf.proportion import Budget


class Memory(Source):
    """A flat state dict as a source.

    Attributes
    ----------
    largest : int
        Bytes of the largest box that was read.
    paths : dict
        Empty, and may be filled.
    refused : dict of str to Exception
        What loading an object raises, by its name.
    """

    def __init__(self, state: dict[str, Any], path: str = "memory") -> None:
        self._state = state
        self.largest = 0
        self.budget = Budget(1, 2**30)
        self.paths: dict[str, tuple[str | int, ...]] = {}
        self.refused: dict[str, Exception] = {}
        self.contents = Contents(path, Format.TORCH, {name: _entry(name, value) for name, value in state.items()}, {})

    def read(self, boxes: Iterable[Box]) -> Iterator[torch.Tensor]:
        for box in boxes:
            part = self._state[box.entry.name]
            for axis, (start, length) in enumerate(zip(box.offsets, box.lengths, strict=True)):
                part = part.narrow(axis, start, length)
            self.largest = max(self.largest, part.nbytes)
            yield part.clone(memory_format=torch.contiguous_format)

    def load_object(self, entry: Entry) -> Any:
        if entry.name in self.refused:
            raise self.refused[entry.name]
        return self._state[entry.name]

    def close(self) -> None:
        pass


def _entry(name: str, value: Any) -> Entry:
    if not isinstance(value, torch.Tensor):
        return Entry(name, None, (), None, ())
    dtype = str(value.dtype).removeprefix("torch.")
    return Entry(name, dtype, tuple(value.shape), math.prod(value.shape) * value.itemsize, ())
