"""T2: metadata that nobody has vouched for takes neither memory nor time; the cases stand in bombs.py."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

import streamxf
from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.metadata.limits import MAX_METADATA
from streamxf.dcp.metadata.manifest import FileFacts, Manifest
from streamxf.errors import MetadataError
from streamxf.keys import KeyRing

from .bombs import BOMBS
from .helpers import load, refused, save

MOST_MEMORY = 32  # times the file
SLACK = 4 * 2**20
MOST_SECONDS = 2.0  # of CPU, where the slowest takes 0.3 on an idle machine; without the limits most never end


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[str | None, int, int, float]]:
    command = [sys.executable, "-m", "tests.dcp.bombs"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {label: tuple(rest) for label, *rest in map(json.loads, done.stdout.splitlines())}  # type: ignore[misc]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each case needs a process, and a new one takes seconds")
@pytest.mark.parametrize("label", BOMBS)
def test_bombs_are_refused_for_little(label: str, outcomes: dict[str, Any]) -> None:
    error, size, memory, seconds = outcomes[label]
    assert error is not None
    assert error.startswith("MetadataError")
    assert memory <= MOST_MEMORY * size + SLACK
    assert seconds < MOST_SECONDS


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    """A file of holes takes nothing to make."""
    save({"w": torch.ones(3)}, tmp_path, [])
    os.truncate(tmp_path / ".metadata", MAX_METADATA + 1)
    with refused(MetadataError, f"{MAX_METADATA} are allowed"):
        load({"w": torch.ones(3)}, tmp_path, None)
    save({"w": torch.ones(3)}, tmp_path, [])
    assert streamxf.FileSystemReader(tmp_path).read_metadata().state_dict_metadata.keys() == {"w"}


def test_a_file_of_the_largest_size_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_file, "MAX_METADATA", 100)
    assert metadata_file.read_file(io.BytesIO(bytes(100))) == bytes(100)
    with pytest.raises(MetadataError, match="101 bytes, 100 are allowed"):
        metadata_file.read_file(io.BytesIO(bytes(101)))
    with pytest.raises(MetadataError, match="100 are allowed"):
        metadata_file.dump(Metadata({}), Manifest("0" * 32, None, None, {}, {}), None)


@pytest.mark.parametrize("count", [0, 1, 5, 1000, 50_000])
def test_every_index_of_the_writer_is_sparse_enough(count: int) -> None:
    """With the shortest names that there are, and with a few hundred packages."""
    facts = FileFacts(0, "0" * 32, "crc32c:00000000")
    names = [f"{number:x}" for number in range(count)]
    packages = {"streamxf": "1", "torch": "2", **{f"p{at}": "1" for at in range(300)}}
    manifest = Manifest("0" * 32, None, None, packages, dict.fromkeys(names, facts))
    assert Manifest.parse(manifest.pack()) == manifest


def test_honest_metadata_takes_no_more_than_a_bomb_may() -> None:
    """The limit is no lower than what a file of ordinary metadata needs, whatever its size."""
    for size in (1, 100, 3000):
        state = {f"layer {at}": torch.empty(2, 3) for at in range(size)}
        content = _planned(state)
        for protocol in (2, 4, 5):
            pickled = pickle.dumps(content, protocol)
            assert metadata_file.load(pickled, KeyRing()).state_dict_metadata == content.state_dict_metadata


def _planned(state: dict[str, Any]) -> Metadata:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import MetadataIndex

    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    _, content = planner.create_global_plan([planner.create_local_plan()])
    zero = torch.Size([0, 0])
    content.storage_data = {MetadataIndex(name, zero, 0): _StorageInfo("a", 0, 1) for name in state}
    return content
