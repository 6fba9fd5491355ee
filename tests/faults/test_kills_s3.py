"""Processes that are killed while they save to an S3 server."""

from __future__ import annotations

import pytest

from .conftest import Try

pytestmark = [pytest.mark.s3, pytest.mark.slow]


def test_old_or_new(passes: Try) -> None:
    pytest.importorskip("s3fs")
    found = passes("killed_s3", "2 threads", every=7, at_least=5)
    assert found["old"] > 0
    assert found["new"] > 0
