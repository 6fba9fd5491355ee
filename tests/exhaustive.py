"""Tests marked `exhaustive` try everything there is of a kind, and take long. ``--exhaustive 1`` runs all of them and
nothing else, ``--exhaustive 20`` a twentieth, another one each day, and ``--sample 20`` the same beside all others.
"""

import os
import time
from pathlib import Path
from zlib import crc32

import pytest

_DAY = "EXHAUSTIVE_DAY"
# Before xdist starts its processes, which inherit it: all select the same tests, and sample the same faults.
DAY = int(os.environ.setdefault(_DAY, str(int(time.time() // 86400))))


class Exhaustive:
    """A plugin that leaves these tests out, or runs a share of them."""

    def pytest_report_header(self, config: pytest.Config) -> str:
        """Say how to repeat this selection, and what others draw by the day."""
        return f"the same sample of exhaustive tests, and of faults, with {_DAY}={DAY}"

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Skip files without such tests, which take long to collect: neither it nor a module beside it has the word."""
        if not config.getoption("exhaustive") or not collection_path.match("test_*.py"):
            return None
        beside = (path for path in collection_path.parent.glob("*.py") if not path.match("test_*.py"))
        return not any("exhaustive" in path.read_text() for path in (collection_path, *beside)) or None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Select."""
        alone = config.getoption("exhaustive")

        def wanted(item: pytest.Item) -> bool:
            if item.get_closest_marker("exhaustive") is None:
                return not alone
            share = alone or config.getoption("sample")
            return bool(share) and (crc32(item.nodeid.encode()) + DAY) % share == 0

        config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
        items[:] = [item for item in items if wanted(item)]
