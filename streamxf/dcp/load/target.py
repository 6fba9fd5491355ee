"""`Target`: the tensor that an item is loaded into, and how it may be written to."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from streamxf.checkpoint.elements import Array
from streamxf.checkpoint.sources import array_of
from streamxf.torch_private import is_cow_tensor


@dataclass(slots=True, eq=False)
class Target:
    """The detached tensor that an item is loaded into.

    - `plain`: whether it is torch's own kind and each of its elements has a place of its own, so that `copy_` into its
      parts, one after the other, does what a single `copy_` does.
    - `extent`: the addresses between which it lies; None if it is not plain, and for devices other than CPU and CUDA,
      which may have no addresses.
    """

    tensor: torch.Tensor
    plain: bool
    extent: tuple[int, int] | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Target:
        plain = (
            type(tensor) is torch.Tensor
            and tensor.layout == torch.strided
            and not tensor.is_quantized
            and tensor.device.type != "meta"
            and not _may_overlap(tensor)
        )
        known = plain and tensor.device.type in ("cpu", "cuda")
        return cls(tensor, plain, _extent(tensor) if known else None)

    def array(self, dtype: torch.dtype) -> Array | None:
        """The tensor's own memory, in its shape and strides, if writing elements of `dtype` there is the same as
        `copy_`; else None. Raises RuntimeError if torch does not let the tensor be written to, as `copy_` would.
        """
        tensor = self.tensor
        fits = (
            self.plain
            and tensor.device.type == "cpu"
            and tensor.dtype == dtype
            and not (dtype.is_complex and tensor.is_conj())
            and not tensor.is_neg()
            and not is_cow_tensor(tensor)
        )
        if not fits:
            return None
        # torch then knows of a change in place, and refuses one of a tensor that takes none
        nothing = tensor.as_strided((0,), (1,))
        nothing.copy_(nothing)
        return array_of(tensor)

    def may_share_memory_with(self, other: Target) -> bool:
        """Whether two tensors are not known to lie between different addresses."""
        if self.extent is None or other.extent is None:
            return True
        return self.extent[0] < other.extent[1] and other.extent[0] < self.extent[1]


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def _may_overlap(tensor: torch.Tensor) -> bool:
    """Whether two elements could share memory. What is not known to be free of overlaps is taken to have some."""
    reach = 0  # of the dimensions with smaller strides, in elements
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False
