"""Fixtures of the tests of tools."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import pytest

from tests.dcp.helpers import small_state


@pytest.fixture
def state() -> dict[str, Any]:
    return small_state()


@pytest.fixture(scope="module")
def spawned() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool
