"""What ``--values`` prints: statistics of tensors, and which tensors need attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from streamxf.cli import show
from streamxf.wording import many, printable

if TYPE_CHECKING:
    from streamxf.tools.inspect.summary import Summary, Values
    from streamxf.tools.values.histogram import Histogram
    from streamxf.tools.values.statistics import Statistics

HEADINGS = ("zeros", "min", "max", "mean", "std")
BARS = 16  # and a mark at either end

_BLOCKS, _OUTSIDE = " ▁▂▃▄▅▆▇█", "…"
_PLAIN, _PLAIN_OUTSIDE = " .:-=+*#%", "~"
_LONG_INTEGER = 10**7
_LISTED = 20
_NARROW, _WIDE = 100, 120
_BAD, _ODD, _GOOD = "bold red", "bold yellow", "bold green"


def flagged(values: Values) -> None:
    """Tensors with NaN or infinities, and tensors of nothing but zeros; or that there are none."""
    out = show.console()
    found = {"NaN": values.nan, "infinities": values.inf, "nothing but zeros": values.zeros}
    counts = [f"{what} in {many(len(names), 'tensor')}" for what, names in found.items() if names]
    style = _BAD if values.nan or values.inf else _ODD if values.zeros else _GOOD
    out.print(Text(", ".join(counts) or "no NaN, no infinities, no tensor of zeros", style=style))
    for name in values.flagged[:_LISTED]:
        statistics = values.statistics[name]
        assert statistics is not None  # else it is not flagged
        style = _ODD if statistics.all_zero else _BAD
        elements = f" of {many(statistics.elements, 'element')}" if not statistics.all_zero else ""
        out.print(Text.assemble("  ", (flags(statistics), style), elements, f"  {printable(name)}"), soft_wrap=True)
    if len(values.flagged) > _LISTED:
        out.print(f"  {len(values.flagged) - _LISTED:,} more")
    if values.unknown:
        out.print(f"{many(len(values.unknown), 'tensor')} skipped: the elements are not numbers")


def flags(statistics: Statistics | None) -> str:
    """``5 NaN, 3 Inf``, ``all zeros``, or empty if there is nothing to flag."""
    if statistics is None:
        return ""
    if statistics.all_zero:
        return "all zeros"
    counts = {"NaN": statistics.nan, "Inf": statistics.inf}
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def table(summary: Summary, top: int) -> None:
    """Statistics of the largest tensors."""
    values = summary.values
    entries = summary.largest(top)
    if values is None or not entries:
        return
    title = "largest tensors" if len(entries) < summary.total.tensors else "tensors, the largest first"
    wide = show.console().width >= _WIDE
    made = Rows(title, *(("dtype", "shape") if wide else ()))
    for entry in entries:
        statistics = values.statistics[entry.name]
        style = "" if entry.name not in values.flagged else _ODD if statistics and statistics.all_zero else _BAD
        facts = (entry.dtype or "", " x ".join(map(str, entry.shape)) or "scalar") if wide else ()
        made.add(entry.name, statistics, *facts, style=style)
    made.print()


class Rows:
    """A table of statistics, with a row for each tensor. A narrow terminal gets fewer columns, to make room for names.
    `title` is the heading of the names; `more` are further headings.
    """

    def __init__(self, title: str, *more: str) -> None:
        self._narrow = show.console().width < _NARROW
        self._shown = [place for place, name in enumerate(HEADINGS) if not self._narrow or name != "mean"]
        headings = [HEADINGS[place] for place in self._shown]
        self._table = show.table(title, *more, *headings, "distribution", right=headings)
        for column in self._table.columns[1:]:
            column.no_wrap = True

    def add(self, name: str, statistics: Statistics | None, *more: str, style: str = "") -> None:
        figures = cells(statistics)
        bars = distribution(statistics.histogram if statistics else None, BARS // 2 if self._narrow else BARS)
        row = (*more, *(figures[place] for place in self._shown), bars)
        show.row(self._table, show.name(name, style), *row, style=style)

    def print(self) -> None:
        show.console().print(self._table)


def cells(statistics: Statistics | None) -> tuple[str, ...]:
    """The share of zeros, range, mean and standard deviation, in the order of `HEADINGS`."""
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
    """A share in percent: ``0 %`` means none at all, and ``100 %`` means all."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if part in (0, whole):
        return f"{percent:.0f} %"
    return f"{percent:.1f} %" if 0.05 <= percent < 99.95 else "<0.1 %" if percent < 50 else ">99.9 %"


def distribution(histogram: Histogram | None, bars: int = BARS) -> str:
    """A histogram in one line, a character for each bar, and a mark at an end beyond which there are more numbers."""
    if histogram is None:
        return ""
    blocks, outside = (_BLOCKS, _OUTSIDE) if show.can_show(_BLOCKS + _OUTSIDE) else (_PLAIN, _PLAIN_OUTSIDE)
    counts = list(histogram.counts)
    while len(counts) > bars:
        counts = [sum(counts[place : place + 2]) for place in range(0, len(counts), 2)]
    most, levels = max(counts) or 1, len(blocks) - 1
    drawn = "".join(blocks[-(-count * levels // most)] for count in counts)
    left, right = (outside if count else " " for count in (histogram.below, histogram.above))
    return f"{left}{drawn}{right}"
