"""Tests of FloatZip run on both of its implementations."""

from collections.abc import Iterator

import pytest

from tests.codecs.implementations import IMPLEMENTATIONS, using


@pytest.fixture(params=IMPLEMENTATIONS)
def each_implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """One of FloatZip's implementations after the other."""
    with using(request.param):
        yield
