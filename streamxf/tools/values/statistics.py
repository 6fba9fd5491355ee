"""The elements of tensors of any dtype as numbers for NumPy; `Statistics` of them, the counter that collects these box
by box, and their moments: in one pass, without cancellation by a large mean, and without overflow.

Elements come as `BoxReader` reads them: unsigned numbers of their size (complex ones, of 16 bytes), and a dtype's name.

Parts are merged by the formula of Chan, Golub and LeVeque. Squares of numbers above 1e154 overflow a float64, and those
of numbers below 1e-162 underflow to 0; parts with such numbers are computed in a unit of their own, a power of two.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import tee
from typing import Any

import numpy as np
import numpy.typing as npt

from streamxf.errors import ForeignError, StreamxfError, UnsupportedError, is_exhausted
from streamxf.pipeline import Pipeline
from streamxf.reading import Box, BoxReader, Progress, Share, TensorItem
from streamxf.tools.damage import CALLERS, Damage
from streamxf.tools.fleet import Fleet, Items, by_tensors, is_of_machine

Array = npt.NDArray[Any]

INTEGERS = frozenset({"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"})
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
SHOWN = 32  # the most bins of a result
_FINE = 1024  # bins while counting; with so many, a result can zoom in on the numbers between outliers
_MANTISSA = 53  # bits of a float64: finer bins could not distinguish the largest numbers
_LEAST = -1074  # the exponent of the smallest float64
_DIRECT = 1000  # 2.0 ** exponent, and a number times it, are float64 up to here and a little farther
SLICE = 2**15  # elements that are processed at a time: few enough for several slices to fit into a cache
_TABLE = 2**18  # elements that are counted by their bits at a time; each takes eight bytes
_EASY = 400  # exponents of smaller magnitude need no unit
_NOTHING = -1100  # the unit of zeros, below all others
_BELOW_ONE = math.nextafter(1, 0)
_WIDTH = 4  # standard deviations on either side of the mean that a histogram shows
BOX_BYTES = 4 * 2**20  # small compared with the engine's budget, so that every worker has work
_INLINE = 2**16  # bytes that are counted in the calling thread, because waking a worker takes longer


def is_number(dtype: str) -> bool:
    """Whether each element of a dtype is one number."""
    return dtype in INTEGERS or dtype in _REAL or dtype in _FLOATS or dtype in _SMALL or dtype == _BFLOAT16


def has_numbers(dtype: str) -> bool:
    """Whether elements of a dtype are numbers, one or two each."""
    return is_number(dtype) or dtype == _PACKED


def integers(elements: Array, dtype: str) -> Array:
    """Integers as int64, but uint64 as it is."""
    if dtype == "bool":  # whatever byte is not 0 is true
        return elements.view(np.uint8).astype(bool).astype(np.int64)
    return elements if dtype == "uint64" else elements.view(np.dtype(dtype)).astype(np.int64)


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


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of numbers by value, one for each bin; the first bin goes from `start` up to, and not including,
    ``start + width``. The width is a power of two. `below` and `above` count the numbers outside of all bins.
    """

    start: float
    width: float
    counts: tuple[int, ...]
    below: int = 0
    above: int = 0


