"""What commands print: tables and text for people, JSON for scripts."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO
from unicodedata import combining, east_asian_width

from streamxf.cli.exits import FAILED, FINE, with_options
from streamxf.errors import ParameterError
from streamxf.wording import printable

if TYPE_CHECKING:
    from streamxf.progress import Progress
    from streamxf.proportion import Budget
    from streamxf.tools.salvage.result import Lost
    from streamxf.tools.verify.report import Damage

JSON_VERSION = 1
"""Raised when a field changes its name, its type or its meaning."""

_INDENTED = 2**20
_PIPED_WIDTH = 10_000  # nothing is folded or cut for a program that reads
_PIECE = re.compile(r"[^ ./_:+-]*[ ./_:+-]+|[^ ./_:+-]+")  # where a cell may be folded: behind a dot or the like


@dataclass(frozen=True)
class Output:
    """Where the result of a command goes, whose option ``--json`` says so."""

    json: bool

    def progress(self, title: str) -> AbstractContextManager[Progress | None]:
        """A bar, which appears on a terminal after a second; nothing with --json."""
        if self.json:
            return nullcontext()
        from streamxf.bar import ProgressBar

        return ProgressBar(title)

    def result(self, facts: Mapping[str, Any], text: str) -> int:
        """Print what a command did, as JSON or text; returns the exit code."""
        if self.json:
            as_json(facts)
        else:
            say(text)
        return FINE

    def report(self, facts: Callable[[], Mapping[str, Any]], text: str, good: bool, limit: int, *paths: str) -> int:
        """The same of a report, whose first line is a verdict; `limit` is the --max-expansion of the `paths`."""
        if self.json:
            as_json(facts(), budget_for(limit, *paths))
        else:
            verdict(text, good)
        return FINE if good else FAILED

    def asks(self, *decided: bool) -> bool:
        """Whether it has to be asked before anything is removed: unless an option has decided that.

        Raises ParameterError where nobody can be asked.
        """
        if any(decided):
            return False
        if self.json or not sys.stdin.isatty():
            raise ParameterError(
                "nothing is removed without confirmation: --yes removes, --dry-run lists what would be removed"
            )
        return True

    def confirmed(self, report: str, number: int) -> bool:
        """Show what would be removed, and ask whether it is to be."""
        import typer

        say(report)
        agreed = typer.confirm(f"Remove {'it' if number == 1 else 'them'}?")
        if not agreed:
            say("nothing was removed")
        return agreed


def width() -> int:
    """Of the terminal; endless where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED_WIDTH


def wrapped(text: str, stream: TextIO) -> str:
    """The text as it is to be printed to `stream`. A word that is longer than a line stays whole, so that a path can be
    copied.
    """
    if not stream.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False) if len(line) > columns else line
        for line in text.split("\n")
    )


def say(text: str, style: str = "", *, wrap: bool = True) -> None:
    """Print lines; at a terminal they end between words, and have a style of rich's."""
    text = wrapped(text, sys.stdout) if wrap else text
    if style and sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console(highlight=False).print(Text(text, style), soft_wrap=True)
    else:
        print(text)


def verdict(text: str, good: bool) -> None:
    """Print the text of a report, whose first line is a verdict."""
    first, _, rest = with_options(text).partition("\n")
    say(first, "bold green" if good else "bold red")
    if rest:
        say(rest)


def can_show(characters: str) -> bool:
    """Whether the encoding of stdout has these characters."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


class TextTable:
    """Rows of cells under headings; those in `right` stand over numbers. Cells may have anything in them.

    A terminal that is too narrow gets none of the columns in `spare`, the first of them first; then cells under the
    headings in `fold`, by default the first, are folded between words and behind dots. Where that is not enough, each
    row becomes a paragraph.
    """

    def __init__(
        self, *headings: str, right: Collection[str] = (), fold: Collection[str] = (), spare: Iterable[str] = ()
    ) -> None:
        self._headings = headings
        self._right = [heading in right for heading in headings]
        self._fold = [heading in (fold or headings[:1]) for heading in headings]
        self._spare = [headings.index(heading) for heading in spare]
        self._rows: list[tuple[Sequence[str], str]] = [(headings, "bold")]

    def row(self, *cells: str, style: str = "") -> None:
        self._rows.append((tuple(map(printable, cells)), style))

    def print(self) -> None:
        widths = self._widths()
        print()
        for number, (cells, style) in enumerate(self._rows if widths else ()):
            folded = [_folded(cells[column], limit) for column, limit in widths.items()]
            for parts in zip_longest(*folded, fillvalue=""):
                padded = (
                    " " * (limit - _cells(text)) + text if self._right[column] else text + " " * (limit - _cells(text))
                    for text, (column, limit) in zip(parts, widths.items(), strict=True)
                )
                say(" " + "  ".join(padded).rstrip(), style, wrap=False)
            if not number:
                print(" " + ("─" if can_show("─") else "-") * (sum(widths.values()) + 2 * len(widths) - 2))
        if not widths:
            say("\n".join(self._paragraphs()), wrap=False)
        print()

    def _widths(self) -> dict[int, int]:
        """Of the columns that are shown, by their numbers; empty if they have no room."""
        columns = dict(enumerate(zip(*(cells for cells, _ in self._rows), strict=True)))
        widths = {number: max(map(_cells, column)) for number, column in columns.items()}
        for number in self._spare:
            if _excess(widths) > 0:
                del widths[number]
        least = {
            number: max(_cells(piece.rstrip()) for cell in columns[number] for piece in _PIECE.findall(cell) or [""])
            if self._fold[number]
            else natural
            for number, natural in widths.items()
        }
        for _ in range(_excess(widths)):
            widest = max(widths, key=lambda number: widths[number] - least[number])
            if widths[widest] == least[widest]:
                return {}
            widths[widest] -= 1
        return widths

    def _paragraphs(self) -> Iterator[str]:
        """The rows: the first cell, and under it the others behind their headings; above all, its heading."""
        yield self._headings[0]
        for (first, *others), _ in self._rows[1:]:
            yield first
            yield from (f"  {name}: {cell}" for name, cell in zip(self._headings[1:], others, strict=True) if cell)


def _excess(widths: Mapping[int, int]) -> int:
    """Columns of the terminal that a table of these widths would need beyond those that there are."""
    return sum(widths.values()) + 2 * len(widths) - 1 - width()


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes: letters of some scripts take two, and combining marks none."""
    if text.isascii():
        return len(text)
    return sum(1 + (east_asian_width(letter) in "WF") - (combining(letter) > 0) for letter in text)


def _folded(text: str, columns: int) -> list[str]:
    if _cells(text) <= columns:
        return [text]
    lines = [""]
    for piece in _PIECE.findall(text):
        if _cells((lines[-1] + piece).rstrip()) > columns:
            lines.append("")
        lines[-1] += piece
    return lines


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
    from streamxf.storage.opening import open_storage

    stored = 0
    for storage in map(open_storage, paths):
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
