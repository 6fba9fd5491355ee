"""The values of tensors as cells of a table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamxf.values.histogram import Histogram
    from streamxf.values.statistics import Statistics

HEADINGS = ("zeros", "min", "max", "mean", "std")
BARS = 16  # and a mark at either end

_BLOCKS, _OUTSIDE = " ▁▂▃▄▅▆▇█", "…"
_PLAIN, _PLAIN_OUTSIDE = " .:-=+*#%", "~"
_LONG_INTEGER = 10**7


def cells(statistics: Statistics | None) -> tuple[str, ...]:
    """The share of zeros, the range, the mean and the standard deviation, in the order of `HEADINGS`."""
    if statistics is None:
        return ("-",) * len(HEADINGS)
    found = (statistics.min, statistics.max, statistics.mean, statistics.std)
    return share(statistics.zeros, statistics.elements), *map(number, found)


def number(value: int | float | None) -> str:
    """A number in a few characters."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) and abs(value) < _LONG_INTEGER else f"{value:.3g}"


def share(part: int, whole: int) -> str:
    """A part in percent: ``0 %`` only for nothing, and ``100 %`` only for all."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if part in (0, whole):
        return f"{percent:.0f} %"
    return f"{percent:.1f} %" if 0.05 <= percent < 99.95 else "<0.1 %" if percent < 50 else ">99.9 %"


def distribution(histogram: Histogram | None) -> str:
    """A histogram in one line, each bar a character; a mark at an end for numbers that lie farther out."""
    if histogram is None:
        return ""
    blocks, outside = (_BLOCKS, _OUTSIDE) if _shown(_BLOCKS + _OUTSIDE) else (_PLAIN, _PLAIN_OUTSIDE)
    counts = list(histogram.counts)
    while len(counts) > BARS:
        counts = [sum(counts[place : place + 2]) for place in range(0, len(counts), 2)]
    most, levels = max(counts) or 1, len(blocks) - 1
    bars = "".join(blocks[-(-count * levels // most)] for count in counts)
    left, right = (outside if count else " " for count in (histogram.below, histogram.above))
    return f"{left}{bars}{right}"


def _shown(characters: str) -> bool:
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
