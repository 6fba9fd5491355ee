"""A save in the background that nobody waits for still comes to its end when the script does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import streamxf

SCRIPT = """
import sys
import torch
import torch.distributed.checkpoint as dcp
import streamxf

state = {"weights": torch.arange(16 * 2**20, dtype=torch.int32)}
writer = streamxf.FileSystemWriter(sys.argv[1], _extensions=[streamxf.ZStandard(), streamxf.Checksum()])
dcp.async_save(state, storage_writer=writer, no_dist=True)
"""


def test_async_save_outlives_the_script(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    subprocess.run([sys.executable, "-c", SCRIPT, str(path)], check=True, timeout=120)

    restored = {"weights": torch.zeros(16 * 2**20, dtype=torch.int32)}
    dcp.load(restored, storage_reader=streamxf.FileSystemReader(path), no_dist=True)

    assert torch.equal(restored["weights"], torch.arange(16 * 2**20, dtype=torch.int32))
