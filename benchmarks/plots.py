"""Figures: medians with whiskers from the lowest to the highest round.

The style's colours were chosen to be told apart by colour-blind people too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.spread import Spread

STYLE = "petroff10"
WIDTH, ROW_HEIGHT = 9.0, 0.23
DOTS_PER_INCH = 130
SVG = {"svg.fonttype": "none", "svg.hashsalt": "streamxf", "font.family": "sans-serif"}
"""How to write an SVG whose text is text, and which is the same each time."""

Groups = Mapping[str, Mapping[str, Spread]]


def bars(title: str, axis: str, groups: Groups, mark: tuple[float, str] | None = None) -> Figure:
    """Horizontal bars, one for each side, in groups.

    Parameters
    ----------
    axis : str
        What the length of a bar means, with its unit.
    groups : mapping
        By group, then by side.
    mark : pair of float and str, optional
        A line across all bars, and what it stands for.
    """
    sides = list(dict.fromkeys(side for group in groups.values() for side in group))
    height = max(2.2, ROW_HEIGHT * len(groups) * (len(sides) + 1) + 1.4)
    with matplotlib.style.context(STYLE):
        figure, axes = _figure(title, height)
        for number, side in enumerate(sides):
            names = [name for name, group in groups.items() if side in group]
            spreads = [groups[name][side] for name in names]
            places = [list(groups).index(name) * (len(sides) + 1) + number for name in names]
            medians = [spread.median for spread in spreads]
            drawn = axes.barh(places, medians, 0.85, xerr=_whiskers(spreads), label=side, capsize=2, ecolor="0.25")
            axes.bar_label(drawn, [f"{median:.3g}" for median in medians], padding=4, fontsize=7)
        axes.set_yticks([n * (len(sides) + 1) + (len(sides) - 1) / 2 for n in range(len(groups))], list(groups))
        axes.invert_yaxis()
        axes.set_xlabel(axis)
        axes.set_xlim(0, 1.06 * axes.get_xlim()[1])  # room for the numbers
        axes.margins(y=0.01)
        if mark is not None:
            axes.axvline(mark[0], color="0.2", linestyle="--", linewidth=1, label=mark[1])
        axes.grid(axis="x", alpha=0.3)
        _legend(figure, axes, len(sides) > 1 or mark is not None)
    return figure


def lines(
    title: str, x_axis: str, y_axis: str, places: Sequence[float], series: Mapping[str, Sequence[Spread]]
) -> Figure:
    """One line for each side over a logarithmic axis; `places` are where on it, and are its ticks."""
    with matplotlib.style.context(STYLE):
        figure, axes = _figure(title, 4.2)
        for (name, spreads), marker in zip(series.items(), "osD^v<>pP*", strict=False):
            medians = [spread.median for spread in spreads]
            axes.errorbar(places, medians, yerr=_whiskers(spreads), label=name, marker=marker, capsize=3)
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:,g}" for place in places])
        axes.set_xticks([], minor=True)
        axes.set_xlabel(x_axis)
        axes.set_ylabel(y_axis)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        _legend(figure, axes, len(series) > 1)
    return figure


def stacks(title: str, axis: str, columns: Mapping[str, Mapping[str, float]]) -> Figure:
    """Horizontal bars made of parts; by bar, then by part."""
    parts = list(dict.fromkeys(part for column in columns.values() for part in column))
    with matplotlib.style.context(STYLE):
        figure, axes = _figure(title, max(2.4, 0.5 * len(columns) + 1.6))
        ends = np.zeros(len(columns))
        for part in parts:
            values = np.array([column.get(part, 0.0) for column in columns.values()])
            axes.barh(list(columns), values, 0.6, left=ends, label=part)
            ends += values
        axes.invert_yaxis()
        axes.set_xlabel(axis)
        axes.grid(axis="x", alpha=0.3)
        _legend(figure, axes, True)
    return figure


def panels(measures: Mapping[str, Mapping[str, Spread]], ours: Collection[str], *, dark: bool) -> Figure:
    """A chart for a first page: a panel for each measure with a bar for each side, on a transparent ground.

    Parameters
    ----------
    measures : mapping
        By what a panel shows, with its unit, then by side.
    ours : collection of str
        The sides whose bars stand out.
    dark : bool
        Whether the ground is dark.
    """
    ink, grey, colour = ("0.9", "0.45", "#4db6ac") if dark else ("0.15", "0.72", "#00796b")
    with matplotlib.style.context(SVG):
        figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
        for axes, (measure, sides) in zip(
            figure.subplots(1, len(measures), sharey=True), measures.items(), strict=True
        ):
            medians = [spread.median for spread in sides.values()]
            colours = [colour if side in ours else grey for side in sides]
            drawn = axes.barh(list(sides), medians, 0.72, color=colours, xerr=_whiskers([*sides.values()]), ecolor=ink)
            axes.bar_label(drawn, [f"{median:.2f}" for median in medians], padding=5, fontsize=8, color=ink)
            axes.set_title(measure, fontsize=9.5, color=ink, loc="left")
            axes.set_xlim(0, 1.18 * axes.get_xlim()[1])
            axes.set_xticks([])
            axes.tick_params(axis="y", length=0, labelcolor=ink, labelsize=9)
            axes.spines[:].set_visible(False)
            axes.patch.set_alpha(0)
        axes.invert_yaxis()
        figure.patch.set_alpha(0)
    return figure


def _figure(title: str, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11)
    axes.set_axisbelow(True)
    return figure, axes


def _whiskers(spreads: Sequence[Spread]) -> np.ndarray:
    """Lengths of the whiskers below and above each median, of shape (2, len(spreads))."""
    below = [spread.median - spread.low for spread in spreads]
    above = [spread.high - spread.median for spread in spreads]
    return np.array([below, above])


def _legend(figure: Figure, axes: Axes, wanted: bool) -> None:
    if wanted:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), fontsize=8)
