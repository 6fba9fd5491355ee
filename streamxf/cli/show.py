"""What commands print: tables and text for people, JSON for scripts."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from streamxf.cli.exits import with_options
from streamxf.wording import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    from streamxf.progress import Progress
    from streamxf.proportion import Budget
    from streamxf.tools.salvage.result import Lost
    from streamxf.tools.verify.report import Damage

JSON_VERSION = 1
"""Raised when a field changes its name, its type or its meaning."""

_INDENTED = 2**20
_PIPED_WIDTH = 10_000  # nothing is folded or cut for a program that reads


def wrapped(text: str, stream: TextIO) -> str:
    """The text as it is to be printed to `stream`. A word that is longer than a line stays whole, so that a path can be
    copied.
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) if len(line) > width else line
        for line in text.split("\n")
    )


def console() -> Console:
    """The console of stdout: as wide as the terminal, or endless and without colours where there is none.

    Lines end between words. A word that is longer than a line stays whole, so that a path can be copied. A table for
    which there is no room becomes a paragraph for each row.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    class Words(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            if len(objects) == 1 and isinstance(objects[0], Table):
                (table,) = objects
                endless = self.options.update(max_width=_PIPED_WIDTH)
                for each in table.columns:  # else rich breaks words
                    each.min_width = max(
                        Measurement.get(self, endless, cell).minimum for cell in (each.header, *each.cells)
                    )
                if Measurement.get(self, endless, table).minimum > self.width:
                    objects = ("\n".join(["", *_paragraphs(table), ""]),)
            if all(isinstance(each, str) for each in objects):
                options["soft_wrap"] = True
                objects = tuple(wrapped(each, sys.stdout) for each in objects)
            super().print(*objects, **options)

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Words(markup=False, highlight=False, emoji=False, width=width)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table in the look of all commands; the headings in `right` stand over numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in columns:
        number = heading in right
        made.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=number)
    return made


def _paragraphs(table: Table) -> Iterator[str]:
    """The rows of a table: the first cell, and under it the others behind their headings; above all, its heading."""
    yield str(table.columns[0].header)
    for first, *others in zip(*(column.cells for column in table.columns), strict=True):
        yield str(first)
        named = zip((column.header for column in table.columns[1:]), others, strict=True)
        yield textwrap.indent("\n".join(f"{heading}: {cell}" for heading, cell in named if str(cell)), "  ")


class ItemName:
    """A table's cell for an item's name: where it is too long for a line it is folded behind a dot or the like."""

    def __init__(self, text: str, style: str = "") -> None:
        self._style = style
        self._text = printable(text)
        self._pieces = re.findall(r"[^./_:-]*[./_:-]+|[^./_:-]+", self._text)

    def __str__(self) -> str:
        return self._text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.cells import cell_len
        from rich.measure import Measurement

        lengths = list(map(cell_len, self._pieces))
        return Measurement(max(lengths, default=0), sum(lengths))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.cells import cell_len
        from rich.text import Text

        line = ""
        for piece in self._pieces:
            if line and cell_len(line + piece) > options.max_width:
                yield Text(line, self._style)
                line = ""
            line += piece
        yield Text(line, self._style, overflow="fold")


def row(table: Table, *cells: str | RenderableType, style: str = "") -> None:
    """Add a row to a table; strings may have anything in them."""
    from rich.text import Text

    shown = (Text(printable(cell), style) if isinstance(cell, str) else cell for cell in cells)
    table.add_row(*shown, style=style)


def report(text: str, good: bool) -> None:
    """Print the text of a report, whose first line is a verdict."""
    text = with_options(text)
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.text import Text

    verdict, _, rest = text.partition("\n")
    out = console()
    out.print(Text(wrapped(verdict, sys.stdout), style="bold green" if good else "bold red"), soft_wrap=True)
    if rest:
        out.print(rest)


def can_show(characters: str) -> bool:
    """Whether the encoding of stdout has these characters."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def progress(title: str, json: bool) -> AbstractContextManager[Progress | None]:
    """A bar, which appears on a terminal after a second; nothing with --json."""
    if json:
        return nullcontext()
    from streamxf.bar import ProgressBar

    return ProgressBar(title)


def as_json(facts: Mapping[str, Any], budget: Budget | None = None) -> None:
    """Print one JSON object: indented, unless it is so large that indenting takes long.

    docs/json-schema.json says what may be in it. `budget` pays for the characters, since a long name may be in it more
    often than there is memory for; if they are too many, nothing is printed, and PolicyError raised. Sets are sorted.
    """
    facts = {"json_version": JSON_VERSION, **facts}
    text = io.StringIO()
    for piece in _pieces(facts):
        if budget is not None:
            budget.spend(len(piece), "the output")
        text.write(piece)
    short = text.tell() <= _INDENTED
    print(json.dumps(facts, indent=2, default=sorted) if short else text.getvalue())


def _pieces(facts: Mapping[str, Any]) -> Iterator[str]:
    """The object's text, each element of its lists by itself: `iterencode` takes twice as long, being Python."""
    for number, (key, value) in enumerate(facts.items()):
        yield f"{', ' if number else '{'}{json.dumps(key)}: "
        if isinstance(value, list | tuple) and value:
            yield from (f"{', ' if at else '['}{json.dumps(each, default=sorted)}" for at, each in enumerate(value))
            yield "]"
        else:
            yield json.dumps(value, default=sorted)
    yield "}"


def budget_for(max_expansion: int, *paths: str) -> Budget:
    """What may be printed of the checkpoints at these paths."""
    from streamxf.proportion import Budget
    from streamxf.storage.storage import Storage

    stored = 0
    for storage in map(Storage.of, paths):
        if storage.is_folder():
            listed = storage.names(())
            stored += storage.held_by(listed, listed)
        else:
            stored += storage.held("", None)
    return Budget(max_expansion, stored)


def damages(found: Iterable[Damage | Lost]) -> list[dict[str, Any]]:
    """For JSON, where the class of an error is its type, and its message names options."""
    facts = ({**asdict(one), "type": one.error, "message": with_options(one.message)} for one in found)
    return [{name: value for name, value in one.items() if name != "error"} for one in facts]
