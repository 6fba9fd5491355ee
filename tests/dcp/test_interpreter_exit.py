"""A save in the background that nobody waits for is finished when the script ends, and tells if it failed."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from tests.cli import preloaded
from tests.dcp.helpers import needs_gloo, since

IMPORTS = """
import os, sys, time
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
import streamxf
"""

BY_THREAD = """
state = {"weights": torch.arange(16 * 2**20, dtype=torch.int32)}
writer = streamxf.FileSystemWriter(sys.argv[1], _extensions=[streamxf.ZStandard(), streamxf.Checksum()])
dcp.async_save(state, storage_writer=writer, no_dist=True)
if sys.argv[2:]:
    dcp.async_save({"number": 1}, storage_writer=streamxf.FileSystemWriter(sys.argv[2]), no_dist=True)
"""

BY_PROCESS = """
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.meeting", rank=0, world_size=1)
state = {"weights": torch.arange(16 * 2**20, dtype=torch.int32)}
writer = streamxf.FileSystemWriter(sys.argv[1], _extensions=[streamxf.ZStandard(), streamxf.Checksum()])
for planner in dcp.DefaultSavePlanner(), None:
    if planner is not None:
        planner.cannot_be_pickled = lambda: None
    kind = AsyncCheckpointerType.PROCESS
    dcp.async_save(state, storage_writer=writer, planner=planner, async_checkpointer_type=kind)
"""

LEFT = """
def save(value, by=dcp.async_save, **options):
    state = {name: torch.arange(2**21) + value for name in "abcd"}
    writer = streamxf.FileSystemWriter(sys.argv[1], chain=[streamxf.ZStandard(level=9), streamxf.Checksum()])
    return by(state, storage_writer=writer, **options)

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.meeting", rank=0, world_size=1)
save(1, dcp.save)
if sys.argv[2] != "before there is a process":
    save(2, async_checkpointer_type=AsyncCheckpointerType.PROCESS).result()
before = set(os.listdir(sys.argv[1]))
save(3, async_checkpointer_type=AsyncCheckpointerType.PROCESS)
while sys.argv[2] == "while it writes" and not set(os.listdir(sys.argv[1])) - before:
    time.sleep(0.001)
os._exit(7)
"""


def run(script: str, folder: Path, *arguments: str, code: int = 0) -> str:
    """Run a script to its end, and to that of all processes that it started; what they wrote to stderr."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as told:
        started = preloaded.start(["-c", IMPORTS + script, folder / "checkpoint", *arguments], (0, 1, writing))
        os.close(writing)
        said = told.read()
    assert started.wait() == code, said
    return said


def test_async_save_outlives_the_script_and_one_that_fails_is_told_on_stderr(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    ended = preloaded.script(IMPORTS + BY_THREAD, tmp_path / "checkpoint", taken)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("a save in the background failed: rank 0: ") == 1
    assert str(taken) in ended.stderr
    assert_saved(tmp_path / "checkpoint")


@pytest.mark.slow
@needs_gloo
@since("2.9", "has a background process that ends with a failed save, and the next save waits for it forever")
def test_async_save_by_a_process_outlives_the_script_and_one_that_cannot_be_sent_is_told(tmp_path: Path) -> None:
    assert run(BY_PROCESS, tmp_path).count("a save in the background failed: ") == 1
    assert_saved(tmp_path / "checkpoint")


def assert_saved(checkpoint: Path) -> None:
    restored = {"weights": torch.zeros(16 * 2**20, dtype=torch.int32)}
    dcp.load(restored, storage_reader=streamxf.FileSystemReader(checkpoint), no_dist=True)
    assert torch.equal(restored["weights"], torch.arange(16 * 2**20, dtype=torch.int32))


@pytest.mark.slow
@needs_gloo
@pytest.mark.parametrize(
    ("moment", "values"), [("before there is a process", {1}), ("at once", {2, 3}), ("while it writes", {2, 3})]
)
def test_one_that_is_left_by_exit_is_published_as_a_whole_or_not_at_all(
    tmp_path: Path, moment: str, values: set[int]
) -> None:
    """The process that saves may have all of the state by then, a part or none."""
    run(LEFT, tmp_path, moment, code=7)
    restored = {name: torch.zeros(2**21, dtype=torch.int64) for name in "abcd"}
    dcp.load(restored, storage_reader=streamxf.FileSystemReader(tmp_path / "checkpoint"), no_dist=True)
    found = {value for tensor in restored.values() for value in (tensor - torch.arange(2**21)).unique().tolist()}
    assert len(found) == 1
    assert found <= values
    assert streamxf.verify(tmp_path / "checkpoint").ok
