"""The elements of tensors of any dtype as numbers for NumPy.

Elements come as `BoxReader` reads them: unsigned numbers of their size (complex ones, of 16 bytes), and a dtype's name.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_UNSIGNED = ("bool", "uint8", "uint16", "uint32", "uint64")
INTEGERS = frozenset({*_UNSIGNED, "int8", "int16", "int32", "int64"})
_REAL = {"complex32": np.float16, "complex64": np.float32, "complex128": np.float64}
_FLOATS = ("float16", "float32", "float64")
_BFLOAT16 = "bfloat16"
# Bits of the exponent, its bias, and the codes of NaN; one of e8m0fnu is nothing but an exponent.
_SMALL = {
    "float8_e4m3fn": (4, 7, (0x7F, 0xFF)),
    "float8_e4m3fnuz": (4, 8, (0x80,)),
    "float8_e5m2": (5, 15, ()),
    "float8_e5m2fnuz": (5, 16, (0x80,)),
    "float8_e8m0fnu": (8, 127, (0xFF,)),
}
_PACKED = "float4_e2m1fn_x2"  # two numbers in a byte, E2M1; the sign is the highest of the four bits
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def is_number(dtype: str) -> bool:
    """Whether each element of a dtype is one number."""
    return dtype in INTEGERS or dtype in _REAL or dtype in _FLOATS or dtype in _SMALL or dtype == _BFLOAT16


def has_numbers(dtype: str) -> bool:
    """Whether elements of a dtype are numbers, one or two each."""
    return is_number(dtype) or dtype == _PACKED


def integers(elements: Array, dtype: str) -> Array:
    """Integers as int64, but uint64 as it is."""
    if dtype == "bool":  # whatever byte is not 0 is true
        found: Array = (elements.view(np.uint8) != 0).astype(np.int64)
    else:
        found = elements if dtype == "uint64" else elements.view(np.dtype(dtype)).astype(np.int64)
    return found


def floats(elements: Array, dtype: str) -> Array:
    """Numbers as float64; complex ones as pairs of it."""
    if dtype in INTEGERS:
        return integers(elements, dtype).astype(np.float64)
    if dtype == _PACKED:
        return _E2M1[np.stack([elements & 15, elements >> 4], axis=-1).reshape(-1)]
    if dtype in _SMALL:
        return numbers_by_code(dtype)[elements]
    with np.errstate(invalid="ignore"):  # of signalling NaN
        if dtype == _BFLOAT16:  # the upper half of a float32
            return (elements.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        if dtype in _REAL:
            return elements.view(_REAL[dtype]).astype(np.float64).reshape(-1, 2)
        return elements.view(np.dtype(dtype)).astype(np.float64)


def has_codes(dtype: str) -> bool:
    """Whether a table can hold every value of a dtype, by its bits."""
    return dtype in _SMALL or dtype in ("bool", "uint8", "int8", "uint16", "int16", "float16", _BFLOAT16)


@lru_cache(32)
def numbers_by_code(dtype: str) -> Array:
    """Every value of a dtype as float64, indexed by its bits."""
    if dtype not in _SMALL:
        size = 2 if "16" in dtype else 1
        return floats(np.arange(256**size, dtype=f"u{size}"), dtype)
    bits, bias, nan = _SMALL[dtype]
    codes = np.arange(256)
    if bits == 8:
        numbers = np.ldexp(1.0, codes - bias)
    else:
        width = 7 - bits
        exponent = codes >> width & (1 << bits) - 1
        fraction = (codes & (1 << width) - 1) + ((exponent > 0) << width)
        numbers = np.ldexp(fraction.astype(np.float64), np.maximum(exponent, 1) - bias - width)
        if dtype == "float8_e5m2":  # as in IEEE 754, the highest exponent means infinity and NaN
            numbers[exponent == 31] = np.where(codes[exponent == 31] & 3, np.nan, np.inf)
        numbers[codes > 127] *= -1
    numbers[list(nan)] = np.nan
    return numbers
