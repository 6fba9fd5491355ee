"""Tensors as sources of bytes: their elements, row-major, block by block, and never the whole tensor at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from streamxf.buffers import flat_view
from streamxf.checkpoint.elements import Array, boxes_of_run, unsigned
from streamxf.dcp.frame import frame_of
from streamxf.dcp.save.staging import Staging
from streamxf.errors import UnsupportedError
from streamxf.format.header import Kind
from streamxf.format.items import ITEMSIZES
from streamxf.stream.encoder import ByteSource, Load, MemorySource

_STEP = 2**20
_PLAIN = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in the format."""
    return str(dtype).removeprefix("torch.")


def has_elements(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its elements and nothing else: torch's own kind, strided, of a dtype that the format has."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and dtype_name(tensor.dtype) in ITEMSIZES
    )


def check_storable(tensor: torch.Tensor) -> None:
    """Raise UnsupportedError for a tensor that DCP cannot save, or that has no data."""
    if tensor.device.type == "meta":
        raise UnsupportedError(
            "the tensor is on the device 'meta', so it has no data to save; allocate it first (to_empty), and fill it"
        )
    if tensor.layout != torch.strided:
        raise UnsupportedError(
            f"DCP cannot save a tensor of layout {tensor.layout}: a load would leave its target as it was. Save it as "
            "dense, or its indices and values"
        )


def source_of(tensor: torch.Tensor, staging: Staging) -> ByteSource:
    """The elements of a tensor that has nothing else."""
    tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        return _Strided(tensor)
    if tensor.device.type == "cpu":
        return MemorySource(memory_of(tensor))
    if staging.takes(tensor):
        return staging.source(tensor.reshape(-1))
    return _Strided(tensor)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    flat = tensor.reshape(-1)
    if flat.numel() < 2:  # whatever stride this has means nothing, but view() below insists on 1
        flat = flat.as_strided(flat.shape, (1,))
    return flat_view(flat.view(torch.uint8).numpy().data)


class _Strided:
    """A tensor whose elements do not stand in memory as they are stored; workers gather them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.size = tensor.numel() * tensor.element_size()
        self._tensor = tensor
        self._array: Array | None = None
        if tensor.device.type == "cpu":  # torch's copy_ would wake threads of its own, beside the workers
            self._array = array_of(tensor)

    def load(self, start: int, stop: int) -> Load:
        return _Gathered(self._tensor, self._array, start, stop)


class _Gathered:
    __slots__ = ("_array", "_start", "_stop", "_tensor")

    lent = False

    def __init__(self, tensor: torch.Tensor, array: Array | None, start: int, stop: int) -> None:
        self._tensor = tensor
        self._array = array
        self._start = start
        self._stop = stop

    def take(self, scratch: Callable[[int], memoryview]) -> memoryview:
        size = self._tensor.element_size()
        first, last = self._start // size, self._stop // size
        memory = scratch(self._stop - self._start)
        source: Any = self._tensor
        out: Any
        if self._array is not None:
            source, out = self._array, np.frombuffer(memory, self._array.dtype)
        elif first < last:
            out = torch.frombuffer(memory, dtype=torch.uint8).view(self._tensor.dtype)
        for at, box in boxes_of_run(tuple(self._tensor.shape), first, last):
            shape = [stop - begin for begin, stop in box]
            part = out[at - first : at - first + math.prod(shape)].reshape(shape)
            part[...] = source[tuple(slice(begin, stop) for begin, stop in box)]
        return memory

    def release(self) -> None:
        """The memory belongs to the block."""


def array_of(tensor: torch.Tensor) -> Array:
    """A CPU tensor's memory as an array of unsigned numbers (or, of 16 bytes, complex ones) with its shape and strides;
    it has no conj or neg bit.
    """
    size = tensor.element_size()
    return tensor.view(_PLAIN[size]).numpy().view(unsigned(size))


@dataclass(frozen=True)
class Streamed:
    """An item whose bytes come from elsewhere while it is saved, so that it is never held whole."""

    source: ByteSource
    kind: Kind
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def write_framed(self, target: Any) -> None:
        """Write it as torch's own writer would: elements with torch.save's frame around them."""
        prefix = suffix = b""
        if self.kind is Kind.TENSOR:
            prefix, suffix = frame_of(self.dtype, self.shape)
        target.write(prefix)
        for start in range(0, self.source.size, _STEP):
            load = self.source.load(start, min(start + _STEP, self.source.size))
            target.write(load.take(lambda size: memoryview(bytearray(size))))
            load.release()
        target.write(suffix)
