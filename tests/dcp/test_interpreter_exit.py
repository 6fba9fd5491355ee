"""A save in the background that nobody waits for is finished when the script ends, and tells if it failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import streamxf

BY_THREAD = """
import sys
import torch
import torch.distributed.checkpoint as dcp
import streamxf

state = {"weights": torch.arange(16 * 2**20, dtype=torch.int32)}
writer = streamxf.FileSystemWriter(sys.argv[1], _extensions=[streamxf.ZStandard(), streamxf.Checksum()])
dcp.async_save(state, storage_writer=writer, no_dist=True)
"""

BY_PROCESS = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
import streamxf

if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.meeting", rank=0, world_size=1)
    state = {"weights": torch.arange(16 * 2**20, dtype=torch.int32)}
    writer = streamxf.FileSystemWriter(sys.argv[1], _extensions=[streamxf.ZStandard(), streamxf.Checksum()])
    dcp.async_save(state, storage_writer=writer, async_checkpointer_type=AsyncCheckpointerType.PROCESS)
"""

gloo = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo")


def run(script: str, folder: Path) -> str:
    """Run a script to its end; what it wrote to stderr."""
    file = folder / "script.py"
    file.write_text(script)
    command = [sys.executable, str(file), str(folder / "checkpoint")]
    return subprocess.run(command, check=True, timeout=300, stderr=subprocess.PIPE, text=True).stderr


@pytest.mark.parametrize("script", [BY_THREAD, pytest.param(BY_PROCESS, marks=[pytest.mark.slow, gloo])])
def test_async_save_outlives_the_script(tmp_path: Path, script: str) -> None:
    run(script, tmp_path)
    restored = {"weights": torch.zeros(16 * 2**20, dtype=torch.int32)}
    dcp.load(restored, storage_reader=streamxf.FileSystemReader(tmp_path / "checkpoint"), no_dist=True)
    assert torch.equal(restored["weights"], torch.arange(16 * 2**20, dtype=torch.int32))


def test_one_that_fails_then_is_told_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").touch()
    told = run(BY_THREAD, tmp_path)
    assert "a save in the background failed: rank 0: " in told
    assert str(tmp_path / "checkpoint") in told
