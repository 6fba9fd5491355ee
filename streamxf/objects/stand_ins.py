"""What stands in for NumPy and ``io.BytesIO``, while a pickle is checked and while torch unpickles it.

NumPy's own functions cannot be let loose on a stranger's pickle: its ``scalar`` unpickles what it is given for a dtype
of objects, and a dtype can be set to anything after it was made. So those names lead here. What comes of them pickles
as NumPy's own; it lives only until the object is serialized again.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Set
from typing import Any

import numpy as np

from streamxf.proportion import TooMuch

# bool, integers, floats and complex numbers, by their size in bytes; no objects, strings, dates or records
_NUMERIC = re.compile(r"b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)", re.ASCII)


class DType:
    real: np.dtype[Any]
    filled = False

    def __new__(cls, code: Any, align: Any, copy: Any) -> DType:
        if type(code) is not str or _NUMERIC.fullmatch(code) is None or (align, copy) != (False, True):
            raise TooMuch("its pickle makes a NumPy dtype that is not one of numbers")
        made = super().__new__(cls)
        made.real = np.dtype(code)
        return made

    def __setstate__(self, state: Any) -> None:
        version, order, *rest = state
        if self.filled or version != 3 or order not in tuple("<>|=") or rest != [None, None, None, -1, -1, 0]:
            raise TooMuch("its pickle makes a NumPy dtype that is not one of numbers")
        self.real = self.real.newbyteorder(order)
        self.filled = True

    def __reduce__(self) -> Any:
        return self.real.__reduce__()


class Array(np.ndarray[Any, Any]):
    """A ``numpy.ndarray`` of numbers, which cannot be made directly."""

    filled = False

    def __new__(cls, *arguments: Any) -> Array:
        raise TooMuch("its pickle makes a NumPy array of something other than what is stored")

    def __setstate__(self, state: Any) -> None:
        version, shape, dtype, fortran, data = state
        kinds = type(version), type(shape), type(dtype), type(fortran), type(data)
        if kinds != (int, tuple, DType, bool, bytes) or version != 1 or self.filled or not dtype.filled:
            raise TooMuch("its pickle makes a NumPy array in another way than numbers are stored")
        if any(type(size) is not int or size < 0 for size in shape):
            raise TooMuch("its pickle makes a NumPy array of an impossible shape")
        if math.prod(shape) * dtype.real.itemsize != len(data):
            raise TooMuch("its pickle makes a NumPy array of more or fewer bytes than are stored")
        checked: Any = (1, shape, dtype.real, fortran, data)
        super().__setstate__(checked)
        self.filled = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)


class Bytes(io.BytesIO):
    """An ``io.BytesIO`` without attributes."""

    def __new__(cls, *arguments: Any) -> Bytes:
        if arguments:
            raise TooMuch("its pickle makes a BytesIO that is not empty")
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        data, position, attributes = state
        if (type(data), type(position), attributes) != (bytes, int, None) or not 0 <= position <= len(data):
            raise TooMuch("its pickle fills a BytesIO with something other than bytes")
        if self.getbuffer().nbytes:
            raise TooMuch("its pickle fills a BytesIO twice")
        self.write(data)
        self.seek(position)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return io.BytesIO, (), (self.getvalue(), self.tell(), None)


def reconstruct(kind: Any, shape: Any, code: Any) -> Array:
    if kind is not Array or type(shape) is not tuple or shape != (0,) or type(code) is not bytes or code != b"b":
        raise TooMuch("its pickle makes a NumPy array in another way than numbers are stored")
    return np.ndarray.__new__(Array, (0,), "b")


def scalar(dtype: Any, data: Any) -> Any:
    if type(dtype) is not DType or not dtype.filled or type(data) is not bytes or len(data) != dtype.real.itemsize:
        raise TooMuch("its pickle makes a NumPy scalar of more or fewer bytes than its dtype has")
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
BYTES_IO = "_io.BytesIO"
STAND_INS: dict[str, Any] = {**_NUMPY, BYTES_IO: Bytes}


def group_of(name: str) -> Set[str]:
    """The names that mean nothing without one another: who allows one of them means the real ones."""
    return _NUMPY.keys() if name in _NUMPY else {name} & {BYTES_IO}
