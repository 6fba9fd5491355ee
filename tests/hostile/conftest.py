"""The fixture `row`, and the table of all rows at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .rows import MEMORY, Row

_ROWS = pytest.StashKey[dict[str, Row]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS] = {}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder's name that a save may use."""
    return tmp_path / "checkpoint"


@pytest.fixture
def row(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Row]:
    """The row that the test's file stands for; the file says how much memory (MiB) a case may take."""
    tried = Row(request.module.ROW, request.module.MEBIBYTES)
    yield tried
    assert tried.cases, "a row without a case shows nothing"
    for name in ("cases", "silent", "seconds", "mebibytes"):
        record_property(name, getattr(tried, name))
    rows = request.config.stash[_ROWS]
    rows.setdefault(tried.name, Row(tried.name, tried.most)).add(tried)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[_ROWS]
    if not rows:
        return
    terminalreporter.section("hostile rows")
    line = "{:<42}{:>9}{:>8}{:>12}{:>12}".format
    terminalreporter.write_line(line("row", "cases", "silent", "worst CPU s", "worst MiB"))
    for tried in rows.values():
        memory = f"{tried.mebibytes:.1f}" if MEMORY.known else "-"
        terminalreporter.write_line(line(tried.name, tried.cases, tried.silent, f"{tried.seconds:.3f}", memory))
