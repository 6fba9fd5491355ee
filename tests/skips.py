"""What was skipped, and why, in one line at the end of a run, whichever processes its tests ran in."""

from collections import Counter

import pytest


class Skips:
    """A plugin that prints the line."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print it, if something was skipped."""
        reports = terminalreporter.stats.get("skipped", [])
        reasons = Counter(reason_of(report) for report in reports if isinstance(report, pytest.TestReport))
        # a whole file that was left out is reported by its collection
        reasons.update(f"{reason_of(each)} (a file)" for each in reports if isinstance(each, pytest.CollectReport))
        if reasons:
            shown = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            terminalreporter.write_line(f"skipped: {shown}")


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason that a test gave."""
    text = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
