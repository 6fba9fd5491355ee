"""Tensors as `BoxReader` reads them, and a checkpoint that lies in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from streamxf.budget import Budget
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.elements import Elements
from streamxf.checkpoint.reading import BoxReader
from streamxf.format.items import Chunk, Item, ObjectItem, Place, TensorItem, unsigned
from streamxf.formats.contents import Contents, Format
from streamxf.storage.opening import open_storage
from streamxf.stream.reader import MemoryBlocks

NOWHERE = Place("memory", 0, 0, ())


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def elements_of(tensor: torch.Tensor) -> Any:
    """A tensor's elements as unsigned numbers, or complex ones of 16 bytes."""
    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    if not len(flat):
        return np.empty(tensor.shape, unsigned(tensor.itemsize))
    return flat.view(torch.uint8).numpy().view(unsigned(tensor.itemsize)).reshape(tensor.shape)


class Memory(BoxReader):
    """A flat state dict as an opened checkpoint.

    Attributes
    ----------
    largest : int
        Bytes of the largest box that was read.
    refused : dict of str to Exception
        What loading an object, or reading a tensor, raises, by its name.
    """

    def __init__(self, state: Mapping[str, Any], path: str = "memory") -> None:
        self.storage = open_storage(path)
        self._state = state
        self.largest = 0
        self.refused: dict[str, Exception] = {}
        self.stored: dict[str, Item] = {name: item_of(name, value) for name, value in state.items()}
        self.contents = Contents(path, Format.TORCH, self.stored, {})
        self.access = Access()

    @property
    def budget(self) -> Budget:
        return Budget(1, 2**60)

    def elements(self, item: TensorItem, chunk: Chunk) -> Elements:
        if item.name in self.refused:
            raise self.refused[item.name]
        data = elements_of(self._state[item.name]).reshape(-1).view(np.uint8).data
        return Elements(MemoryBlocks(data), 0, self._state[item.name].itemsize, item.shape)

    def jobs(self, box: Any, out: Any) -> Any:
        self.largest = max(self.largest, box.size)
        return super().jobs(box, out)

    def label(self, file: str) -> str:
        return file

    def load_object(self, name: str) -> Any:
        if name in self.refused:
            raise self.refused[name]
        return self._state[name]

    def part(self, tensors: Mapping[str, TensorItem]) -> Callable[[Access], Memory]:
        state = {name: self._state[item.name] for name, item in tensors.items()}
        return lambda access: Memory(state)

    def close(self) -> None:
        """Nothing is open."""


def item_of(name: str, value: Any) -> Item:
    if not isinstance(value, torch.Tensor):
        return ObjectItem(name, NOWHERE, (name,))
    shape = tuple(value.shape)
    place = NOWHERE._replace(size=math.prod(shape) * value.itemsize)
    return TensorItem(name, dtype_name(value), shape, (Chunk((0,) * len(shape), shape, place, False),), (name,))
