"""Pictures of a terminal, out of what commands really printed there."""

import io
import re

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from docs.recordings.shell import COLUMNS, Typed

SHOWN = ("streamxf inspect step-1000 --top 3", "streamxf verify archive", "streamxf salvage archive rescued")

_THEME = TerminalTheme(
    (24, 28, 36),
    (214, 219, 228),
    [(59, 66, 82), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194)],
)


def svg(typed: list[Typed]) -> str:
    """An SVG of some lines of the session, with the colours that they had; it names no other file."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    shown = [each for each in typed if each.line in SHOWN]
    for number, each in enumerate(shown):
        if number:
            console.print()
        console.print(Text(f"$ {each.line}", style="bold cyan"))
        console.print(Text.from_ansi(each.shown.strip("\n")))
    made = console.export_svg(title="streamxf", theme=_THEME, unique_id="streamxf")
    return re.sub(r"\s*@font-face \{.*?\}", "", made, flags=re.DOTALL)
