"""Where two objects that are no tensors differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch

from streamxf.compare.values import same_bits
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
        return _difference(first, second, place)
    except RecursionError:
        raise Incomparable("it is nested too deeply") from None


def _difference(first: Any, second: Any, place: str) -> str | None:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return _of_mappings(first, second, place)
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return _of_tensors(first, second, place)
    if type(first) is not type(second):
        return _said(place, f"{_kind(first)} became {_kind(second)}")
    if isinstance(first, list | tuple):
        return _of_sequences(first, second, place)
    if isinstance(first, np.ndarray | np.generic):
        return _of_arrays(np.asarray(first), np.asarray(second), place)
    if not isinstance(first, _PLAIN) and cast(Any, type(first)).__eq__ is object.__eq__:
        if first is second:
            return None
        raise Incomparable(f"objects of {_kind(first)} do not say when they are equal")
    if first == second or (first != first and second != second):
        return None
    return _said(place, f"{_shown(first)} became {_shown(second)}")


def _of_mappings(first: Mapping[Any, Any], second: Mapping[Any, Any], place: str) -> str | None:
    if gone := [key for key in first if key not in second]:
        return _said(place, f"{_shown(gone[0])} is gone" + _more(gone))
    if new := [key for key in second if key not in first]:
        return _said(place, f"{_shown(new[0])} is new" + _more(new))
    return next((text for key in first if (text := _difference(first[key], second[key], f"{place}[{key!r}]"))), None)


def _of_sequences(first: Any, second: Any, place: str) -> str | None:
    if len(first) != len(second):
        return _said(place, f"length {len(first):,} became {len(second):,}")
    pairs = enumerate(zip(first, second, strict=True))
    return next((text for number, pair in pairs if (text := _difference(*pair, f"{place}[{number}]"))), None)


def _of_tensors(first: torch.Tensor, second: torch.Tensor, place: str) -> str | None:
    if first.dtype != second.dtype or first.shape != second.shape:
        facts = [f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in (first, second)]
        return _said(place, f"a tensor of {facts[0]} became one of {facts[1]}")
    same = same_bits(first.detach().cpu().contiguous(), second.detach().cpu().contiguous())
    return None if same else _said(place, "a tensor has other values")


def _of_arrays(first: np.ndarray, second: np.ndarray, place: str) -> str | None:
    if first.dtype.hasobject or second.dtype.hasobject:
        raise Incomparable("it has an array of objects")
    if first.dtype != second.dtype or first.shape != second.shape:
        return _said(place, f"an array of {first.dtype} {list(first.shape)} became one of {second.dtype} "
                            f"{list(second.shape)}")  # fmt: skip
    return None if first.tobytes() == second.tobytes() else _said(place, "an array has other values")


def _said(place: str, text: str) -> str:
    return f"{printable(place, _SHOWN)}: {text}" if place else text


def _more(names: list[Any]) -> str:
    return f", and {len(names) - 1:,} more" if len(names) > 1 else ""


def _kind(value: Any) -> str:
    return type(value).__name__


def _shown(value: Any) -> str:
    return printable(repr(value), _SHOWN)
