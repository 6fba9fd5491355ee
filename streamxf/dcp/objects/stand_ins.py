"""What stands in for NumPy and ``io.BytesIO`` while an object is unpickled.

NumPy's own functions cannot be let loose on a stranger's pickle: its ``scalar`` unpickles what it is given for a dtype
of objects, and a dtype can be set to anything after it was made. So those names lead here. What comes of them pickles
as NumPy's own; it lives only until the object is serialized anew.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Set
from typing import Any

import numpy as np

# bool, integers, floats and complex numbers, by their size in bytes; no objects, texts, dates, records or parts of them
NUMERIC = re.compile(r"b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)", re.ASCII)
_NOTHING = (None, None, None)
_UNALIGNED = (-1, -1, 0)


class DType:
    """A numeric ``numpy.dtype``."""

    def __new__(cls, code: Any, align: Any, copy: Any) -> DType:
        if type(code) is not str or NUMERIC.fullmatch(code) is None or (align, copy) != (False, True):
            raise ValueError("this is no dtype of numbers")
        made = super().__new__(cls)
        made.real = np.dtype(code)
        return made

    real: np.dtype[Any]

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) != 8 or type(state[1]) is not str or state[1] not in tuple("<>|="):
            raise ValueError("this is no state of a dtype of numbers")
        if (state[0], state[2:5], state[5:]) != (3, _NOTHING, _UNALIGNED):
            raise ValueError("this is no state of a dtype of numbers")
        order: Any = state[1]
        self.real = self.real.newbyteorder(order)

    def __reduce__(self) -> Any:
        return self.real.__reduce__()


class Array(np.ndarray[Any, Any]):
    """A ``numpy.ndarray`` of numbers, which cannot be made directly."""

    def __new__(cls, *arguments: Any) -> Array:
        raise ValueError("an array is made of what is stored only")

    def __setstate__(self, state: Any) -> None:
        version, shape, dtype, fortran, data = state
        if type(dtype) is not DType or type(shape) is not tuple or any(type(size) is not int for size in shape):
            raise ValueError("this is no array of numbers")
        if version != 1 or type(fortran) is not bool or type(data) is not bytes or min(shape, default=0) < 0:
            raise ValueError("this is no state of an array")
        if math.prod(shape) * dtype.real.itemsize != len(data):
            raise ValueError(f"an array of shape {shape} and {dtype.real} has other than {len(data)} bytes")
        checked: Any = (1, shape, dtype.real, fortran, data)
        super().__setstate__(checked)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)


class Bytes(io.BytesIO):
    """An ``io.BytesIO`` without attributes."""

    def __new__(cls, *arguments: Any) -> Bytes:
        if arguments:
            raise ValueError("a BytesIO is made empty, and filled with what is stored")
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        data, position, attributes = state
        if type(data) is not bytes or type(position) is not int or not 0 <= position <= len(data):
            raise ValueError("this is no state of a BytesIO")
        if attributes is not None:
            raise ValueError("a BytesIO has attributes, which are not loaded")
        self.write(data)
        self.seek(position)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return io.BytesIO, (), (self.getvalue(), self.tell(), None)


def reconstruct(kind: Any, shape: Any, code: Any) -> Array:
    """As ``numpy._core.multiarray._reconstruct``, for what arrays are pickled as."""
    if kind is not Array or type(shape) is not tuple or shape != (0,) or type(code) is not bytes or code != b"b":
        raise ValueError("this is not how an array begins")
    return np.ndarray.__new__(Array, (0,), "b")


def scalar(dtype: Any, data: Any) -> Any:
    """As ``numpy._core.multiarray.scalar``, for numbers."""
    if type(dtype) is not DType or type(data) is not bytes or len(data) != dtype.real.itemsize:
        raise ValueError("this is no number of NumPy's")
    return np.frombuffer(data, dtype.real)[0]


_NUMPY: dict[str, Any] = {
    "numpy.dtype": DType,
    "numpy.ndarray": Array,
    **{
        f"numpy.{core}.multiarray.{name}": function
        for core in ("_core", "core")  # NumPy 2 and 1
        for name, function in (("scalar", scalar), ("_reconstruct", reconstruct))
    },
}
_IO: dict[str, Any] = {"_io.BytesIO": Bytes}
ALL = frozenset((entry, name) for name, entry in {**_NUMPY, **_IO}.items())


def stand_ins(taken: Set[str]) -> frozenset[Any]:
    """What to allow, as torch takes it, where the caller allows the names in `taken` himself: then he means the real
    ones, and torch could not tell between the two.
    """
    chosen = [group for group in (_NUMPY, _IO) if taken.isdisjoint(group)]
    return frozenset((entry, name) for group in chosen for name, entry in group.items())
