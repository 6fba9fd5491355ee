"""The result of comparing two checkpoints, how far two tensors are apart, and where two other objects differ.

Distances are counted slice by slice, in arithmetic that fits the dtypes.

Elements of the same dtype are the same if all their bits are; so a NaN is the same as itself, and 0.0 is another
element than -0.0, at a distance of 0. Elements of two dtypes are the same if they are the same number, or both NaN.

Integers are subtracted exactly, whatever their dtypes. Compared with a floating-point number, an integer counts as the
float64 that is nearest to it. Two infinities of the same sign are at a distance of 0. An infinity and anything else
have no distance. Neither have a NaN and a number, or two NaNs with other bits. These elements are counted separately.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from streamxf.budget import MAX_EXPANSION
from streamxf.errors import PolicyError
from streamxf.reading import Budget
from streamxf.tools.values.statistics import (
    INTEGERS,
    SLICE,
    Array,
    Statistics,
    ValueCounter,
    floats,
    integers,
    is_number,
)
from streamxf.wording import SHOWN, listed, many, printable

_FEW = 8  # one element in so many: only where fewer differ does it pay to pick them out
_SHOWN = 60
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), set, frozenset)
_AGAIN = 256  # bytes that an element counts for that is compared once more
_STEP = 32  # bytes of strings and tensors that are compared as quickly as an element
_PIECE = 2**22  # elements of tensors that are compared at once


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two tensors of the same shape are apart.

    - `elements`, `differing`: how many each has, and how many of them are not the same.
    - `without`: how many of those have no distance: NaN or infinity against others, and differences beyond a float64.
    - `to_nan`, `from_nan`, `other_nan`: of these, NaN in the second alone, in the first alone, in both by other bits.
    - `largest`: the largest absolute difference, exact for integers; None if there is none, or these are no numbers.
    - `mean`: the mean absolute difference over all elements that have one, those that are the same among them.
    - `statistics`: of the second tensor minus the first, in float64, if requested. Complex differences count by their
      absolute values, and elements without a distance as NaN or infinities.
    """

    elements: int
    differing: int
    without: int = 0
    to_nan: int = 0
    from_nan: int = 0
    other_nan: int = 0
    largest: int | float | None = None
    mean: float | None = None
    statistics: Statistics | None = None


