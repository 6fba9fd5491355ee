"""Statistics of tensors for the page's script, and the card that names tensors that need attention."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from streamxf.format.items import Item
from streamxf.tools.inspect.values import Values
from streamxf.wording import many, printable

if TYPE_CHECKING:
    from streamxf.tools.values.histogram import Histogram
    from streamxf.tools.values.statistics import Statistics

MAX_LINES = 20

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def facts_of(statistics: Statistics) -> list[Any]:
    """Counts of elements, NaN, infinities and zeros; minimum, maximum, mean, standard deviation; and the histogram: its
    ends, its bars, each a digit to base 36, and how many numbers are below and above it.
    """
    figures = (statistics.min, statistics.max, statistics.mean, statistics.std)
    counts = [statistics.elements, statistics.nan, statistics.inf, statistics.zeros]
    return [*counts, *map(rounded, figures), *(_bars(statistics.histogram) if statistics.histogram else ())]


def flags_of(items: Iterable[Item], values: Values | None) -> tuple[int, int]:
    """How many tensors have NaN or infinities, and how many are all zeros."""
    if values is None:
        return 0, 0
    found = [values.statistics.get(item.name) for item in items]
    return sum(bool(each and (each.nan or each.inf)) for each in found), sum(
        bool(each and each.all_zero) for each in found
    )


def rounded(number: int | float | None) -> int | float | None:
    """To six digits, of which the page shows three; small integers exactly."""
    if number is None or (isinstance(number, int) and abs(number) < 10**7):
        return number
    return float(f"{number:.6g}")


def attention(values: Values | None) -> str:
    """A card that lists tensors with NaN or infinities, and tensors of nothing but zeros."""
    if values is None or not values.flagged:
        return ""
    lines = [_line(name, values.statistics[name]) for name in values.flagged[:MAX_LINES]]
    if len(values.flagged) > MAX_LINES:
        lines.append(f"<li>{len(values.flagged) - MAX_LINES:,} more</li>")
    kind = "bad" if values.nan or values.inf else "odd"
    count = len(values.flagged)
    title = f"{many(count, 'tensor')} {'needs' if count == 1 else 'need'} attention"
    return (
        f'<section class="card alert {kind}" aria-labelledby="alert-title"><h2 id="alert-title">{title}</h2>'
        f"<ul>{''.join(lines)}</ul></section>"
    )


def _line(name: str, statistics: Statistics | None) -> str:
    assert statistics is not None  # else nothing of it would be known
    counts = {"NaN": statistics.nan, "Inf": statistics.inf}
    flags = [f'<span class="flag bad">{count:,} {what}</span>' for what, count in counts.items() if count]
    if statistics.all_zero:
        flags.append('<span class="flag odd">all zeros</span>')
    of = "" if statistics.all_zero else f"<span class=quiet>of {many(statistics.elements, 'element')}</span>"
    return f"<li><code>{escape(printable(name))}</code> {' '.join(flags)} {of}</li>"


def _bars(histogram: Histogram) -> list[Any]:
    most = max(histogram.counts) or 1
    heights = "".join(_DIGITS[-(-count * (len(_DIGITS) - 1) // most)] for count in histogram.counts)
    end = histogram.start + len(histogram.counts) * histogram.width
    return [rounded(histogram.start), rounded(end), heights, histogram.below, histogram.above]
