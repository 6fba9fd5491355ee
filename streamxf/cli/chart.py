"""Bar charts of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamxf.cli import show
from streamxf.wording import printable

WIDTH = 80
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LONGEST_LABEL = 32


@dataclass(frozen=True)
class Bar:
    """A line of a chart."""

    label: str
    value: float  # how long its bar is, relative to the others; not negative
    text: str  # the value, as people read it


def lines(title: str, bars: Sequence[Bar], width: int = WIDTH) -> list[str]:
    """The lines of a chart, none of them longer than `width`."""
    labels = [printable(bar.label, _LONGEST_LABEL) for bar in bars]
    left = max(map(len, labels))
    right = max(len(bar.text) for bar in bars)
    room = max(8, width - left - right - 4)
    longest = max(bar.value for bar in bars) or 1.0
    return [
        title,
        *(
            f"  {label:<{left}} {_drawn(bar.value / longest, room)} {bar.text:>{right}}".rstrip()
            for label, bar in zip(labels, bars, strict=True)
        ),
    ]


def _drawn(share: float, room: int) -> str:
    """A bar that fills a share of the room."""
    if not show.can_show(_EIGHTHS):
        return ("#" * max(1, round(share * room))).ljust(room)
    whole, eighths = divmod(max(1, round(share * room * 8)), 8)
    return (_EIGHTHS[8] * whole + (_EIGHTHS[eighths] if eighths else "")).ljust(room)
