"""`Statistics` of the values of a tensor, and the counter that collects them box by box."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streamxf.tools.values.histogram import FineHistogram, Histogram
from streamxf.tools.values.moments import Moments
from streamxf.tools.values.numbers import INTEGERS, Array, floats, has_codes, integers, numbers_by_code

SLICE = 2**15
"""Elements that are processed at a time: few enough for several slices to fit into a cache."""

_TABLE = 2**18  # elements that are counted by their bits at a time; each takes eight bytes
_WIDTH = 4  # standard deviations on either side of the mean that a histogram shows


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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class ValueCounter:
    def __init__(self, whole: bool = False) -> None:
        self._elements = self._nan = self._inf = self._zeros = 0
        self._least: int | float = math.inf
        self._most: int | float = -math.inf
        self._moments = Moments()
        self._histogram = FineHistogram(whole)

    def add(self, elements: Array, dtype: str) -> None:
        """Count elements, as `BoxReader` reads them, of a dtype that `has_numbers`."""
        flat = elements.reshape(-1)
        if has_codes(dtype) and len(flat) >= SLICE:
            self._add_by_code(flat, dtype)
            return
        for start in range(0, len(flat), SLICE):
            part = flat[start : start + SLICE]
            if dtype in INTEGERS:
                exact = integers(part, dtype)
                self.add_numbers(exact.astype(np.float64), least=int(exact.min()), most=int(exact.max()))
            else:
                self.add_numbers(floats(part, dtype))

    def add_zeros(self, count: int) -> None:
        if count:
            self.add_numbers(np.zeros(1), np.array([count]), least=0, most=0)

    def add_numbers(
        self, numbers: Array, weights: Array | None = None, *, least: float | None = None, most: float | None = None
    ) -> None:
        """Count float64 numbers, each `weights` times, and pairs of them, which are complex, by their absolute values.
        `least` and `most` are the exact smallest and largest number, where float64 rounds.
        """
        if not len(numbers):
            return
        self._elements += _count(numbers, weights)
        numbers, weights = self._finite(numbers, weights)
        if not len(numbers):
            return
        self._zeros += _count(numbers, weights, numbers == 0)
        low, high = float(numbers.min()) + 0.0, float(numbers.max()) + 0.0  # 0.0 for -0.0
        self._least = min(self._least, low if least is None else least)
        self._most = max(self._most, high if most is None else most)
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
        return Statistics(*counts, self._least, self._most, mean, std, shown)

    def _add_by_code(self, flat: Array, dtype: str) -> None:
        """Count elements of one or two bytes by their bits, which is several times as fast."""
        numbers = numbers_by_code(dtype)
        counts = np.zeros(len(numbers), np.int64)
        for start in range(0, len(flat), _TABLE):
            counts += np.bincount(flat[start : start + _TABLE], minlength=len(numbers))
        used = np.flatnonzero(counts)
        found = numbers[used]
        exact = (int(found.min()), int(found.max())) if dtype in INTEGERS else (None, None)
        self.add_numbers(found, counts[used], least=exact[0], most=exact[1])

    def _finite(self, numbers: Array, weights: Array | None) -> tuple[Array, Array | None]:
        """Count what is not finite, and return the rest with its weights."""
        if numbers.ndim == 2:
            return self._finite_lengths(numbers), weights
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(numbers.sum()):  # nearly always, and faster than to test each
                return numbers, weights
        finite = np.isfinite(numbers)
        self._nan += _count(numbers, weights, np.isnan(numbers))
        self._inf += _count(numbers, weights, np.isinf(numbers))
        return numbers[finite], None if weights is None else weights[finite]

    def _finite_lengths(self, pairs: Array) -> Array:
        nan = np.isnan(pairs).any(axis=1)  # hypot makes an infinity of NaN and an infinity
        inf = np.isinf(pairs).any(axis=1) & ~nan
        self._nan += int(np.count_nonzero(nan))
        self._inf += int(np.count_nonzero(inf))
        with np.errstate(over="ignore"):
            lengths: Array = np.hypot(*pairs[~(nan | inf)].T)
        lengths[np.isinf(lengths)] = np.finfo(np.float64).max
        return lengths


def _count(numbers: Array, weights: Array | None, chosen: Array | None = None) -> int:
    """How many numbers there are, or how many of them are chosen."""
    if weights is not None:
        return int(weights.sum() if chosen is None else weights[chosen].sum())
    return len(numbers) if chosen is None else int(np.count_nonzero(chosen))
