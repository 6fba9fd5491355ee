"""Where two non-tensor objects differ."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from streamxf.budget import MAX_EXPANSION, Budget
from streamxf.errors import PolicyError
from streamxf.tools.diff.difference import same_bits
from streamxf.wording import printable

_SHOWN = 60
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), set, frozenset)
_AGAIN = 256  # bytes that an element counts for that is compared once more
_STEP = 32  # bytes of strings and tensors that are compared as quickly as an element
_PIECE = 2**22  # elements of tensors that are compared at once


class Incomparable(Exception):
    """Two objects of which it cannot be said whether they are equal; says why."""


def difference_of(first: Any, second: Any, budget: Budget | None = None, known: set[int] | None = None) -> str | None:
    """The first place where two objects differ, in words; None if they are the same. Raises Incomparable; `budget` pays
    for whatever is compared more often than it is stored, also with others of the same `known`, if these live on.

    Dicts are the same whatever their order, and so is any mapping with the same entries; a list is not a tuple, and 1
    is not 1.0. A NaN is the same as a NaN, and tensors and arrays are if they are bit for bit.
    """
    try:
        return _ObjectComparison(budget or Budget(MAX_EXPANSION, 0), known).difference(first, second, "")
    except RecursionError:
        raise Incomparable("it is nested too deeply") from None


class _ObjectComparison:
    """Compares each pair of containers once: they may share their parts, or hold themselves. What is compared again
    with something else is bounded, since there may be as many pairs as the square of the parts.
    """

    def __init__(self, budget: Budget, known: set[int] | None) -> None:
        self._pairs: set[tuple[int, int]] = set()
        self._known: set[int] = set() if known is None else known
        self._storages: set[int] = set()
        self._budget = budget

    def difference(self, first: Any, second: Any, place: str) -> str | None:
        mappings = isinstance(first, Mapping) and isinstance(second, Mapping)
        if not mappings and (type(first) is not type(second) or not isinstance(first, list | tuple)):
            self._charge(first)
            return self._of_values(first, second, place)
        pair = id(first), id(second)
        if pair in self._pairs:
            return None
        self._pairs.add(pair)
        self._charge(first)
        self._charge(second)
        keys: Iterable[Any] = first if mappings else range(len(first))
        if mappings:
            if gone := [key for key in first if key not in second]:
                return _said(place, _listed(gone, "gone"))
            if new := [key for key in second if key not in first]:
                return _said(place, _listed(new, "new"))
        elif len(first) != len(second):
            return _said(place, f"length {len(first):,} became {len(second):,}")
        for key in keys:
            if text := self.difference(first[key], second[key], _inside(place, key)):
                return text
        return None

    def _charge(self, value: Any) -> None:
        size = _size_of(value)
        if size and id(value) in self._known:
            self._spend(_AGAIN * size, "its parts are shared so often that comparing them would take too long")
        elif size:
            self._known.add(id(value))

    def _of_values(self, first: Any, second: Any, place: str) -> str | None:
        torch: Any = sys.modules.get("torch")  # or neither is one of its tensors
        if torch is not None and isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
            return self._of_tensors(torch, first, second, place)
        if type(first) is not type(second):
            return _said(place, f"{type(first).__name__} became {type(second).__name__}")
        if isinstance(first, np.ndarray | np.generic):
            return _of_arrays(np.asarray(first), np.asarray(second), place)
        single = torch is not None and isinstance(first, torch.dtype | torch.layout | torch.memory_format)
        if not single and not isinstance(first, _PLAIN) and cast(Any, type(first)).__eq__ is object.__eq__:
            if first is second:
                return None
            raise Incomparable(f"objects of {type(first).__name__} cannot be compared")
        if first == second or (first != first and second != second):
            return None
        return _said(place, f"{_shown(first)} became {_shown(second)}")

    def _of_tensors(self, torch: Any, first: Any, second: Any, place: str) -> str | None:
        for each in (first, second):
            if each.is_nested or each.layout != torch.strided or each.is_quantized or each.device.type == "meta":
                raise Incomparable("it has a tensor that is sparse, nested, quantized or without values")
        if first.dtype != second.dtype or first.shape != second.shape:
            return _said(place, f"a tensor of {_form(first)} became one of {_form(second)}")
        for each in (first, second):
            storage = each.untyped_storage()
            stored = 0 if storage.data_ptr() in self._storages else storage.nbytes()
            self._storages.add(storage.data_ptr())
            self._spend(max(0, each.nbytes - stored), "it has a tensor that is far larger than its storage")
        same = all(same_bits(*map(_bits_of, pair)) for pair in _pieces(first, second))
        return None if same else _said(place, "a tensor has other values")

    def _spend(self, size: int, reason: str) -> None:
        try:
            self._budget.spend(size, "comparing it")
        except PolicyError:
            raise Incomparable(reason) from None


def _pieces(first: Any, second: Any) -> Iterator[tuple[Any, Any]]:
    """Two tensors in parts that take little memory, however often they repeat their elements."""
    if first.numel() <= _PIECE:
        yield first, second
        return
    axis = max(range(first.ndim), key=first.size)
    half = first.size(axis) // 2
    for start, size in ((0, half), (half, first.size(axis) - half)):
        yield from _pieces(first.narrow(axis, start, size), second.narrow(axis, start, size))


def _bits_of(tensor: Any) -> Any:
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(sys.modules["torch"].uint8).numpy()


def _size_of(value: Any) -> int:
    """What comparing it costs; nothing for numbers and short strings."""
    if isinstance(value, list | tuple | Mapping | set | frozenset):
        return len(value)
    if isinstance(value, str | bytes | bytearray):
        return len(value) // _STEP
    size: int = value.numel() if hasattr(value, "numel") else getattr(value, "nbytes", 0)
    return size // _STEP


def _of_arrays(first: np.ndarray, second: np.ndarray, place: str) -> str | None:
    if first.dtype.hasobject or second.dtype.hasobject:
        raise Incomparable("it has an array of objects")
    if first.dtype != second.dtype or first.shape != second.shape:
        return _said(place, f"an array of {_form(first)} became one of {_form(second)}")
    return None if first.tobytes() == second.tobytes() else _said(place, "an array has other values")


def _form(values: Any) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} {list(values.shape)}"


def _inside(place: str, key: Any) -> str:
    """The place of an entry; one that is already too long to be shown does not grow: keys may have any length."""
    return place if len(place) > _SHOWN else f"{place}[{_shown(key)}]"


def _said(place: str, text: str) -> str:
    return f"{printable(place, _SHOWN)}: {text}" if place else text


def _listed(keys: list[Any], what: str) -> str:
    return f"{_shown(keys[0])} is {what}" + (f", and {len(keys) - 1:,} more" if len(keys) > 1 else "")


def _shown(value: Any) -> str:
    return printable(repr(value), _SHOWN)
