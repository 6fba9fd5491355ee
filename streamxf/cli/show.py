"""What commands print: tables and text for people, JSON for scripts."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TextIO

from streamxf.cli import ranks
from streamxf.cli.exits import FAILED, FINE, with_options
from streamxf.errors import ParameterError, redacted
from streamxf.wording import printable

if TYPE_CHECKING:
    from streamxf.reading import Budget, Progress
    from streamxf.tools.damage import Damage

JSON_VERSION = 1  # raised when a field changes its name, its type or its meaning

_INDENTED = 2**20
_PIPED_WIDTH = 10_000  # nothing is folded or cut for a program that reads
_RICH = 1000  # rows of a table
_PIECE = re.compile(r"[^ ./_:+-]*[ ./_:+-]+|[^ ./_:+-]+")  # where a cell may be folded: behind a dot or the like


@dataclass(frozen=True)
class Output:
    """Where the result of a command goes, whose option ``--json`` says so."""

    json: bool

    def progress(self, title: str) -> AbstractContextManager[Progress | None]:
        """A bar, which appears on a terminal after a second; nothing with --json."""
        if self.json or ranks.silent:
            return nullcontext()
        from streamxf.progress import ProgressBar

        return ProgressBar(title)

    def result(self, facts: Mapping[str, Any], text: str, good: bool | None = None, limit: int = 0, *paths: str) -> int:
        """Print what a command did, as JSON or text; returns the exit code. Of a report, whose first line is a verdict,
        say whether that is `good`; `limit` is the --max-expansion of its `paths`.
        """
        if self.json:
            as_json(facts, budget_for(limit, *paths) if paths else None)
        elif good is None:
            say(with_options(text))
        else:
            verdict(text, good)
        return FAILED if good is False else FINE

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

        say(with_options(report))
        agreed = typer.confirm(f"Remove {'it' if number == 1 else 'them'}?")
        if not agreed:
            say("nothing was removed")
        return agreed


def width() -> int:
    """Of the terminal; endless where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED_WIDTH


def wrapped(text: str, stream: TextIO) -> str:
    """The text as it is printed to `stream`. A word longer than a line stays whole, so that a path can be copied."""
    if not stream.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False) if len(line) > columns else line
        for line in text.split("\n")
    )


def say(text: str, style: str = "", *, wrap: bool = True) -> None:
    """Print lines, without passwords of URLs; at a terminal they end between words, and have a style of rich's."""
    text = wrapped(redacted(text), sys.stdout) if wrap else redacted(text)
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
        self._right = right
        self._fold = fold or headings[:1]
        self._spare = spare
        self._rows: list[tuple[dict[str, str], str]] = []

    def row(self, *cells: str, style: str = "") -> None:
        self._rows.append((dict(zip(self._headings, map(printable, cells), strict=True)), style))

    def print(self) -> None:
        if width() == _PIPED_WIDTH or len(self._rows) > _RICH:
            self.print_lines()
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        widths = self._widths()
        if not widths:
            say("\n".join(["", *self._paragraphs(), ""]), wrap=False)
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for heading, columns in widths.items():
            table.add_column(heading, justify="right" if heading in self._right else "left", width=columns)
        for row, style in self._rows:
            cells = (Text("\n".join(_folded(row[name], columns))) for name, columns in widths.items())
            table.add_row(*cells, style=style)
        Console(highlight=False, width=width()).print(table)

    def print_lines(self) -> None:
        """A line for each row, for programs, and for more rows than rich prints in a second."""
        cells: list[tuple[str, ...]] = [self._headings, *(tuple(row.values()) for row, _ in self._rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        sides = [">" if heading in self._right else "<" for heading in self._headings]
        cells.insert(1, tuple(("─" if can_show("─") else "-") * columns for columns in widths))
        print()
        for row in cells:
            padded = (f"{cell:{side}{columns}}" for cell, side, columns in zip(row, sides, widths, strict=True))
            print(" " + "  ".join(padded).rstrip())
        print()

    def _widths(self) -> dict[str, int]:
        """Of the columns that are shown, where rich would fold inside of names; empty if they have no room."""
        from rich.cells import cell_len

        columns = {name: [name, *(row[name] for row, _ in self._rows)] for name in self._headings}
        widths = {name: max(map(cell_len, cells)) for name, cells in columns.items()}
        for name in self._spare:
            if _excess(widths) > 0:
                del widths[name]
        least = dict(widths)
        for name in {*self._fold} & {*least}:
            least[name] = max(cell_len(piece.rstrip()) for cell in columns[name] for piece in _PIECE.findall(cell))
        for _ in range(_excess(widths)):
            widest = max(widths, key=lambda name: widths[name] - least[name])
            if widths[widest] == least[widest]:
                return {}
            widths[widest] -= 1
        return widths

    def _paragraphs(self) -> Iterator[str]:
        """The rows: the first cell, and under it the others behind their headings; above all, its heading."""
        first, *others = self._headings
        yield first
        for row, _ in self._rows:
            yield row[first]
            yield from (f"  {heading}: {row[heading]}" for heading in others if row[heading])


def _excess(widths: Mapping[str, int]) -> int:
    """Columns of the terminal that a table of these widths would need beyond those that there are."""
    return sum(widths.values()) + 2 * len(widths) - width()


def _folded(text: str, columns: int) -> list[str]:
    from rich.cells import cell_len

    lines = [""]
    for piece in _PIECE.findall(text):
        if cell_len((lines[-1] + piece).rstrip()) > columns:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def as_json(facts: Mapping[str, Any], budget: Budget | None = None) -> None:
    """Print one JSON object: indented, unless it is so large that indenting takes long.

    docs/json-schema.json says what may be in it. `budget` pays for the characters, since a long name may be in it more
    often than there is memory for; if they are too many, nothing is printed, and PolicyError raised. Sets are sorted,
    and paths are without the passwords of URLs, but for that of `latest`, which opens it.
    """
    shown = {name: redacted(each) if type(each) is str and name != "latest" else each for name, each in facts.items()}
    facts = {"json_version": JSON_VERSION, **shown}
    text = io.StringIO()
    for piece in _pieces(facts):
        if budget is not None:
            budget.spend(len(piece), "the output")
        text.write(piece)
    print(json.dumps(facts, indent=2, default=sorted) if text.tell() <= _INDENTED else text.getvalue())


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
    from streamxf.places import open_storage
    from streamxf.reading import Budget

    stored = 0
    for storage in map(open_storage, paths):
        if storage.is_folder():
            listed = storage.names(())
            stored += storage.held_by(listed, listed)
        else:
            stored += storage.held("", None)
    return Budget(max_expansion, stored)


def damages(found: Iterable[Damage]) -> list[dict[str, Any]]:
    """For JSON, where the class of an error is its type, and its message names options."""
    facts = ({**asdict(one), "type": one.error, "message": with_options(one.message)} for one in found)
    return [{name: value for name, value in one.items() if name not in ("error", "unread")} for one in facts]
