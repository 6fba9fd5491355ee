"""Processes that are killed while they save: what loads is the old checkpoint or the new one, whole."""

from __future__ import annotations

import pytest

from .conftest import Try
from .torture import CHANGES


@pytest.mark.parametrize("layout", ["one rank, one thread", "one rank, 4 threads, a file per item"])
def test_one_process(passes: Try, layout: str) -> None:
    found = passes("killed", layout, every=24, next_every=8, at_least=20)
    assert found["old"] > 0
    assert found["new"] > 0


@pytest.mark.parametrize("together", [False, True])
def test_two_ranks(passes: Try, together: bool) -> None:
    """One of them, or both."""
    found = passes("killed", "two ranks", every=32, next_every=8, together=together, at_least=15)
    assert found["old"] > 0
    assert found["new"] > 0


def test_two_ranks_each_for_itself(passes: Try) -> None:
    passes("killed", "two ranks, each for itself", every=64, next_every=16, at_least=12)


@pytest.mark.parametrize(("change", "chain", "layout"), CHANGES[1:4])
def test_metadata_that_is_replaced(passes: Try, change: str, chain: str, layout: str) -> None:
    """All names are the old ones or the new ones, of each rank's metadata, and a second call does what is missing."""
    found = passes("killed_change", layout, chain, change=change, every=8, next_every=4, at_least=8)
    assert found["old"] > 0
    assert found["new"] > 0


def test_the_first_save(passes: Try) -> None:
    """There is no checkpoint then, or a whole one."""
    found = passes("killed", "1 thread", first=True, every=4, next_every=4, at_least=15)
    assert found["nothing"] > 0
    assert found["new"] > 0
