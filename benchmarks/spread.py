"""Statistics of one measurement: a median with the spread around it. The arithmetic is NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Spread:
    """One value for each round, in order.

    Attributes
    ----------
    values : tuple of float
        Seconds, or ratios of seconds; whoever prints them says which.
    """

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Take the values of all rounds; there must be at least one."""
        if not len(values):
            raise ValueError("a spread needs the value of at least one round")
        return cls(tuple(float(value) for value in values))

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    @property
    def low(self) -> float:
        return float(np.min(self.values))

    @property
    def high(self) -> float:
        return float(np.max(self.values))

    @property
    def quartiles(self) -> tuple[float, float]:
        """The middle half of the rounds lies between these two."""
        first, third = np.quantile(self.values, (0.25, 0.75))
        return float(first), float(third)

    def text(self, digits: int) -> str:
        """Median and range, as tables have it; one value alone has no range."""
        if len(self.values) == 1:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"

    def __str__(self) -> str:
        return self.text(3)

    def to_dict(self) -> dict[str, Any]:
        """What the JSON results hold of it."""
        first, third = self.quartiles
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "first_quartile": first,
            "third_quartile": third,
            "values": list(self.values),
        }


def ratios(seconds: Sequence[float], against: Sequence[float]) -> Spread:
    """One ratio for each round, because drift between rounds leaves the ratio within a round alone.

    Raises
    ------
    ValueError
        If the two were not measured in the same rounds.
    """
    return Spread.of([one / other for one, other in zip(seconds, against, strict=True)])
