"""docs/examples/fsdp2.py, killed, damaged and resumed; and a chain that ranks take from the environment."""

import os
from pathlib import Path

import pytest

import streamxf
from streamxf.keys import write_key
from tests.dcp.helpers import stored_chain
from tests.dcp.test_install_environment import with_entry_points

from .damaged import assert_falls_back
from .killed import EXAMPLES, ROOT, assert_managed, copies, finished, two_ranks

pytestmark = pytest.mark.slow

# no line of it is about streamxf
SAVING = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
dist.init_process_group("gloo")
dcp.save({"weight": torch.ones(1000)}, checkpoint_id=sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""


def test_killed_and_resumed(tmp_path: Path) -> None:
    saving = "streamxf.dcp.writer:ChainWriterMixin.finish"
    run = assert_managed(tmp_path, copies(2), [EXAMPLES / "fsdp2.py"], saving=saving, told=two_ranks())
    records = streamxf.list_checkpoints(run)
    assert [record.name for record in records][-2:] == ["step-9", "step-12"]
    assert len(records) <= 3, "the last 2, and the best one"
    assert all(record.metrics.keys() == {"loss"} for record in records)
    assert {stored_chain(run / record.name, None) for record in records} == {"floatzip+checksum"}


def test_damaged_and_resumed(tmp_path: Path) -> None:
    assert_falls_back(tmp_path, [*copies(2), EXAMPLES / "fsdp2.py"], "*.distcp")


def test_ranks_by_environment(tmp_path: Path) -> None:
    """torchrun hands its environment on, and the key's location with it."""
    script, key = tmp_path / "plain.py", streamxf.Key.generate()
    script.write_text(SAVING)
    write_key(tmp_path / "key", key)
    finished(
        two_ranks(script, tmp_path / "saved"),
        PYTHONPATH=os.pathsep.join(map(str, [with_entry_points(tmp_path), ROOT])),
        STREAMXF_CHAIN="zstd+encrypt",
        STREAMXF_KEYS=f"file:{tmp_path / 'key'}",
    )
    assert stored_chain(tmp_path / "saved", key) == "zstd+encrypt"
