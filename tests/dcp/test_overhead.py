"""What a container adds to the elements of its tensor."""

from pathlib import Path
from typing import Any

import pytest
import torch

from streamxf import Checksum, Encrypt, FileSystemReader, FloatZip

from .helpers import KEY, full_chain, save

MIB = 2**20


def stored_size(path: Path) -> int:
    (info,) = FileSystemReader(path, keys=KEY).read_metadata().storage_data.values()
    return int(info.length)


def incompressible(size: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (size // 8,), dtype=torch.int64)


@pytest.mark.parametrize("chain", [full_chain(), full_chain()[1:], [FloatZip(), Checksum(), Encrypt(KEY)]], ids=str)
@pytest.mark.parametrize("view", [False, True], ids=["whole", "view"])
def test_four_kibibytes(tmp_path: Path, view: bool, chain: list[Any]) -> None:
    tensor = incompressible(8192)[:512] if view else incompressible(4096)
    save({"w": tensor}, tmp_path, chain)
    assert stored_size(tmp_path) - tensor.nbytes <= 300 + len("w")


def test_64_mebibytes(tmp_path: Path, big_folder: Path) -> None:
    tensor: Any = incompressible(64 * MIB)
    save({"w": tensor}, big_folder)
    assert stored_size(big_folder) <= tensor.nbytes * 1.0005
