"""Calls on files that fail or do less than they were asked: it is told, or does not matter."""

from __future__ import annotations

import pytest

from .conftest import Try
from .subjects import CHAINS

THREADS = ["1 thread", "2 threads", "4 threads"]
PAIRS = list(zip(CHAINS, THREADS * 2, strict=False))


@pytest.mark.parametrize("layout", THREADS)
@pytest.mark.parametrize("chain", CHAINS)
def test_full_and_broken_disks(passes: Try, chain: str, layout: str) -> None:
    near = 2 if chain == "full" else 0  # of the calls around the rename
    found = passes("failing", layout, chain, every=24, near=near, at_least=6)
    assert found["old"] > 0
    assert found["new"] > 0


def test_two_ranks(passes: Try) -> None:
    """What fails on one of them is told on both: a rank that returns says that the new checkpoint loads."""
    found = passes("failing", "2 ranks, few tensors", every=24, near=1, at_least=6)
    assert found["old"] > 0
    assert found["new"] > 0


@pytest.mark.parametrize(("chain", "layout"), PAIRS)
def test_short_writes_and_interrupted_calls(passes: Try, chain: str, layout: str) -> None:
    found = passes("interrupted", layout, chain, every=10, near=0, at_least=6)
    assert found["new"] > 0


@pytest.mark.parametrize(("chain", "layout"), PAIRS)
def test_short_reads_and_broken_disks_while_loading(passes: Try, chain: str, layout: str) -> None:
    found = passes("interrupted_load", layout, chain, every=5, at_least=4)
    assert found["old"] > 0
    assert found["refused"] > 0
