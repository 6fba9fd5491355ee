"""Fixtures of the DCP tests."""

import gc
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.surroundings import in_memory


@pytest.fixture(params=["small", "in parts"])
def size_of_index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large index is read part by part, when it is asked for an item."""
    if request.param == "in parts":
        monkeypatch.setattr("streamxf.format.index._SMALL", 0)


@pytest.fixture
def group() -> Iterator[None]:
    """A job of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()


@pytest.fixture
def big_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for gigabytes: in memory where there is room, and gone when the test is."""
    folder = Path(tempfile.mkdtemp(dir=in_memory(4 * 2**30) or tmp_path))
    yield folder / "checkpoint"
    shutil.rmtree(folder)
