"""Crashes that lose what was not synced: the old checkpoint or the new one, and the new one once the save returned."""

from __future__ import annotations

import pytest

from .conftest import Try
from .subjects import CHAINS


@pytest.mark.parametrize("layout", ["1 thread", "4 threads, a file per item"])
@pytest.mark.parametrize("chain", CHAINS)
def test_one_process(passes: Try, chain: str, layout: str) -> None:
    found = passes("lost_writes", layout, chain, seeds=3, every=2, at_least=60)
    assert found["old"] > 0
    assert found["new"] > 0


def test_two_ranks(passes: Try) -> None:
    passes("lost_writes", "2 ranks, few tensors", at_least=200)


@pytest.mark.parametrize("layout", ["4 threads", "2 ranks, few tensors"])
def test_the_first_save(passes: Try, layout: str) -> None:
    """The folders that the save made must be there, too."""
    found = passes("lost_writes", layout, first=True, at_least=150)
    assert found["nothing"] > 0
    assert found["new"] > 0
