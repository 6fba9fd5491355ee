"""The dtypes whose elements are stored as they are; docs/format.md, "Header"."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_BY_SIZE = {
    1: "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "uint16 int16 float16 bfloat16",
    4: "uint32 int32 float32 complex32",
    8: "uint64 int64 float64 complex64",
    16: "complex128",
}

ITEMSIZES = {name: size for size, names in _BY_SIZE.items() for name in names.split()}
"""Bytes of an element, by the dtype's name as torch has it without ``torch.``."""

WITHOUT_ELEMENTS = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}
    | {"quint8", "qint8", "qint32", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"}
)
"""Other dtypes of torch: tensors of these are stored as ``torch.save`` writes them."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)


def is_dtype_name(text: object) -> bool:
    """Whether `text` may name a dtype, of a framed tensor for one."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def elements_size(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of the elements of a tensor; raises KeyError for a dtype that is not in `ITEMSIZES`."""
    return math.prod(shape) * ITEMSIZES[dtype]
