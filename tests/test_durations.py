"""What takes longest starts first."""

from types import SimpleNamespace

import pytest

from tests import durations


def test_processes_begin_with_new_files_and_then_with_the_slowest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(durations, "weights", lambda: {"a.py": 1.0, "b.py": 3.5})
    items = [SimpleNamespace(nodeid=f"{name}.py::test_{number}") for name in "abc" for number in (2, 1)]
    order = [items[each] for each in (4, 5, 2, 3, 0, 1)]
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    durations.Durations().pytest_collection_modifyitems(items)
    assert items == order
