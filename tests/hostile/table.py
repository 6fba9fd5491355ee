"""The table of all rows at the end of a run, whichever processes their tests ran in. It imports nothing slow."""

from dataclasses import dataclass

import pytest


@dataclass
class _Total:
    cases: int = 0
    silent: int = 0
    seconds: float = 0.0
    mebibytes: float | None = None


class RowTable:
    """A plugin that adds up what the fixture `row` has recorded, and prints it."""

    def __init__(self) -> None:
        self._rows: dict[str, _Total] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in what one test has tried of its row."""
        found = dict(report.user_properties)
        if report.when != "teardown" or "row" not in found:
            return
        total = self._rows.setdefault(str(found["row"]), _Total())
        total.cases += int(str(found["cases"]))
        total.silent += int(str(found["silent"]))
        total.seconds = max(total.seconds, float(str(found["seconds"])))
        if "mebibytes" in found:
            total.mebibytes = max(total.mebibytes or 0.0, float(str(found["mebibytes"])))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, if a row was tried."""
        if not self._rows:
            return
        terminalreporter.section("hostile rows")
        line = "{:<42}{:>9}{:>8}{:>12}{:>12}".format
        terminalreporter.write_line(line("row", "cases", "silent", "worst CPU s", "worst MiB"))
        for name, total in sorted(self._rows.items()):
            memory = "-" if total.mebibytes is None else f"{total.mebibytes:.1f}"
            terminalreporter.write_line(line(name, total.cases, total.silent, f"{total.seconds:.3f}", memory))
