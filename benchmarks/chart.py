"""Charts: medians with whiskers from the lowest to the highest round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from benchmarks.result import Spread

_SVG = {"svg.fonttype": "none", "svg.hashsalt": "streamxf", "font.family": "sans-serif"}
"""How to write an SVG whose text is text, and which is the same each time."""


def write_chart(
    path: Path, measures: Mapping[str, Mapping[str, Spread]], ours: Collection[str], *, dark: bool, digits: int = 2
) -> None:
    """Write a panel for each measure, by its heading, with a bar for each side, those of `ours` in colour.

    The SVG has no date, so that equal charts are equal files.
    """
    ink, grey, colour = ("0.9", "0.45", "#4db6ac") if dark else ("0.15", "0.72", "#00796b")
    with matplotlib.style.context(_SVG):
        figure = Figure(figsize=(9.0, 2.3), layout="constrained")
        panels = figure.subplots(1, len(measures), sharey=True)
        for axes, (measure, sides) in zip(panels, measures.items(), strict=True):
            medians = [spread.median for spread in sides.values()]
            colours = [colour if side in ours else grey for side in sides]
            drawn = axes.barh(list(sides), medians, 0.72, color=colours, xerr=_whiskers([*sides.values()]), ecolor=ink)
            axes.bar_label(drawn, [f"{median:.{digits}f}" for median in medians], padding=5, fontsize=8, color=ink)
            axes.set_title(measure, fontsize=9.5, color=ink, loc="left")
            axes.set_xlim(0, 1.18 * axes.get_xlim()[1])
            axes.set_xticks([])
            axes.tick_params(axis="y", length=0, labelcolor=ink, labelsize=9)
            axes.spines[:].set_visible(False)
            axes.patch.set_alpha(0)
        axes.invert_yaxis()
        figure.patch.set_alpha(0)
        figure.savefig(path, metadata={"Date": None})


def _whiskers(spreads: Sequence[Spread]) -> np.ndarray:
    """Lengths of the whiskers below and above each median, of shape (2, len(spreads))."""
    below = [spread.median - spread.low for spread in spreads]
    above = [spread.high - spread.median for spread in spreads]
    return np.array([below, above])
