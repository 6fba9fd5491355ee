"""What a pickle of ``torch.save`` may call to make plain data, numbers of NumPy's and ``io.BytesIO``; and on what.

NumPy's own functions cannot be let loose on a stranger's pickle: its ``scalar`` unpickles what it is given for a dtype
of objects, and a dtype can be set to anything after it was made. Each function here gets the check and the arguments of
a call, and gives None if torch.save never calls it so.
"""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from streamxf.format.limits import MAX_NDIM
from streamxf.torchsave.archive import NotSavedByTorch
from streamxf.torchsave.unpickler import Name, StandIn, Unpickler

_LATIN = ("latin1", "latin-1")
# bool, integers, floats and complex numbers, by their size in bytes; no objects, strings, dates or records
_NUMERIC = re.compile(r"b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)", re.ASCII)


def _encode(_: Any, text: Any, encoding: Any) -> bytes | None:
    """Bytes. By another encoding they could grow with each call."""
    return text.encode("latin-1") if type(text) is str and encoding in _LATIN else None


def _bytearray(_: Any, data: Any = b"", encoding: Any = None) -> bytearray | None:
    """Of bytes, and not of a size."""
    if type(data) is str and encoding in _LATIN:
        return bytearray(data, "latin-1")
    return bytearray(data) if type(data) is bytes and encoding is None else None


def _set(check: Any, items: Any) -> set[Any] | None:
    """Of a list, and not of an expanded tensor."""
    return check.steps.set_of(items) if type(items) is list else None


class _DType(StandIn):
    __slots__ = ("filled", "real")

    def __init__(self, real: Any) -> None:
        self.real = real
        self.filled = False

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        version, order, *rest = state
        if self.filled or version != 3 or order not in tuple("<>|=") or rest != [None, None, None, -1, -1, 0]:
            raise NotSavedByTorch("its pickle makes a NumPy dtype that is not one of numbers")
        self.real = self.real.newbyteorder(order)
        self.filled = True


def _dtype(_: Any, code: Any, align: Any, copy: Any) -> _DType:
    import numpy as np

    if type(code) is not str or _NUMERIC.fullmatch(code) is None or (align, copy) != (False, True):
        raise NotSavedByTorch("its pickle makes a NumPy dtype that is not one of numbers")
    return _DType(np.dtype(code))


class _Array(StandIn):
    """A ``numpy.ndarray`` of numbers."""

    __slots__ = ("filled",)

    def __init__(self) -> None:
        self.filled = False

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        unpickler.steps.charge(state)
        version, shape, dtype, fortran, data = state
        kinds = type(version), type(shape), type(dtype), type(fortran), type(data)
        if kinds != (int, tuple, _DType, bool, bytes) or version != 1 or self.filled or not dtype.filled:
            raise NotSavedByTorch("its pickle makes a NumPy array in another way than numbers are stored")
        if len(shape) > MAX_NDIM or any(type(size) is not int or size < 0 for size in shape):
            raise NotSavedByTorch("its pickle makes a NumPy array of an impossible shape")
        if math.prod(shape) * dtype.real.itemsize != len(data):
            raise NotSavedByTorch("its pickle makes a NumPy array of more or fewer bytes than are stored")
        self.filled = True


def _reconstruct(_: Any, kind: Any, shape: Any, code: Any) -> _Array | None:
    is_array = type(kind) is Name and kind.name == "numpy.ndarray"
    return _Array() if is_array and type(shape) is tuple and shape == (0,) and code == b"b" else None


def _scalar(_: Any, dtype: Any, data: Any) -> Any:
    if type(dtype) is not _DType or not dtype.filled or type(data) is not bytes or len(data) != dtype.real.itemsize:
        raise NotSavedByTorch("its pickle makes a NumPy scalar of more or fewer bytes than its dtype has")
    return scalar(dtype.real, data)


def scalar(dtype: Any, data: bytes) -> Any:
    """A NumPy scalar, as its own function of this name makes it, which unpickles those of objects."""
    import numpy as np

    return np.frombuffer(data, dtype)[0]


class _Bytes(StandIn):
    """An ``io.BytesIO`` without attributes."""

    __slots__ = ("filled",)

    def __init__(self) -> None:
        self.filled = False

    def fill(self, unpickler: Unpickler, state: Any) -> None:
        unpickler.steps.charge(state)
        data, position, attributes = state
        if (type(data), type(position), attributes) != (bytes, int, None) or not 0 <= position <= len(data):
            raise NotSavedByTorch("its pickle fills a BytesIO with something other than bytes")
        if self.filled:
            raise NotSavedByTorch("its pickle fills a BytesIO twice")
        self.filled = True


NUMPY: dict[str, Callable[..., Any]] = {
    "numpy.dtype": _dtype,
    "numpy.ndarray": lambda *_: None,
    **{
        f"numpy.{core}.multiarray.{name}": function
        for core in ("_core", "core")  # NumPy 2 and 1
        for name, function in (("scalar", _scalar), ("_reconstruct", _reconstruct))
    },
}
BYTES_IO = "_io.BytesIO"
PLAIN: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _encode,
    "builtins.bytes": lambda _: b"",  # of nothing; others are encoded
    "builtins.bytearray": _bytearray,
    "builtins.set": _set,
    "builtins.complex": lambda _, *parts: complex(*parts) if [*map(type, parts)] == [float, float] else None,
    "collections.OrderedDict": lambda _: OrderedDict(),
    "collections.Counter": lambda _, counts: Counter(counts) if type(counts) is dict else None,
    BYTES_IO: lambda _: _Bytes(),
    **NUMPY,
}
