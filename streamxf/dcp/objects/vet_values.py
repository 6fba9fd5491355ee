"""The values with which `vet` follows a pickle: they know their sizes only. And what NumPy's arrays and ``io.BytesIO``
may be made of.
"""

from __future__ import annotations

import math
from typing import Any

from streamxf.dcp.objects.stand_ins import NUMERIC

MAX_DEPTH = 64  # of tuples, which are hashed on the processor's stack; and dimensions of a tensor, as torch has it
OTHER = object()  # a float


class TooMuch(ValueError):
    """The pickle would take memory or time out of proportion, or torch cannot read it; says in which way."""


class NeverLoads(TooMuch):
    """Torch refuses it under weights_only whatever is allowed."""


class Text:
    """A text, or bytes.

    Attributes
    ----------
    size : int
        In bytes of the pickle, where bytes from 128 take two.
    text : str or None
        A short text itself.
    encoded : str or None
        Short bytes themselves, as Latin-1.
    """

    __slots__ = ("encoded", "size", "text")

    def __init__(self, size: int, text: str | None = None, encoded: str | None = None) -> None:
        self.size = size
        self.text = text
        self.encoded = encoded

    def may_be(self, nbytes: int) -> bool:
        """Whether it may be `nbytes` bytes, encoded."""
        return self.text is None and nbytes <= self.size <= 2 * nbytes


class Tuple:
    __slots__ = ("depth", "items", "weight")

    def __init__(self, items: tuple[Any, ...]) -> None:
        self.items = items
        inner = [item for item in items if type(item) in (Tuple, Made)]
        self.weight: int = 1 + len(items) - len(inner) + sum(item.weight for item in inner)
        self.depth: int = 1 + max((item.depth for item in inner), default=0)
        if self.depth > MAX_DEPTH:
            raise TooMuch(f"its tuples are nested deeper than {MAX_DEPTH}")


class Made:
    """What a call gives that is nothing else here; `name` says what was called. It is never taken for a tuple, not
    even a ``torch.Size``: nobody knows what is in it.
    """

    __slots__ = ("depth", "name", "weight")

    def __init__(self, name: str, arguments: Tuple) -> None:
        self.name = name
        self.weight = arguments.weight
        self.depth = arguments.depth


class Box:
    """A list, dict or set.

    Attributes
    ----------
    name : str
    weight : int
        How many it holds, and one.
    keys : set of str, or None
        Of a dict; None if one of them is no text.
    """

    __slots__ = ("keys", "name", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1
        self.keys: set[str] | None = set()


class Plain:
    """A NumPy dtype, array or scalar, or a BytesIO.

    Attributes
    ----------
    name : str
        What was called.
    size : int
        Its bytes; those of an element for a dtype.
    filled : bool
    """

    __slots__ = ("filled", "name", "size")

    def __init__(self, name: str, size: int = 0, filled: bool = False) -> None:
        self.name = name
        self.size = size
        self.filled = filled

    @classmethod
    def call(cls, name: str, items: tuple[Any, ...]) -> Plain:
        """What a call of one of `PLAIN` gives.

        Raises
        ------
        TooMuch
            If it is anything but how numbers are pickled.
        """
        kind = PLAIN[name]
        if kind == "dtype" and len(items) == 3 and type(items[0]) is Text and items[1] is False and items[2] is True:
            code = items[0].text or ""
            if NUMERIC.fullmatch(code) is None:
                raise TooMuch("its pickle makes a NumPy dtype that is not one of numbers")
            return cls(name, int(code[1:]))
        if kind == "array" and len(items) == 3:
            of, shape, code = items
            empty = type(shape) is Tuple and [(type(size), size) for size in shape.items] == [(int, 0)]
            if of == "numpy.ndarray" and empty and type(code) is Text and code.encoded == "b":
                return cls(name)
        if kind == "scalar" and len(items) == 2 and _is_dtype(items[0]) and type(items[1]) is Text:
            if not items[1].may_be(items[0].size):
                raise TooMuch("its pickle makes a NumPy scalar of more or fewer bytes than its dtype has")
            return cls(name, items[0].size, True)
        if kind == "file" and not items:
            return cls(name)
        raise TooMuch(f"its pickle calls {name} in another way than numbers are stored")

    def build(self, state: Any) -> None:
        """Fill it.

        Raises
        ------
        TooMuch
            If it has been filled, or `state` is not how numbers are pickled.
        """
        items = state.items if type(state) is Tuple else ()
        kind = PLAIN[self.name]
        if self.filled:
            raise TooMuch(f"its pickle changes what {self.name} made after it was filled")
        if kind == "dtype":
            good = _is_numeric_state(items)
        elif kind == "array":
            good = len(items) == 5 and _is_int(items[0], 1) and type(items[3]) is bool and self._take_array(*items)
        else:
            good = len(items) == 3 and items[2] is None and type(items[1]) is int and type(items[0]) is Text
            good = good and items[0].text is None and 0 <= items[1] <= items[0].size
            self.size = items[0].size if good else 0
        if not good:
            raise TooMuch(f"its pickle fills what {self.name} made in another way than numbers are stored")
        self.filled = True

    def _take_array(self, _: Any, shape: Any, dtype: Any, __: Any, data: Any) -> bool:
        if type(shape) is not Tuple or not _is_dtype(dtype) or type(data) is not Text or len(shape.items) > MAX_DEPTH:
            return False
        if any(type(size) is not int or size < 0 for size in shape.items):
            return False
        self.size = math.prod(shape.items) * dtype.size
        if not data.may_be(self.size):
            raise TooMuch("its pickle makes a NumPy array of more or fewer bytes than are stored")
        return True


def _is_dtype(value: Any) -> bool:
    return type(value) is Plain and PLAIN[value.name] == "dtype" and value.filled


def _is_int(value: Any, wanted: int) -> bool:
    return type(value) is int and value == wanted


def _is_numeric_state(items: tuple[Any, ...]) -> bool:
    if len(items) != 8 or type(items[1]) is not Text or items[1].text not in ("<", ">", "|", "="):
        return False
    numbers = zip((items[0], *items[5:]), (3, -1, -1, 0), strict=True)
    return items[2] is items[3] is items[4] is None and all(_is_int(value, wanted) for value, wanted in numbers)


PLAIN = {
    "numpy.dtype": "dtype",
    "numpy.ndarray": "class",
    "numpy._core.multiarray.scalar": "scalar",
    "numpy.core.multiarray.scalar": "scalar",
    "numpy._core.multiarray._reconstruct": "array",
    "numpy.core.multiarray._reconstruct": "array",
    "_io.BytesIO": "file",
}
