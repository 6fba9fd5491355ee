"""Fixtures of the tests of tools."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import pytest

from tests.dcp.process_groups import PRELOAD

# before any pool starts: each of its processes is a copy of one that has imported torch
multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as pool:
        yield pool
