"""The rows notice writers that are broken, and stock DCP."""

from __future__ import annotations

import pytest

from .conftest import Try
from .mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS)
def test_lost_writes_show(attempt: Try, mutant: str) -> None:
    found = attempt("lost_writes", "1 thread", mutant=mutant)
    assert found["unloadable"] + found["false_success"] > 0


def test_a_kill_shows_that_nothing_is_published(attempt: Try) -> None:
    found = attempt("killed", "1 thread", mutant="the old metadata goes first", every=8)
    assert found["unloadable"] > 0


def test_stock_loses_checkpoints(attempt: Try) -> None:
    found = attempt("killed", "1 thread", "stock", every=12)
    assert found["unloadable"] > 0


def test_stock_tells_nobody_of_threads_that_fail(attempt: Try) -> None:
    found = attempt("failing", "4 threads", "stock", every=12)
    assert found["false_success"] > 0


def test_stock_mixes_checkpoints(attempt: Try) -> None:
    found = attempt("lost_writes", "4 threads, a file per item", "stock")
    assert found["mixed"] > 0
    assert found["unloadable"] > 0
