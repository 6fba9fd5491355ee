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
    found = passes("failing", layout, chain, every=24, at_least=8)
    assert found["old"] > 0
    assert found["new"] > 0


@pytest.mark.parametrize(("chain", "layout"), PAIRS)
def test_short_writes_and_interrupted_calls(passes: Try, chain: str, layout: str) -> None:
    found = passes("interrupted", layout, chain, every=10, at_least=6)
    assert found["new"] > 0


@pytest.mark.parametrize(("chain", "layout"), PAIRS)
def test_short_reads_and_broken_disks_while_loading(passes: Try, chain: str, layout: str) -> None:
    every = 40 if chain == "none" else 5  # torch reads a bare tensor in many small pieces
    found = passes("interrupted_load", layout, chain, every=every, at_least=4)
    assert found["old"] > 0
    assert found["refused"] > 0
