"""The lines of a run: training that went back to an earlier checkpoint gives up those after it, and begins a new line.

A line is a tuple: for each earlier one, in their order, the first step from which on its checkpoints are no part of
this one's history. The run's first line is (), and the longest that is there was saved last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from streamxf.manager.record import Record

Line = tuple[int, ...]

_MOST = 1000  # lines; from then on all saves are of the last one


def last_line(records: Iterable[Record]) -> Line:
    """That which was saved last, of the records of one series."""
    counted = [each for each in records if each.counts]
    return max(counted, key=lambda each: (len(each.line), each.order)).line if counted else ()


def lined(records: Sequence[Record], line: Line | None = None) -> list[Record]:
    """The records of one series, those `abandoned` that are no part of a line; by default of the last."""
    line = last_line(records) if line is None else line
    return [replace(each, abandoned=_reason(each, line)) if each.counts else each for each in records]


def continued(records: Sequence[Record], loaded: Record) -> Line:
    """The line of a job that has loaded one of these: the last, if that is its newest checkpoint, or a new one."""
    last = last_line(records)
    newest = next((each for each in reversed(lined(records, last)) if each.counts and not each.abandoned), None)
    if newest is None or newest.name == loaded.name or len(last) >= _MOST:
        return last
    if not loaded.counts:  # of another run: what is here is no part of its history
        return (0,) * (len(last) + 1)
    return (*loaded.line, loaded.step + 1, *(0,) * (len(last) - len(loaded.line)))


def _reason(record: Record, line: Line) -> str:
    number = len(record.line)
    if number == len(line) or (number < len(line) and record.step < line[number]):
        return ""
    end = line[number] if number < len(line) else 0
    return f"training went back to step {end - 1:,}" if end else "training went back, or began anew"
