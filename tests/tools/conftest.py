"""Fixtures of the tests of tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dcp.helpers import small_state


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder's name that a save may use."""
    return tmp_path / "checkpoint"


@pytest.fixture
def state() -> dict[str, Any]:
    return small_state()
