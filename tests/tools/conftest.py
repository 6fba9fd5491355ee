"""Fixtures of the tests of tools."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dcp.helpers import small_state


@pytest.fixture
def state() -> dict[str, Any]:
    return small_state()
