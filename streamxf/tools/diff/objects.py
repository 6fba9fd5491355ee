"""Where two objects that are no tensors differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch

from streamxf.dcp.objects.policy import FREE_OBJECT, MAX_EXPANSION
from streamxf.tools.diff.values import same_bits
from streamxf.wording import printable

_SHOWN = 60
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), torch.dtype, torch.device, set, frozenset)


class Incomparable(Exception):
    """Two objects of a class that does not say when they are equal."""


def difference_of(first: Any, second: Any, place: str = "") -> str | None:
    """The first place where two objects differ, in words; None if they are the same.

    Dicts are the same whatever their order, and so is any mapping with the same entries; a list is no tuple, and 1 is
    not 1.0. A NaN is the same as a NaN, and tensors and arrays are if they are bit for bit.

    Raises
    ------
    Incomparable
        If nobody can tell.
    """
    try:
        return _Comparison().difference(first, second, place)
    except RecursionError:
        raise Incomparable("it is nested too deeply") from None


class _Comparison:
    """Compares each pair of containers once: they may share their parts, or hold themselves."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def difference(self, first: Any, second: Any, place: str) -> str | None:
        mappings = isinstance(first, Mapping) and isinstance(second, Mapping)
        if not mappings and (type(first) is not type(second) or not isinstance(first, list | tuple)):
            return _of_values(first, second, place)
        pair = id(first), id(second)
        if pair in self._seen:
            return None
        self._seen.add(pair)
        return self._of_mappings(first, second, place) if mappings else self._of_sequences(first, second, place)

    def _of_mappings(self, first: Mapping[Any, Any], second: Mapping[Any, Any], place: str) -> str | None:
        if gone := [key for key in first if key not in second]:
            return _said(place, f"{_shown(gone[0])} is gone" + _more(gone))
        if new := [key for key in second if key not in first]:
            return _said(place, f"{_shown(new[0])} is new" + _more(new))
        for key, value in first.items():
            if text := self.difference(value, second[key], _inside(place, key)):
                return text
        return None

    def _of_sequences(self, first: Any, second: Any, place: str) -> str | None:
        if len(first) != len(second):
            return _said(place, f"length {len(first):,} became {len(second):,}")
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            if text := self.difference(one, other, _inside(place, number)):
                return text
        return None


def _of_values(first: Any, second: Any, place: str) -> str | None:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return _of_tensors(first, second, place)
    if type(first) is not type(second):
        return _said(place, f"{_kind(first)} became {_kind(second)}")
    if isinstance(first, np.ndarray | np.generic):
        return _of_arrays(np.asarray(first), np.asarray(second), place)
    if not isinstance(first, _PLAIN) and cast(Any, type(first)).__eq__ is object.__eq__:
        if first is second:
            return None
        raise Incomparable(f"objects of {_kind(first)} do not say when they are equal")
    if first == second or (first != first and second != second):
        return None
    return _said(place, f"{_shown(first)} became {_shown(second)}")


def _of_tensors(first: torch.Tensor, second: torch.Tensor, place: str) -> str | None:
    for each in (first, second):
        if each.is_nested or each.layout != torch.strided or each.is_quantized or each.device.type == "meta":
            raise Incomparable("it has a tensor that is sparse, nested, quantized or without values")
    if first.dtype != second.dtype or first.shape != second.shape:
        facts = [f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in (first, second)]
        return _said(place, f"a tensor of {facts[0]} became one of {facts[1]}")
    for each in (first, second):
        if each.nbytes > max(FREE_OBJECT, MAX_EXPANSION * each.untyped_storage().nbytes()):
            raise Incomparable("it has a tensor that is far larger than its storage")
    same = same_bits(_dense(first), _dense(second))
    return None if same else _said(place, "a tensor has other values")


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _of_arrays(first: np.ndarray, second: np.ndarray, place: str) -> str | None:
    if first.dtype.hasobject or second.dtype.hasobject:
        raise Incomparable("it has an array of objects")
    if first.dtype != second.dtype or first.shape != second.shape:
        return _said(place, f"an array of {first.dtype} {list(first.shape)} became one of {second.dtype} "
                            f"{list(second.shape)}")  # fmt: skip
    return None if first.tobytes() == second.tobytes() else _said(place, "an array has other values")


def _inside(place: str, key: Any) -> str:
    """Of what is too long to be shown, only so much as shows that: keys may be as long as they like."""
    return place if len(place) > _SHOWN else f"{place}[{_shown(key)}]"


def _said(place: str, text: str) -> str:
    return f"{printable(place, _SHOWN)}: {text}" if place else text


def _more(names: list[Any]) -> str:
    return f", and {len(names) - 1:,} more" if len(names) > 1 else ""


def _kind(value: Any) -> str:
    return type(value).__name__


def _shown(value: Any) -> str:
    return printable(repr(value), _SHOWN)