class DistanceCounter:
    """Adds up how far two tensors of these dtypes are apart; dtypes that are not the same are both of numbers
    (`is_number`). Statistics of the differences take about as long again.
    """

    def __init__(self, first: str, second: str, statistics: bool = False) -> None:
        self._dtypes = first, second
        self._alike = first == second
        self._exact = first in INTEGERS and second in INTEGERS
        self._numbers = is_number(first) and is_number(second)
        self._elements = self._differing = self._without = 0
        self._to_nan = self._from_nan = self._other_nan = 0
        self._largest: int | float = 0
        self._sum: Any = 0 if self._exact else np.longdouble(0)
        self._counter = ValueCounter(self._exact) if statistics and self._numbers else None
        self._counted = 0

    def add(self, first: Array, second: Array) -> None:
        """Count elements of both, as `BoxReader` reads them."""
        self._elements += first.size
        if self._alike and same_bits(first, second):
            return
        one, other = first.reshape(-1), second.reshape(-1)
        for start in range(0, len(one), SLICE):
            self._add_slice(one[start : start + SLICE], other[start : start + SLICE])

    def result(self) -> Distance:
        """What was counted."""
        largest, mean, statistics = None, None, None
        if self._numbers and (self._differing > self._without or (self._elements and not self._differing)):
            largest, mean = self._largest, float(self._sum / (self._elements - self._without))
        if self._counter is not None:
            self._counter.add_zeros(self._elements - self._counted)  # the elements that are the same
            self._counted = self._elements
            statistics = self._counter.result()
        nan = self._to_nan, self._from_nan, self._other_nan
        return Distance(self._elements, self._differing, self._without, *nan, largest, mean, statistics)

    def _add_slice(self, first: Array, second: Array) -> None:
        differ: Array | None = None
        if self._alike:
            bits = _words(first) != _words(second)
            if len(bits) != len(first):
                bits = bits.reshape(len(first), -1).any(axis=1)
            count = int(np.count_nonzero(bits))
            self._differing += count
            if not self._numbers or not count:
                return
            if count * _FEW < len(first):  # those that are the same are at a distance of 0 anyway
                first, second = first[bits], second[bits]
            else:
                differ = bits
        one, other = self._dtypes
        if self._exact:
            self._add_integers(integers(first, one), integers(second, other))
        else:
            self._add_floats(floats(first, one), floats(second, other), differ)

    def _add_integers(self, first: Array, second: Array) -> None:
        if first.dtype == second.dtype:
            above, below = first.view(np.uint64), second.view(np.uint64)
            apart = np.where(first > second, above - below, below - above)
        else:  # int64 beside uint64: differences take 65 bits
            first, second = first.astype(object), second.astype(object)
            apart = np.abs(second - first)
        largest = int(apart.max())
        self._sum += int((apart if largest < 2**63 // SLICE else apart.astype(object)).sum())
        self._largest = max(self._largest, largest)
        if not self._alike:
            self._differing += int(np.count_nonzero(apart))
        if self._counter is not None:
            numbers = apart.astype(np.float64)
            numbers[(second < first).astype(bool)] *= -1
            self._count(numbers)

    def _add_floats(self, first: Array, second: Array, differ: Array | None) -> None:
        """Count numbers. All of them differ, or those in `differ`; for two dtypes that is determined here."""
        if first.shape != second.shape:  # a complex number beside a real one
            pairs = (each if each.ndim == 2 else np.stack([each, np.zeros_like(each)], 1) for each in (first, second))
            first, second = pairs
        with np.errstate(invalid="ignore", over="ignore"):
            apart = second - first
            lengths = np.abs(apart) if apart.ndim == 1 else np.hypot(*apart.T)
            total = lengths.sum()
        if self._alike and np.isfinite(total):  # nearly always
            self._largest = max(float(self._largest), float(lengths.max()))
            self._sum += total
        else:
            apart, lengths = self._add_unusual(first, second, differ, apart)
        self._count(apart if apart.ndim == 1 else lengths)

    def _add_unusual(self, first: Array, second: Array, differ: Array | None, apart: Array) -> tuple[Array, Array]:
        """Count numbers that may be NaN or infinite, or of two dtypes. Returns differences and their magnitudes."""
        nan: Any = np.isnan(first)
        other_nan: Any = np.isnan(second)
        same: Any = (first == second) | (nan & other_nan)
        apart[same] = 0
        lengths = np.abs(apart)
        if apart.ndim == 2:
            with np.errstate(over="ignore"):
                lengths = np.hypot(*apart.T)
            nan, other_nan, same = nan.any(axis=1), other_nan.any(axis=1), same.all(axis=1)
        if not self._alike:
            differ = ~same
            self._differing += int(np.count_nonzero(differ))
        if differ is not None:
            nan, other_nan = nan & differ, other_nan & differ
        self._to_nan += int(np.count_nonzero(other_nan & ~nan))
        self._from_nan += int(np.count_nonzero(nan & ~other_nan))
        self._other_nan += int(np.count_nonzero(nan & other_nan))
        apart[nan | other_nan] = lengths[nan | other_nan] = np.nan
        measured = lengths[np.isfinite(lengths)]
        self._without += len(lengths) - len(measured)
        if len(measured):
            self._largest = max(float(self._largest), float(measured.max()))
            self._sum += measured.sum(dtype=np.longdouble)  # whose range the sum of the largest numbers does not leave
        return apart, lengths

    def _count(self, differences: Array) -> None:
        if self._counter is not None and len(differences):
            self._counted += len(differences)
            self._counter.add_numbers(differences)


def same_bits(first: Array, second: Array) -> bool:
    """Whether two arrays of the same shape and element size are the same bit for bit."""
    return bool(np.array_equal(_words(first.reshape(-1)), _words(second.reshape(-1))))


def _words(elements: Array) -> Array:
    """Elements as unsigned numbers; two for each of 16 bytes."""
    return elements.view(np.uint64) if elements.itemsize == 16 else elements


@dataclass(frozen=True, slots=True)
class Change:
    """An item of both checkpoints that differs.

    - `dtypes`, `shapes`: of both; the dtypes as torch names them, None for an object.
    - `distance`: how far their values are apart. None where the shapes differ, where one is an object, and where the
      elements of two different dtypes are not numbers.
    - `text`: of objects, where they differ first; else empty.
    """

    name: str
    dtypes: tuple[str | None, str | None]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    distance: Distance | None = None
    text: str = ""

    @property
    def what(self) -> str:
        """What changed, in words, without how far values are apart."""
        if None in self.dtypes and self.dtypes != (None, None):
            return " became ".join("an object" if dtype is None else f"a tensor of {dtype}" for dtype in self.dtypes)
        parts = [self.text] if self.text else []
        if self.dtypes[0] != self.dtypes[1]:
            parts.append(f"{self.dtypes[0]} became {self.dtypes[1]}")
        if self.shapes[0] != self.shapes[1]:
            parts.append(f"{list(self.shapes[0])} became {list(self.shapes[1])}")
        if self.distance is not None and self.distance.differing:
            parts.append("values")
        return ", ".join(parts)

    def __str__(self) -> str:
        return f"{self.name}: {self.what}" + (f": {distance_text(self.distance)}" if self.distance else "")


@dataclass(frozen=True)
class Difference:
    """The result of `diff`.

    - `first`, `second`: the paths.
    - `removed`, `added`: items that only the first has, and only the second.
    - `incomparable`: items that could not be compared, with the reason.
    - `equal`: how many items are the same: tensors bit for bit, objects by their value.
    - `elements`, `differing`: of all tensors that were compared; how many elements there are, and how many differ.
    - `notes`: remarks, in sentences.
    - `not_compared`: other contents of the two paths, such as files beside tensors.
    """

    first: str
    second: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[Change, ...]
    incomparable: Mapping[str, str]
    equal: int
    elements: int
    differing: int
    notes: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every item that was compared is known to be the same."""
        return not (self.differs or self.incomparable)

    @property
    def differs(self) -> bool:
        """Whether a difference was found; if not, and it is not the same either, something could not be read."""
        return bool(self.removed or self.added or self.changed)

    def __str__(self) -> str:
        return self.text()

    def text(self, most: int = SHOWN) -> str:
        """A verdict, counts, and of each kind `most` items at the most."""
        kinds = {
            "changed": self.changed,
            "only in the first": self.removed,
            "only in the second": self.added,
            "not comparable": [f"{name}: {reason}" for name, reason in self.incomparable.items()],
        }
        counts = ", ".join(f"{many(len(entries), 'item')} {kind}" for kind, entries in kinds.items() if entries)
        same = "the same, as far as they were compared" if self.not_compared else "the same"
        differ = "DIFFERENT" if self.differs else "NOT ALL COMPARED"
        lines = [
            same if self.same else f"{differ}: {counts}",
            f"{many(self.equal, 'item')} the same; {self.differing:,} of {self.elements:,} compared elements differ",
            *(line for kind, entries in kinds.items() for line in listed(kind, entries, most=most)),
            *listed("not compared", self.not_compared),
            *listed("note", self.notes),
        ]
        return "\n".join(lines)


def distance_text(distance: Distance) -> str:
    """How far two tensors are apart, in words."""
    if not distance.differing:
        return "the same values"
    parts = [f"{distance.differing:,} of {many(distance.elements, 'element')} differ"]
    if distance.largest:
        parts.append(f"by {_number(distance.largest)} at most and {_number(distance.mean)} on average")
    elif distance.largest is not None:
        parts.append("in the sign of zero alone" if not distance.without else "some in the sign of zero alone")
    without = {
        "became NaN": distance.to_nan,
        "no longer NaN": distance.from_nan,
        "NaN with other bits": distance.other_nan,
        "infinitely far apart": distance.without - distance.to_nan - distance.from_nan - distance.other_nan,
    }
    return ", ".join([*parts, *(f"{count:,} {what}" for what, count in without.items() if count)])


def _number(value: Any) -> str:
    """A distance as people read it: integers as they are, others with four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


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
