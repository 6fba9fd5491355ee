"""How long tests take: in the log of a run, and in a file by which xdist's processes take up the longest files first.

On a quiet machine, ``make test ARGS=--weigh`` brings that file up to date.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
_WEIGHTS = Path(__file__).with_name("durations.txt")
_ROWS = 40
_LONG_RUN = 600.0  # seconds


def weights() -> dict[str, float]:
    """The seconds that each test file took when somebody last looked."""
    rows = (line.split(maxsplit=1) for line in _WEIGHTS.read_text().splitlines())
    return {name: float(seconds) for seconds, name in rows}


class Durations:
    """A plugin that orders, prints and writes."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put files without a weight first, then by weight: what starts last should not take long."""
        if "PYTEST_XDIST_WORKER" in os.environ:
            known = weights()
            items.sort(key=lambda item: (-known.get(file := item.nodeid.split("::")[0], float("inf")), file))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[Any]:
        """Have the second process import from the end and the third one from the middle: each file's asserts are then
        rewritten by one process only.
        """
        report = yield
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        if isinstance(collector, pytest.Directory) and worker == "gw1":
            report.result.reverse()
        elif isinstance(collector, pytest.Directory) and worker == "gw2":
            middle = len(report.result) // 2
            report.result[:] = report.result[middle:] + report.result[:middle]
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """Print the slowest of a long run, and write down all if asked to."""
        tests, files = Counter[str](), Counter[str]()
        for reports in terminalreporter.stats.values():
            for report in reports:
                if isinstance(report, pytest.TestReport):
                    tests[report.nodeid] += report.duration
                    files[report.nodeid.split("::")[0]] += report.duration
        if files.total() >= _LONG_RUN:
            for kind, found in (("files", files), ("tests", tests)):
                terminalreporter.section(f"the {_ROWS} slowest of {len(found)} {kind}, {found.total():.0f} s together")
                for name, seconds in found.most_common(_ROWS):
                    terminalreporter.write_line(f"{seconds:7.1f} s  {name}")
        if config.getoption("weigh"):
            found = {name: seconds for name, seconds in (weights() | files).items() if (ROOT / name).exists()}
            rows = sorted(found.items(), key=lambda row: (-row[1], row[0]))
            _WEIGHTS.write_text("".join(f"{seconds:.1f} {name}\n" for name, seconds in rows))
