"""Writers that are copied, forked, shared by two saves, or still at work when the script ends."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.planner import SavePlan

import streamxf
from streamxf import Encrypt
from streamxf.errors import AbortedError

from .helpers import KEY, full_chain, load_with

STATE = {"a": torch.arange(100.0), "b": torch.arange(100.0) + 1}

IN_THE_BACKGROUND = """
import sys, time
import torch
import torch.distributed.checkpoint as dcp
import streamxf

class Slow(streamxf.FileSystemWriter):
    def write_data(self, plan, planner):
        time.sleep(1)  # by now the script has ended
        return super().write_data(plan, planner)

state = {"a": torch.arange(100.0), "b": torch.arange(100.0) + 1}
dcp.async_save(state, storage_writer=Slow(sys.argv[1], thread_count=2), no_dist=True)
"""


def test_files_are_written_by_threads_that_start_while_the_interpreter_exits(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", IN_THE_BACKGROUND, str(tmp_path / "c")], check=True, timeout=120)
    loaded = load_with(STATE, streamxf.FileSystemReader(tmp_path / "c"))
    assert all(torch.equal(loaded[name], STATE[name]) for name in STATE)


def test_a_second_save_on_a_writer_that_is_at_work_is_refused(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path)
    writer.set_up_storage_writer(True)
    planner: Any = dcp.DefaultSavePlanner()
    writer.write_data(SavePlan([]), planner)
    with pytest.raises(AbortedError, match="another save through this writer"):
        writer.write_data(SavePlan([]), planner)


def test_a_writer_that_has_saved_can_be_copied(tmp_path: Path) -> None:
    writer = streamxf.FileSystemWriter(tmp_path / "one", _extensions=full_chain())
    dcp.save(STATE, storage_writer=writer)
    again = copy.deepcopy(writer)
    dcp.save(STATE, checkpoint_id=tmp_path / "two", storage_writer=again)
    loaded = load_with(STATE, streamxf.FileSystemReader(tmp_path / "two", keys=KEY))
    assert torch.equal(loaded["a"], STATE["a"])


def test_an_attached_writer_works_in_a_forked_child(tmp_path: Path) -> None:
    writer = streamxf.attach(dcp.FileSystemWriter(tmp_path), [Encrypt(KEY)])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            dcp.save(STATE, storage_writer=writer, no_dist=True)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    loaded = load_with(STATE, streamxf.FileSystemReader(tmp_path, keys=KEY, require="bound"))
    assert torch.equal(loaded["a"], STATE["a"])
