"""What saves to S3 and loads from it ask the server for, and which failures they survive: a proxy looks on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt
from streamxf.errors import StreamxfError
from tests.dcp.fsspec_checks import assert_only_the_save_remains, load_from
from tests.dcp.helpers import KEY, assert_same, error_of
from tests.dcp.s3_server import storage

from .control import Proxy, most_at_once
from .requests import Fault, Request

pytestmark = [pytest.mark.s3, pytest.mark.slow]

MIB = 2**20
SMALL = 60  # tensors


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    """Small tensors, and one that is uploaded in four parts or more, whatever size they have."""
    generator = torch.Generator().manual_seed(7)
    small = {f"small{number:02}": torch.randn(100, generator=generator) for number in range(SMALL)}
    return {**small, "large": torch.randn(9 * MIB, generator=generator), "step": 3}


@pytest.fixture(scope="module")
def stored(running: Proxy, state: dict[str, Any]) -> str:
    url = "s3://checkpoints/transfers/stored"
    save(running, url, state)
    return url


def save(proxy: Proxy, url: str, state: dict[str, Any], threads: int = 1) -> None:
    chain = [Checksum(), Encrypt(KEY)]
    writer = streamxf.FsspecWriter(url, _extensions=chain, thread_count=threads, **options(proxy))
    dcp.save(state, storage_writer=writer)


def load(proxy: Proxy, url: str, state: dict[str, Any]) -> dict[str, Any]:
    return load_from(url, state, options(proxy))


def options(proxy: Proxy) -> dict[str, Any]:
    # botocore's own retries wait for half a minute, and would hide streamxf's
    return {**storage(proxy.url), "config_kwargs": {"retries": {"max_attempts": 1}}}


def of(requests: list[Request], *operations: str) -> list[Request]:
    return [request for request in requests if request.operation in operations]


def test_parts_are_uploaded_at_once_and_nothing_else_on_the_way(proxy: Proxy, state: dict[str, Any]) -> None:
    proxy.pace(latency=0.1)
    save(proxy, "s3://checkpoints/transfers/parts", state)
    requests = proxy.requests()
    counts = Counter(request.operation for request in requests)
    assert counts["CreateMultipartUpload"] == counts["CompleteMultipartUpload"] == 1
    assert counts["PutObject"] == 1, "only the metadata is small enough"
    assert not counts.keys() & {"CopyObject", "UploadPartCopy", "AbortMultipartUpload", "GetObject", "DeleteObject"}
    parts = of(requests, "UploadPart")
    assert len(parts) >= 4
    assert most_at_once(parts) >= 2
    (begun,), (done,) = of(requests, "CreateMultipartUpload"), of(requests, "CompleteMultipartUpload")
    assert all(part.ended <= done.begun for part in parts)
    between = [request for request in requests if begun.begun < request.begun < done.begun]
    assert {request.operation for request in between} == {"UploadPart"}
    (metadata,) = of(requests, "PutObject")
    assert metadata.key.endswith("/.metadata")
    assert metadata.begun > done.ended


def test_ranges_are_fetched_at_once_and_each_byte_once(proxy: Proxy, state: dict[str, Any], stored: str) -> None:
    proxy.forget()
    proxy.pace(latency=0.1)
    assert_same(load(proxy, stored, state), state)
    requests = proxy.requests()
    assert {request.operation for request in requests} <= {"GetObject", "HeadObject"}
    ranges = [request for request in of(requests, "GetObject") if request.key.endswith(".distcp")]
    assert most_at_once(ranges) >= 2
    size = sum(request.received for request in ranges)
    raw = sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))
    assert raw <= size < 1.1 * raw
    assert len(ranges) < SMALL / 2, "small tensors were fetched one by one"


@pytest.mark.parametrize(
    "faults",
    [
        [
            Fault("503", "CreateMultipartUpload"),
            Fault("500", "UploadPart", number=1, times=2),
            Fault("reset midway", "UploadPart", number=4),
            Fault("reset after", "CompleteMultipartUpload"),
            Fault("503", "PutObject"),
        ],
        [
            Fault("reset after", "CreateMultipartUpload"),
            Fault("reset after", "UploadPart", number=0),
            Fault("stalled", "UploadPart", number=3, seconds=0.1),
            Fault("200 with an error", "CompleteMultipartUpload"),
            Fault("reset after", "PutObject"),
        ],
    ],
    ids=["refused", "answers lost"],
)
def test_saves_survive(proxy: Proxy, state: dict[str, Any], faults: list[Fault]) -> None:
    url = "s3://checkpoints/transfers/survives"
    proxy.faults(*faults)
    save(proxy, url, state, threads=2)
    assert hit(proxy) == sum(fault.times for fault in faults)
    assert_same(load(proxy, url, state), state)
    assert_only_the_save_remains(url, storage(proxy.url))


@pytest.mark.parametrize("kinds", [("500", "reset before", "truncated"), ("503", "reset after", "stalled")])
def test_loads_survive(proxy: Proxy, state: dict[str, Any], stored: str, kinds: tuple[str, ...]) -> None:
    proxy.forget()
    proxy.faults(
        *(Fault(kind, "GetObject", number, seconds=0.1) for kind, number in zip(kinds, (0, 2, 4), strict=True))
    )
    assert_same(load(proxy, stored, state), state)
    assert hit(proxy) == len(kinds)


@pytest.mark.parametrize("number", [0, 2])
def test_wrong_bytes_are_found(proxy: Proxy, state: dict[str, Any], stored: str, number: int) -> None:
    """In the metadata, and in a tensor."""
    proxy.forget()
    proxy.faults(Fault("wrong bytes", "GetObject", number, times=10**6))
    error = error_of(lambda: load(proxy, stored, state))
    assert isinstance(error, StreamxfError), repr(error)


def hit(proxy: Proxy) -> int:
    return sum(bool(request.fault) for request in proxy.requests())