class FineHistogram:
    """Counts finite numbers of any range: exact, in one pass, in any order. If `whole`, no bin is narrower than 1.

    All bins have the same width, a power of two, and begin at multiples of it. Each bin of a finer histogram therefore
    lies within one bin of a coarser one: for numbers beyond the bins, neighbours are merged, and no count is split.
    """

    def __init__(self, whole: bool = False) -> None:
        self._least = 0 if whole else _LEAST
        self._low, self._high = math.inf, -math.inf
        self._exponent = self._least
        self._first = 0
        self._counts = np.zeros(_FINE, np.int64)

    def add(self, numbers: np.ndarray, weights: np.ndarray | None, low: float, high: float) -> None:
        """Count numbers, each `weights` times; `low` and `high` are the smallest and the largest of them."""
        self._cover(low, high)
        exponent = self._exponent
        scaled: np.ndarray = numbers * 2.0**-exponent if abs(exponent) <= _DIRECT else np.ldexp(numbers, -exponent)
        if exponent > 0:  # the smallest numbers underflow to 0
            scaled[(scaled == 0) & (numbers < 0)] = -1
        np.floor(scaled, out=scaled)
        self._count((scaled - self._first).astype(np.int64), weights)

    def merge(self, other: FineHistogram) -> None:
        if other._low > other._high:
            return
        self._cover(other._low, other._high)
        bins, counts = other._used()
        self._count(_coarser(bins, self._exponent - other._exponent) - self._first, counts)

    def result(self, low: float, high: float) -> Histogram | None:
        """The numbers from `low` to `high` in a few bins, and how many are outside; None if nothing was counted."""
        if self._low > self._high:
            return None
        exponent = max(self._exponent, _exponent(low, high, SHOWN, self._least))
        if low == high == 0:
            exponent = 0  # any width would do, and 1 is readable
        bins, counts = self._used()
        bins = _coarser(bins, exponent - self._exponent)
        first, last = (_floor_of(end, exponent) for end in (low, high))
        inside = (bins >= first) & (bins <= last)
        shown = np.bincount(bins[inside] - first, counts[inside], last - first + 1)
        try:
            start = math.ldexp(first, exponent)
        except OverflowError:  # the first bin begins at -2 ** 1024; no float64 is below this one
            start = -sys.float_info.max
        outside = int(counts[bins < first].sum()), int(counts[bins > last].sum())
        return Histogram(start, math.ldexp(1, exponent), tuple(int(count) for count in shown), *outside)

    def _cover(self, low: float, high: float) -> None:
        """Have bins for all numbers from `low` to `high`, and for those that were counted."""
        if low >= self._low and high <= self._high:
            return
        bins, counts = self._used()
        self._low, self._high = min(low, self._low), max(high, self._high)
        # never less than before: it is the minimum for a range, and this range contains the previous one
        exponent = _exponent(self._low, self._high, _FINE, self._least)
        bins = _coarser(bins, exponent - self._exponent)
        self._exponent, self._first = exponent, _floor_of(self._low, exponent)
        self._counts = np.zeros(_FINE, np.int64)
        self._count(bins - self._first, counts)

    def _used(self) -> tuple[np.ndarray, np.ndarray]:
        """The indices of the bins that are not empty, counted from 0.0, and their counts."""
        used = np.flatnonzero(self._counts)
        return used + self._first, self._counts[used]

    def _count(self, bins: np.ndarray, weights: np.ndarray | None) -> None:
        self._counts += np.bincount(bins, weights, _FINE).astype(np.int64)


def _exponent(low: float, high: float, bins: int, least: int) -> int:
    """The width, as a power of two, of the narrowest bins of which `bins` cover `low` to `high`."""
    magnitude, span = max(-low, high), high - low
    finest = max(least, math.frexp(magnitude)[1] - _MANTISSA) if magnitude else least
    if not span:
        return finest
    size = math.frexp(span)[1] if math.isfinite(span) else math.frexp(high / 2 - low / 2)[1] + 1
    exponent = max(finest, size - bins.bit_length() - 1)
    while _floor_of(high, exponent) - _floor_of(low, exponent) >= bins:
        exponent += 1
    return exponent


def _coarser(bins: np.ndarray, by: int) -> np.ndarray:
    """The indices of these bins among bins ``2 ** by`` times as wide."""
    return bins >> min(by, 63) if len(bins) else bins


