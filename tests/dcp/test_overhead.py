"""What a container adds to the bytes that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from streamxf import FileSystemReader

from .helpers import KEY, full_chain, save

MIB = 2**20


def stored_size(path: Path) -> int:
    (info,) = FileSystemReader(path, keys=KEY).read_metadata().storage_data.values()
    return int(info.length)


def torch_size(tensor: torch.Tensor, path: Path) -> int:
    dcp.save({"w": tensor}, storage_writer=dcp.FileSystemWriter(path))
    (info,) = dcp.FileSystemReader(path).read_metadata().storage_data.values()
    return int(info.length)


def incompressible(size: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (size // 8,), dtype=torch.int64)


@pytest.mark.parametrize("view", [False, True], ids=["whole", "view"])
def test_four_kibibytes(tmp_path: Path, view: bool) -> None:
    tensor = incompressible(8192)[:512] if view else incompressible(4096)
    save({"w": tensor}, tmp_path / "own")
    assert stored_size(tmp_path / "own") - torch_size(tensor, tmp_path / "stock") <= 300 + len("w")


def test_the_chain_by_itself(tmp_path: Path) -> None:
    """Without compression, which shrinks torch's framing and so pays for a part of the container."""
    tensor = incompressible(4096)
    save({"w": tensor}, tmp_path / "own", full_chain()[1:])
    assert stored_size(tmp_path / "own") - torch_size(tensor, tmp_path / "stock") <= 300 + len("w")


def test_64_mebibytes(tmp_path: Path, big_folder: Path) -> None:
    tensor: Any = incompressible(64 * MIB)
    save({"w": tensor}, big_folder)
    assert stored_size(big_folder) <= tensor.nbytes * 1.0005
