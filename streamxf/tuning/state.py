"""A state dict as a source: whatever tensors it holds in memory, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from streamxf.container.header import WRITER_ID_BYTES, Identity, Kind
from streamxf.dcp.save.datafile import row_length
from streamxf.dcp.tensors.payload import dense_order
from streamxf.errors import ParameterError, UnsupportedError
from streamxf.tuning.sample import Box, Part, Place


class StateDict:
    """The tensors of a state dict, which may be nested; of sharded ones, what lies on this rank.

    Anything that is no tensor is left out: beside the tensors it takes next to nothing.

    Parameters
    ----------
    state : mapping

    Raises
    ------
    UnsupportedError
        If it holds a tensor that DCP cannot save.
    ParameterError
        If it holds a tensor without data.
    """

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self._tensors: list[torch.Tensor] = []
        self.parts: list[Part] = []
        for name, tensor in _tensors_in(state, ""):
            for piece in _memory_of(tensor, name):
                # A tensor without gaps is sampled in the order of its memory, which is how it is stored.
                flat = piece if dense_order(piece) is None else _as_bytes(piece)
                identity = Identity(bytes(WRITER_ID_BYTES), Kind.TENSOR, (0,) * tensor.ndim, name)
                self._tensors.append(flat)
                dtype = str(tensor.dtype).removeprefix("torch.")
                row = row_length(piece.shape, tensor.dtype)
                self.parts.append(Part(name, dtype, tuple(flat.shape), flat.element_size(), identity, row))

    def read(self, places: Sequence[Place]) -> list[bytes]:
        return [_bytes_at(self._tensors[place.part], place.box) for place in places]


def _tensors_in(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, ShardedTensor):
        for shard in value.local_shards():
            yield path, shard.tensor
    elif isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors_in(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _tensors_in(item, f"{path}.{number}" if path else str(number))


def _memory_of(tensor: Any, name: str) -> Iterator[torch.Tensor]:
    """The plain tensors of this rank that hold a tensor's data."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        yield from _memory_of(tensor.to_local(), name)
    elif is_traceable_wrapper_subclass(tensor):
        for attribute in tensor.__tensor_flatten__()[0]:
            yield from _memory_of(getattr(tensor, attribute), name)
    elif tensor.layout != torch.strided:
        raise UnsupportedError(
            f"DCP cannot save a tensor of layout {tensor.layout}, so there is nothing to tune for it; save it as "
            "dense, or its indices and values",
            item=name,
        )
    elif tensor.is_meta:
        raise ParameterError("the tensor is on the meta device and has no data; tune a model that is loaded", item=name)
    else:
        yield tensor


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor without gaps, as bytes on its device, without a copy; conj, neg and the like are flags
    beside it, and stay away.
    """
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    start = tensor.storage_offset() * tensor.element_size()
    return whole[start : start + tensor.nbytes]


def _bytes_at(tensor: torch.Tensor, box: Box) -> bytes:
    slices = tuple(slice(start, start + length) for start, length in zip(box.offsets, box.lengths, strict=True))
    block: bytes = _as_bytes(tensor[slices].contiguous()).cpu().numpy().tobytes()
    return block
