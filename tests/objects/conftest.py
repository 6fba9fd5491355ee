"""What the tests of objects have in common."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder's name that a save may use."""
    return tmp_path / "checkpoint"
