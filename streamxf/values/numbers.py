"""The elements of tensors of any dtype as numbers for NumPy."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

INTEGERS = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    }
)
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""A dtype of each size that torch can compare and index."""

_COMPLEX = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_CODES = {1: np.uint8, 2: np.uint16}
# Two numbers in a byte, which torch does not unpack: E2M1, whose sign is the highest of its four bits.
_PACKED = getattr(torch, "float4_e2m1fn_x2", None)
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def is_number(dtype: torch.dtype) -> bool:
    """Whether each element of a dtype is one number that torch can convert."""
    return dtype in INTEGERS or ((dtype.is_floating_point or dtype.is_complex) and dtype != _PACKED)


def has_numbers(dtype: torch.dtype) -> bool:
    """Whether elements of a dtype are numbers, one or two each."""
    return is_number(dtype) or dtype == _PACKED


def integers(tensor: torch.Tensor) -> np.ndarray:
    """Integers as int64, but uint64 as it is."""
    return (tensor if tensor.dtype == torch.uint64 else tensor.to(torch.int64)).numpy()


def floats(tensor: torch.Tensor) -> np.ndarray:
    """Numbers as float64; complex ones as pairs of it."""
    if tensor.dtype.is_complex:
        return tensor.view(_COMPLEX[tensor.dtype]).to(torch.float64).view(-1, 2).numpy()
    if tensor.dtype == _PACKED:
        packed = tensor.view(torch.uint8).numpy()
        return _E2M1[np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)]
    return tensor.to(torch.float64).numpy()


def has_codes(dtype: torch.dtype) -> bool:
    """Whether a table can hold every value of a dtype."""
    return dtype.itemsize in _CODES and not dtype.is_complex and dtype != _PACKED


def codes(tensor: torch.Tensor) -> np.ndarray:
    """The bits of elements, as numbers from 0."""
    return tensor.view(WORDS[tensor.element_size()]).numpy().view(_CODES[tensor.element_size()])


@lru_cache(32)
def numbers_by_code(dtype: torch.dtype) -> np.ndarray:
    """Every value of a dtype as float64, indexed by its bits."""
    every = torch.arange(256**dtype.itemsize, dtype=torch.int32).to(WORDS[dtype.itemsize])
    # what torch takes a bool of another byte than 0 and 1 for depends on the operation
    numbers: np.ndarray = every.numpy() != 0 if dtype == torch.bool else every.view(dtype).to(torch.float64).numpy()
    return numbers.astype(np.float64)
