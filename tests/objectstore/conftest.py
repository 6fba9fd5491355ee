"""The proxy before the S3 server: one for the tests of a file, without faults and memory of requests for each test."""

from collections.abc import Iterator

import pytest

from .control import Proxy, proxied


@pytest.fixture(scope="module")
def running(endpoint: str) -> Iterator[Proxy]:
    with proxied(endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(running: Proxy) -> Proxy:
    running.faults()
    running.pace()
    running.forget()
    return running
