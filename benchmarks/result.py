"""One benchmark's outcome: tables, and their Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.spread import Spread

Row = dict[str, Any]

GOAL, MEASURED, REACHED = "goal", "measured median (lowest-highest)", "reached"
"""Columns of a table of goals."""


@dataclass(frozen=True)
class Table:
    """Rows with the same columns.

    Attributes
    ----------
    rows : list of dict
        Column to value, in the order in which they are printed; at least one row.
    title : str
        Its heading, where a benchmark has several tables.
    digits : int
        After the point.
    """

    rows: list[Row]
    title: str = ""
    digits: int = 3


@dataclass(frozen=True)
class Result:
    """One benchmark's outcome.

    Attributes
    ----------
    name, title, note : str
        File name, heading, and what has to be known to read the tables.
    tables : list of Table
    """

    name: str
    title: str
    note: str
    tables: list[Table]


def goal_row(what: str, against: str, measured: Spread, limit: float, *, at_least: bool = False) -> Row:
    """One row of a table of goals: what was to be reached, what was measured, and whether that is enough.

    Parameters
    ----------
    limit : float
        The goal: `measured` must not be above it, or below it if `at_least`. The median decides.
    """
    reached = measured.median >= limit if at_least else measured.median <= limit
    first, third = measured.quartiles
    return {
        "what": what,
        "against": against,
        GOAL: f"{'>=' if at_least else '<='} {limit:g}",
        MEASURED: measured,
        "middle half": f"{first:.3f}-{third:.3f}" if len(measured.values) > 1 else "",
        REACHED: "yes" if reached else "**no**",
    }


def worst_row(what: str, against: str, by_size: dict[str, Spread], limit: float, *, at_least: bool = False) -> Row:
    """The row of a goal that several sizes of tensors have to reach: of the one that is farthest from it, which the
    column ``at`` names.
    """
    size = (min if at_least else max)(by_size, key=lambda size: by_size[size].median)
    return goal_row(what, against, by_size[size], limit, at_least=at_least) | {"at": size}


def markdown(result: Result) -> str:
    """A result as a Markdown section: note and tables."""
    lines = [f"## {result.title}", "", result.note, ""]
    for table in result.tables:
        if table.title:
            lines += [f"### {table.title}", ""]
        lines += [*table_markdown(table), ""]
    return "\n".join(lines)


def table_markdown(table: Table) -> list[str]:
    """The lines of a Markdown table.

    Raises
    ------
    ValueError
        If rows differ in their columns.
    """
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
