"""Mean and standard deviation in one pass, without cancellation by a large mean, and without overflow.

Parts are merged by the formula of Chan, Golub and LeVeque. Squares of numbers above 1e154 overflow a float64, and those
of numbers below 1e-162 underflow to 0; parts with such numbers are computed in a unit of their own, a power of two.
"""

from __future__ import annotations

import math

import numpy as np

_EASY = 400  # exponents of smaller magnitude need no unit
_NOTHING = -1100  # the unit of zeros, below all others
_BELOW_ONE = math.nextafter(1, 0)


class Moments:
    """Count, mean (0.0 of none) and spread of finite numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._unit = _NOTHING
        self._spread = 0.0  # the sum of squared deviations from the mean, in units

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
