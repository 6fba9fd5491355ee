"""A histogram of numbers whose range is not known in advance: exact, in one pass, in any order.

All bins have the same width, a power of two, and begin at multiples of it. Each bin of a finer histogram therefore lies
within one bin of a coarser one: when numbers beyond the current bins arrive, neighbouring bins are merged, and no count
ever has to be split.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

SHOWN = 32
"""The most bins of a result."""

_FINE = 1024  # bins while counting; with so many, a result can zoom in on the numbers between outliers
_MANTISSA = 53  # bits of a float64: finer bins could not distinguish the largest numbers
_LEAST = -1074  # the exponent of the smallest float64
_EASY = 1000  # 2.0 ** exponent, and a number times it, are float64 up to here and a little farther


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
    """Counts finite numbers. If they are `whole`, no bin is narrower than 1."""

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
        scaled: np.ndarray = numbers * 2.0**-exponent if abs(exponent) <= _EASY else np.ldexp(numbers, -exponent)
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
