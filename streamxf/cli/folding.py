"""`FoldedName`: the name of an item in a table's cell, which is folded behind its separators and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

_PIECE = re.compile(r"[^./_:-]*[./_:-]+|[^./_:-]+")


class FoldedName:
    """A renderable of rich.

    Parameters
    ----------
    text : str
        Printable.
    style : str
    """

    def __init__(self, text: str, style: str = "") -> None:
        self._text = text
        self._style = style
        self._pieces = _PIECE.findall(text)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(cell_len, self._pieces), default=0), cell_len(self._text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        line = ""
        for piece in self._pieces:
            if line and cell_len(line + piece) > options.max_width:
                yield Text(line, self._style)
                line = ""
            line += piece
        yield Text(line, self._style, overflow="fold")