def _floor_of(number: float, exponent: int) -> int:
    scaled = math.ldexp(number, -exponent)
    return -1 if number < 0 and not scaled else math.floor(scaled)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the values of a tensor.

    NaN and infinities are counted, and excluded from everything else. Complex numbers count by their absolute values.

    - `elements`, `nan`, `inf`, `zeros`: how many there are, and how many of them are NaN, infinite and zero.
    - `min`, `max`: exact, and an int for integers. None if no element is finite.
    - `std`: the standard deviation of all finite elements, without Bessel's correction.
    - `histogram`: from `min` to `max`, but at most four standard deviations from the mean, so that a few outliers do
      not squeeze everything else into one bin.
    """

    elements: int
    nan: int
    inf: int
    zeros: int
    min: int | float | None
    max: int | float | None
    mean: float | None
    std: float | None
    histogram: Histogram | None

    @property
    def all_zero(self) -> bool:
        """Whether there are elements, and all of them are zero."""
        return 0 < self.elements == self.zeros


class ValueCounter:
    """Counts values; `whole` if they are integers."""

    def __init__(self, whole: bool = False) -> None:
        self._elements = self._nan = self._inf = self._zeros = 0
        self._whole = whole
        self._least: int | float = math.inf
        self._most: int | float = -math.inf
        self._moments = Moments()
        self._histogram = FineHistogram(whole)

    def add(self, elements: Array, dtype: str) -> None:
        """Count elements, as `BoxReader` reads them, of a dtype that `has_numbers`."""
        flat = elements.reshape(-1)
        # whose values a table can hold, by their bits
        has_codes = dtype in _SMALL or dtype in ("bool", "uint8", "int8", "uint16", "int16", "float16", _BFLOAT16)
        if has_codes and len(flat) >= SLICE:
            self._add_by_code(flat, dtype)
            return
        for start in range(0, len(flat), SLICE):
            part = flat[start : start + SLICE]
            exact = integers(part, dtype) if dtype in INTEGERS else None
            numbers = floats(part, dtype) if exact is None else exact.astype(np.float64)
            self.add_numbers(numbers, ends=None if exact is None else (int(exact.min()), int(exact.max())))

    def add_zeros(self, count: int) -> None:
        if count:
            self.add_numbers(np.zeros(1), np.array([count]))

    def add_numbers(self, numbers: Array, weights: Array | None = None, ends: tuple[int, int] | None = None) -> None:
        """Count float64 numbers, each `weights` times, and pairs of them, which are complex, by their absolute values.
        `ends` are the exact smallest and largest number, where float64 rounds.
        """
        if not len(numbers):
            return
        self._elements += _count(numbers, weights)
        numbers, weights = self._finite(numbers, weights)
        if not len(numbers):
            return
        self._zeros += _count(numbers, weights, numbers == 0)
        low, high = float(numbers.min()) + 0.0, float(numbers.max()) + 0.0  # 0.0 for -0.0
        least, most = ends or (low, high)
        self._least, self._most = min(self._least, least), max(self._most, most)
        self._moments.add(numbers, weights, max(-low, high))
        self._histogram.add(numbers, weights, low, high)

    def merge(self, other: ValueCounter) -> None:
        self._elements += other._elements
        self._nan += other._nan
        self._inf += other._inf
        self._zeros += other._zeros
        self._least, self._most = min(self._least, other._least), max(self._most, other._most)
        self._moments.merge(other._moments)
        self._histogram.merge(other._histogram)

    def result(self) -> Statistics:
        counts = self._elements, self._nan, self._inf, self._zeros
        if not self._moments.count:
            return Statistics(*counts, None, None, None, None, None)
        low, high = float(self._least), float(self._most)
        # rounding may move the mean slightly beyond the numbers, and off a number that all of them are
        mean, std = min(max(self._moments.mean, low), high), self._moments.deviation if low < high else 0.0
        shown = self._histogram.result(max(low, mean - _WIDTH * std), min(high, mean + _WIDTH * std))
        ends = (int(self._least), int(self._most)) if self._whole else (self._least, self._most)
        return Statistics(*counts, *ends, mean, std, shown)

    def _add_by_code(self, flat: Array, dtype: str) -> None:
        """Count elements of one or two bytes by their bits, which is several times as fast."""
        numbers = numbers_by_code(dtype)
        counts = np.zeros(len(numbers), np.int64)
        for start in range(0, len(flat), _TABLE):
            counts += np.bincount(flat[start : start + _TABLE], minlength=len(numbers))
        used = np.flatnonzero(counts)
        self.add_numbers(numbers[used], counts[used])

    def _finite(self, numbers: Array, weights: Array | None) -> tuple[Array, Array | None]:
        """Count what is not finite, and return the rest with its weights."""
        if numbers.ndim == 2:
            nan = np.isnan(numbers).any(axis=1)  # hypot makes an infinity of NaN and an infinity
            inf = np.isinf(numbers).any(axis=1) & ~nan
            self._nan += int(np.count_nonzero(nan))
            self._inf += int(np.count_nonzero(inf))
            with np.errstate(over="ignore"):
                lengths: Array = np.hypot(*numbers[~(nan | inf)].T)
            lengths[np.isinf(lengths)] = np.finfo(np.float64).max
            return lengths, weights
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(numbers.sum()):  # nearly always, and faster than to test each
                return numbers, weights
        finite = np.isfinite(numbers)
        self._nan += _count(numbers, weights, np.isnan(numbers))
        self._inf += _count(numbers, weights, np.isinf(numbers))
        return numbers[finite], None if weights is None else weights[finite]


def _count(numbers: Array, weights: Array | None, chosen: Array | None = None) -> int:
    """How many numbers there are, or how many of them are chosen."""
    if weights is not None:
        return int(weights.sum() if chosen is None else weights[chosen].sum())
    return len(numbers) if chosen is None else int(np.count_nonzero(chosen))


@dataclass(slots=True)
class Moments:
    """Count, mean (0.0 of none) and spread of finite numbers."""

    count: int = 0
    mean: float = 0.0
    _unit: int = _NOTHING
    _spread: float = 0.0  # the sum of squared deviations from the mean, in units

    @classmethod
    def of(cls, count: int, mean: float, deviation: float) -> Moments:
        made = cls()
        if count:
            unit = _unit_of(max(abs(mean), deviation))
            made._join(count, mean, math.ldexp(deviation, -unit) ** 2 * count, unit)
        return made

    @property
    def deviation(self) -> float:
        """The standard deviation of all numbers, without Bessel's correction."""
        if not self.count:
            return 0.0
        root = math.sqrt(self._spread / self.count)
        # in their unit all numbers are below 1, and so is the deviation but for rounding
        return math.ldexp(min(root, _BELOW_ONE), self._unit) if self._unit else root

    def add(self, numbers: np.ndarray, weights: np.ndarray | None, magnitude: float) -> None:
        """Count numbers, each `weights` times; `magnitude` is the largest absolute value of them."""
        unit = _unit_of(magnitude)
        if unit:
            numbers = np.ldexp(numbers, -unit)
        count = len(numbers) if weights is None else int(weights.sum())
        mean = float((numbers if weights is None else numbers * weights).sum()) / count
        off = numbers - mean
        off *= off if weights is None else off * weights
        self._join(count, math.ldexp(mean, unit), float(off.sum()), unit)

    def merge(self, other: Moments) -> None:
        if other.count:
            self._join(other.count, other.mean, other._spread, other._unit)

    def _join(self, count: int, mean: float, spread: float, unit: int) -> None:
        total = self.count + count
        wider = max(unit, self._unit)
        apart = math.ldexp(mean, -wider) - math.ldexp(self.mean, -wider)
        self._spread = (
            math.ldexp(self._spread, 2 * (self._unit - wider))
            + math.ldexp(spread, 2 * (unit - wider))
            + apart * apart * (self.count * count / total)
        )
        self.mean = self.mean * (self.count / total) + mean * (count / total)
        self.count, self._unit = total, wider


