"""A state dict as a source: whatever tensors it holds in memory, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from streamxf.errors import ParameterError, UnsupportedError
from streamxf.torch_private import ShardedTensor, is_traceable_wrapper_subclass
from streamxf.tuning.sample import Part, Span, identity_of


class StateDict:
    """The tensors of a state dict, which may be nested; of sharded ones, the shards on this rank.

    Anything else is left out: compared with the tensors it is negligible.
    """

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self._tensors: list[torch.Tensor] = []
        self.parts: list[Part] = []
        for name, tensor in _tensors_in(state, ""):
            for piece in _memory_of(tensor, name):
                dtype, shape = str(piece.dtype).removeprefix("torch."), tuple(piece.shape)
                identity = identity_of(name, dtype, (0,) * len(shape), shape, shape)
                self._tensors.append(piece)
                self.parts.append(Part(name, shape, piece.element_size(), identity))

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        found = []
        for span in spans:
            cut = tuple(slice(start, start + length) for start, length in zip(span.offset, span.lengths, strict=True))
            box = self._tensors[span.part][cut].resolve_conj().resolve_neg().contiguous()  # as it is stored
            raw = box.int_repr() if box.is_quantized else box
            found.append(raw.reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
        return found


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
