"""A tensor's bytes, piece by piece: without a copy where the memory already lies as it is saved, and never the whole
tensor at once.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from streamxf.buffers import flat_view
from streamxf.dcp.tensors.boxes import contiguous_strides
from streamxf.errors import UnsupportedError

# Small on purpose: pieces of 4 MiB scatter over glibc's heap, and the save of a view with gaps added 100 MiB, not 30.
PIECE_BYTES = 2**20
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # of which Python knows from 3.13 on
_MAPPED = 2**26  # bytes; a process may have some ten thousand mappings


QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})
"""Dtypes whose elements mean nothing without the scales of their tensor."""


@dataclass(frozen=True)
class Payload:
    """A tensor prepared for saving.

    Attributes
    ----------
    shell : torch.Tensor
        Has the dtype, shape and strides that are saved, on the CPU. Its memory is never read when `pieces` is given,
        and never touched, so it takes none.
    source : torch.Tensor or None
        Whose bytes are saved in the shell's place; None when the shell is the tensor itself.
    """

    shell: torch.Tensor
    source: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Payload:
        """Prepare `tensor`: itself if it lies on the CPU and fills its storage, otherwise behind a shell of its own
        size.

        Raises
        ------
        UnsupportedError
            If it has no bytes (device "meta"), or a layout that DCP cannot save.
        """
        if tensor.device.type == "meta":
            raise UnsupportedError(
                "the tensor is on the device 'meta', so it has no data to save; give it memory first (to_empty), and "
                "its values"
            )
        if not is_plain(tensor):
            return cls(minimal(tensor.cpu()), None)
        if tensor.device.type == "cpu" and tensor.untyped_storage().size() == tensor.nbytes:
            return cls(tensor, None)
        order = dense_order(tensor)
        strides = tensor.stride() if order is not None else contiguous_strides(tensor.shape)
        return cls(untouched(tensor.dtype, tensor.shape, strides), tensor)

    def flat(self) -> torch.Tensor | None:
        """All elements in the order in which they are saved, in one dimension and without a copy; None where they do
        not lie so.
        """
        if self.source is None:
            return None
        order = dense_order(self.source)
        return self.source.permute(order).reshape(-1) if order is not None else None

    def pieces(self, storage: torch.UntypedStorage) -> Iterator[memoryview]:
        """The bytes that belong in `storage`, one of the shell's, in order."""
        if self.source is None:
            yield storage_bytes(storage)
        else:
            yield from tensor_bytes(self.source)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is torch's own kind, and its memory holds its values as they are."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    )


def untouched(dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """A tensor on the CPU, whatever the default device is, whose memory nobody has touched, so that it takes none.

    ``torch.empty`` fills what it gives when deterministic algorithms are asked for.
    """
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    elements = last + 1 if math.prod(shape) else 0
    storage = untouched_storage(elements * dtype.itemsize)
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, tuple(shape), tuple(strides))


def untouched_storage(size: int) -> torch.UntypedStorage:
    """A storage of `size` bytes that takes no memory until somebody touches it; it may be larger than all memory.

    Raises
    ------
    UnsupportedError
        If it is larger than this process's address space.
    """
    try:
        if size < _MAPPED or os.name == "nt":
            return torch.UntypedStorage(size, device="cpu")  # type: ignore[no-untyped-call]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE  # malloc would be refused what cannot be there
        return torch.frombuffer(mmap.mmap(-1, size, flags), dtype=torch.uint8).untyped_storage()
    except (OSError, OverflowError, RuntimeError) as error:
        raise UnsupportedError(f"there is no room for a tensor of {size:,} bytes in this process: {error}") from None


def minimal(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a storage of its own size; raises UnsupportedError for what DCP cannot save."""
    if tensor.layout != torch.strided:
        raise UnsupportedError(
            f"DCP cannot save a tensor of layout {tensor.layout}: a load would leave its target as it was. Save it as "
            "dense, or its indices and values"
        )
    return tensor if tensor.untyped_storage().size() == tensor.nbytes else tensor.clone()


def storage_bytes(storage: torch.UntypedStorage) -> memoryview:
    """The memory of a CPU storage, flat, without a copy."""
    return flat_view(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy().data)


def tensor_bytes(tensor: torch.Tensor) -> Iterator[memoryview]:
    """A strided tensor's bytes in pieces of about `PIECE_BYTES`: in the order of its memory if it is dense, else in
    row-major order.
    """
    order = dense_order(tensor)
    if order is None:
        yield from map(_to_host, _rows(tensor))
        return
    flat = tensor.permute(order).reshape(-1)
    if flat.device.type == "cpu":
        yield _to_host(flat)
        return
    step = max(1, PIECE_BYTES // flat.element_size())
    for start in range(0, flat.numel(), step):
        yield _to_host(flat[start : start + step])


def dense_order(tensor: torch.Tensor) -> list[int] | None:
    """The order of dimensions in which the tensor's memory is contiguous, or None if it has gaps or overlaps."""
    strides: tuple[int, ...] = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], -tensor.shape[dim]))
    return order if tensor.permute(order).is_contiguous() else None


def _rows(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Contiguous copies of consecutive parts of a tensor, each of about `PIECE_BYTES` at the most."""
    if tensor.nbytes <= PIECE_BYTES:
        yield tensor.contiguous()
        return
    row_bytes = tensor[0].nbytes
    if row_bytes > PIECE_BYTES:
        for row in tensor:
            yield from _rows(row)
        return
    step = PIECE_BYTES // max(1, row_bytes)
    for start in range(0, tensor.shape[0], step):
        yield tensor[start : start + step].contiguous()


def _to_host(part: torch.Tensor) -> memoryview:
    flat = part.cpu().reshape(-1)
    if flat.numel() < 2:  # whatever stride this has means nothing, but view() below insists on 1
        flat = flat.as_strided(flat.shape, (1,))
    return flat_view(flat.view(torch.uint8).numpy().data)
