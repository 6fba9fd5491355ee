"""Each test runs on a GPU, where there is one, and on a stand-in, which copies as late as it may."""

import gc
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.late_copies import LateCopies, pretend

GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `device` runs on both, one that takes `gpu` on a GPU only."""
    if "device" in metafunc.fixturenames:
        only = "gpu" in metafunc.fixturenames
        metafunc.parametrize("device", [GPU] if only else ["cpu", GPU], indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    kind = torch.device(request.param)
    if kind.type == "cpu":
        pretend(monkeypatch, LateCopies())
    elif not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    yield kind
    gc.collect()
    if kind.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@pytest.fixture
def gpu(device: torch.device) -> torch.device:
    return device


@pytest.fixture
def group(device: torch.device) -> Iterator[None]:
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()
