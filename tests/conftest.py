"""Hypothesis profiles for all tests: "quick" on a desk, "thorough" in CI; HYPOTHESIS_PROFILE chooses one by name."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

import streamxf

# deadline=None: blocks are encoded by threads of a shared machine, and what a single example takes says nothing
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile("quick", max_examples=100, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("thorough", max_examples=500, deadline=None, suppress_health_check=_SLOW_IS_FINE)
_DEFAULT = "thorough" if os.environ.get("CI", "").lower() == "true" else "quick"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _DEFAULT))


@pytest.fixture
def key() -> streamxf.Key:
    """A key that every test may know."""
    return streamxf.Key(bytes(range(32)))
