"""What reading takes is bounded by boxes, however large a tensor is."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .samples import WRITERS

MIB = 2**20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.parametrize("kind", ["safetensors", "torch.save, turned", "compressed"])
def test_memory_is_bounded_by_boxes(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "checkpoint.safetensors"
    tensor = torch.zeros(64, MIB)
    WRITERS[kind.partition(",")[0]]({"t": tensor.t() if "turned" in kind else tensor}, path)
    command = [sys.executable, Path(__file__).with_name("growth.py"), path]
    grown = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert grown < 128, "the tensor has 256 MiB"
