"""Handles: one item of a checkpoint, of which a part is read when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from streamxf.checkpoint.elements import Array
from streamxf.checkpoint.reading import Box, BoxReader, empty_array
from streamxf.errors import UnsupportedError
from streamxf.format.items import Chunk, ObjectItem, TensorItem

if TYPE_CHECKING:
    import torch

Framework = Literal["torch", "numpy"]


class TensorHandle:
    """A stored tensor. ``handle[...]`` reads all of it, ``handle[10:20, :, 3]`` the blocks that this part needs.
    `chunks` says how it was sharded, and where each shard is stored.
    """

    def __init__(self, reader: BoxReader, name: str, item: TensorItem, framework: Framework) -> None:
        self._reader = reader
        self._item = item
        self._framework = framework
        self.name = name
        self.dtype: str = item.dtype
        self.shape: tuple[int, ...] = item.shape
        self.chunks: tuple[Chunk, ...] = item.chunks

    @property
    def stored_bytes(self) -> int:
        return self._item.stored_bytes

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"TensorHandle({self.name!r}, {self.dtype}, {list(self.shape)})"

    def __getitem__(self, key: Any) -> torch.Tensor | Array:
        """Read a part, as indexing with integers, slices and an ellipsis does, in the checkpoint's framework.

        Raises
        ------
        IndexError
            If the part is not inside the tensor.
        StreamxfError
            With file, item and block, if something is not as it was stored.
        """
        parts = _parts(key, self.shape)
        spans = [part if isinstance(part, range) else range(part, part + 1) for part in parts]
        first = tuple(span[0] if span else 0 for span in spans)
        lengths = tuple(span[-1] - span[0] + 1 if span else 0 for span in spans)
        array = self._read(first, lengths)
        steps = tuple(
            slice(None, None, span.step) if isinstance(part, range) else 0
            for part, span in zip(parts, spans, strict=True)
        )
        made: Any = self._numpy(array) if self._framework == "numpy" else as_torch(array, self.dtype)
        return made[steps]  # type: ignore[no-any-return]

    def read(self) -> torch.Tensor | Array:
        return self[...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        made = self._numpy(self._read((0,) * len(self.shape), self.shape))
        return made if dtype is None else made.astype(dtype)

    def _read(self, offset: tuple[int, ...], lengths: tuple[int, ...]) -> Array:
        out = empty_array(self._item, lengths)
        self._reader.read_into(Box(self._item, offset, lengths), out)
        return out

    def _numpy(self, array: Array) -> Array:
        try:
            return array.view(np.dtype(self.dtype))
        except TypeError:
            pass
        try:
            import ml_dtypes

            return array.view(np.dtype(getattr(ml_dtypes, self.dtype)))
        except (ImportError, AttributeError):
            raise UnsupportedError(
                f"numpy has no {self.dtype}: install ml_dtypes, or read it with framework='torch'", item=self.name
            ) from None


class ObjectHandle:
    """A stored object."""

    def __init__(self, reader: BoxReader, name: str, item: ObjectItem) -> None:
        self._reader = reader
        self._item = item
        self.name = name

    @property
    def stored_bytes(self) -> int:
        return self._item.stored_bytes

    def __repr__(self) -> str:
        return f"ObjectHandle({self.name!r})"

    def read(self) -> Any:
        """The object, unpickled with ``weights_only``; imports torch. Raises PolicyError if it needs a class that is
        not allowed, StreamxfError if it is not as it was stored.
        """
        return self._reader.load_object(self.name)


def _parts(key: Any, shape: tuple[int, ...]) -> list[int | range]:
    """What is wanted in each dimension: one place, or a range of them."""
    keys: Sequence[Any] = key if isinstance(key, tuple) else (key,)
    given = [each for each in keys if each is not Ellipsis]
    if len(keys) - len(given) > 1:
        raise IndexError("an index has at most one ellipsis")
    if len(given) > len(shape):
        raise IndexError(f"{len(given)} indices for a tensor of {len(shape)} dimensions")
    at = next((at for at, each in enumerate(keys) if each is Ellipsis), len(given))
    missing = [slice(None)] * (len(shape) - len(given))
    return [_part(each, size) for each, size in zip([*given[:at], *missing, *given[at:]], shape, strict=True)]


def _part(key: Any, size: int) -> int | range:
    if isinstance(key, slice):
        part = range(*key.indices(size))
        if part.step < 0:
            raise IndexError("a step backwards is not supported, as in torch")
        return part
    if isinstance(key, bool) or not hasattr(key, "__index__"):
        raise IndexError(f"{key!r:.80} is not an integer, a slice or an ellipsis")
    place = key.__index__()
    if not -size <= place < size:
        raise IndexError(f"index {place} is out of bounds for a dimension of {size}")
    return int(place) % size


def as_torch(array: Array, dtype: str) -> torch.Tensor:
    """A contiguous array's memory as a tensor of `dtype`."""
    import torch

    wanted = getattr(torch, dtype)
    flat = array.reshape(-1).view(np.uint8)
    if not flat.size:
        return torch.empty(array.shape, dtype=wanted, device="cpu")
    return torch.from_numpy(flat).view(wanted).view(array.shape)