def _unit_of(magnitude: float) -> int:
    if not magnitude:
        return _NOTHING
    exponent = math.frexp(magnitude)[1]
    return 0 if abs(exponent) <= _EASY else exponent


_Part = tuple[str, Box, ValueCounter]  # what was counted in a box of the tensor of that name
_Result = Statistics | StreamxfError | OSError | None  # nothing of what only torch can make


def statistics_of(
    reader: BoxReader, progress: Progress | None = None, fleet: Fleet | None = None
) -> tuple[dict[str, Statistics | None], dict[str, str], dict[str, str]]:
    """Read a checkpoint's tensors, and count their values, or have a fleet do it. By name, None where there are no
    numbers or only torch can read them; why some are damaged; and why the storage did not give some. Raises
    StreamxfError for a reason that is not a tensor's own.
    """
    tensors = {name: item for name, item in reader.stored.items() if isinstance(item, TensorItem)}
    nothing = ValueCounter().result()  # what stays of tensors without elements
    found = {name: nothing if has_numbers(item.dtype) else None for name, item in tensors.items()}
    counted = {name: (item,) for name, item in tensors.items() if found[name] is not None}
    results: dict[str, _Result] = {}
    by_tensors(fleet, [reader], counted, results.update, progress, _statistics)
    found |= {name: each if isinstance(each, Statistics) else None for name, each in results.items()}
    failed = {name: Damage.of(each) for name, each in results.items() if isinstance(each, Exception)}
    lost, unread = ({name: str(each) for name, each in failed.items() if each.unread is kind} for kind in (False, True))
    return found, lost, unread


def _statistics(readers: Sequence[BoxReader], counted: Items, progress: Progress | None) -> dict[str, _Result]:
    share = Share(progress, sum(item.size for (item,) in counted.values()))
    found: dict[str, _Result] = {}
    with suppress(StreamxfError, OSError):  # which comes again where it belongs
        _count_boxes(readers[0], counted, found, share)
    for name in [name for name in counted if name not in found]:
        try:
            _count_boxes(readers[0], {name: counted[name]}, found, share)
        except (*CALLERS, ForeignError):  # a server that is out of reach is so for all of them
            raise
        except (StreamxfError, OSError) as error:
            if is_exhausted(error) or is_of_machine(error):
                raise
            found[name] = None if isinstance(error, UnsupportedError) else error
    share.finish()
    return found


def _count_boxes(reader: BoxReader, counted: Items, found: dict[str, _Result], progress: Share) -> None:
    whole: dict[str, ValueCounter] = {}

    def take_in(parts: Iterable[_Part]) -> None:
        for name, box, counter in parts:
            known = whole.setdefault(name, counter)
            if known is not counter:
                known.merge(counter)
            if tuple(map(int.__add__, box.offset, box.lengths)) == box.item.shape:
                # the last box; a counter takes several KiB, and there may be a million tensors
                found[name] = whole.pop(name).result()
            progress.advance(box.size)

    named, wanted = tee((name, box) for name, (item,) in counted.items() for box in Box.of(item, BOX_BYTES))
    with Pipeline[_Part]() as pipeline:
        for (name, box), elements in zip(named, reader.read_boxes(box for _, box in wanted), strict=True):
            count = partial(_counted, name, box, elements)
            take_in(pipeline.submit(count, box.size) if box.size >= _INLINE else pipeline.put(count(), 0))
        take_in(pipeline.results())


def _counted(name: str, box: Box, elements: Array) -> _Part:
    counter = ValueCounter(box.item.dtype in INTEGERS)
    counter.add(elements, box.item.dtype)
    return name, box, counter
