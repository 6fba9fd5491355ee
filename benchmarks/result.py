"""One benchmark's outcome: measurements and tables, as Markdown and in ``RESULTS/NAME/TIME/NAME.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Rounds, Settings

RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]

GOAL, MEASURED, REACHED = "goal", "measured median (lowest-highest)", "reached"
"""Columns of a table of goals."""

WITH_GOAL = 3
"""How many sizes of tensors a goal holds for; the last one is shown only."""


@dataclass(frozen=True)
class Spread:
    """A median with the spread around it: one value for each round, in order."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Take the values of all rounds; there must be at least one."""
        if not len(values):
            raise ValueError("a spread needs the value of at least one round")
        return cls(tuple(float(value) for value in values))

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def text(self, digits: int) -> str:
        """Median and range, as tables have it; one value alone has no range."""
        if len(self.values) == 1:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def ratios(seconds: Sequence[float], against: Sequence[float]) -> Spread:
    """One ratio for each round, because drift between rounds leaves the ratio within a round alone. Raises ValueError
    if the two were not measured in the same rounds.
    """
    return Spread.of([one / other for one, other in zip(seconds, against, strict=True)])


def seconds_by(columns: Mapping[str, Rounds], side: str, phase: str) -> Row:
    """One side's seconds in the columns of a table, such as sizes of tensors; empty where it was not measured."""
    found = {column: rounds.get(side, {}).get(phase) for column, rounds in columns.items()}
    return {column: Spread.of(seconds) if seconds else "" for column, seconds in found.items()}


def ratios_by(columns: Mapping[str, Rounds], side: str, against: str, phase: str) -> Row:
    """One side's seconds divided by another's, in the same way."""
    found = {column: rounds.get(against, {}).get(phase) for column, rounds in columns.items()}
    return {
        column: ratios(columns[column][side][phase], seconds) if seconds else "" for column, seconds in found.items()
    }


@dataclass(frozen=True)
class Table:
    """Rows with the same columns, at least one; `title` is its heading, where a benchmark has several tables."""

    rows: list[Row]
    title: str = ""
    digits: int = 3


@dataclass(frozen=True)
class Result:
    """One benchmark's outcome; `note` is what has to be known to read the tables."""

    name: str
    title: str
    note: str
    tables: list[Table]


def goal_row(what: str, against: str, measured: Spread, limit: float, *, at_least: bool = False) -> Row:
    """One row of a table of goals: `measured` must not be above the `limit`, or below it if `at_least`. The median
    decides.
    """
    reached = measured.median >= limit if at_least else measured.median <= limit
    return {
        "what": what,
        "against": against,
        GOAL: f"{'>=' if at_least else '<='} {limit:g}",
        MEASURED: measured,
        REACHED: "yes" if reached else "**no**",
    }


def worst_row(what: str, against: str, by_size: dict[str, Spread], limit: float, *, at_least: bool = False) -> Row:
    """The row of a goal that the first `WITH_GOAL` sizes of tensors have to reach: of the one that is farthest from it,
    which the column ``at`` names.
    """
    by_size = dict(islice(by_size.items(), WITH_GOAL))
    size = (min if at_least else max)(by_size, key=lambda size: by_size[size].median)
    return goal_row(what, against, by_size[size], limit, at_least=at_least) | {"at": size}


def markdown(result: Result) -> str:
    """A result as a Markdown section: note and tables."""
    lines = [f"## {result.title}", "", result.note, ""]
    for table in result.tables:
        lines += table_section(table, "###")
    return "\n".join(lines)


def table_section(table: Table, level: str) -> list[str]:
    """A table under its title, if it has one."""
    return [*([f"{level} {table.title}", ""] if table.title else []), *table_markdown(table), ""]


def table_markdown(table: Table) -> list[str]:
    """The lines of a Markdown table. Raises ValueError if rows differ in their columns."""
    columns = list(table.rows[0])
    for row in table.rows:
        if list(row) != columns:
            raise ValueError(f"a row has the columns {list(row)} where the table has {columns}")
    rule = ["---" if isinstance(table.rows[0][column], str) else "---:" for column in columns]
    return [
        _row(columns),
        _row(rule),
        *(_row([_text(row[column], table.digits) for column in columns]) for row in table.rows),
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(value: Any, digits: int) -> str:
    match value:
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.{digits}f}"
        case Spread():
            return value.text(digits)
        case _:
            return str(value)


def store(result: Result, settings: Settings, facts: dict[str, Any], folder: Path, seconds: float) -> Path:
    """Write a result into a new folder below that of all results, with the machine's facts from before the benchmark
    and the seconds that it took.
    """
    path = folder / result.name / facts["time"].replace(":", "").replace("+0000", "Z")
    path.mkdir(parents=True)
    content = {
        "name": result.name,
        "title": result.title,
        "took_seconds": round(seconds, 1),
        "settings": {"smoke": settings.smoke, "rounds": settings.rounds, "mib": settings.mib},
        "machine": facts,
        "note": result.note,
        "tables": [{"title": table.title, "digits": table.digits, "rows": table.rows} for table in result.tables],
    }
    (path / f"{result.name}.json").write_text(json.dumps(content, indent=1, default=_plain) + "\n")
    return path


def stored(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Each result of a benchmark that measured something, the oldest first."""
    for file in sorted((folder / name).glob(f"*/{name}.json")):
        content = json.loads(file.read_text())
        if not content["settings"]["smoke"]:
            yield content


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return {"median": value.median, "low": value.low, "high": value.high, "values": list(value.values)}
    raise TypeError(f"a result's row holds a {type(value).__name__}, which JSON cannot")
