"""Saves to an S3 server whose process is killed, and whose requests fail."""

from __future__ import annotations

import pytest

from .conftest import Try

pytestmark = [pytest.mark.s3, pytest.mark.slow]


@pytest.fixture(autouse=True)
def client() -> None:
    pytest.importorskip("s3fs")


def test_old_or_new(passes: Try) -> None:
    found = passes("killed_s3", "2 threads, 40 MiB", every=16, at_least=4)
    assert found["old"] > 0
    assert found["new"] > 0


@pytest.mark.parametrize("change", ["rename", "stock"])
def test_metadata_that_is_replaced(passes: Try, change: str) -> None:
    found = passes("killed_change_s3", "2 threads", change=change, every=4, at_least=4)
    assert found["old"] > 0
    assert found["new"] > 0


@pytest.mark.exhaustive
def test_requests_fail(passes: Try) -> None:
    """Of several kinds; `make torture` has all of them."""
    found = passes("faulty_s3", "2 threads", saves=7, loads=4, at_least=9)
    assert found["new"] > 0
    assert found["refused"] > 0
