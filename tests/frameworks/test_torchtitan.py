"""docs/examples/torchtitan_checkpointer.py, killed and resumed, its saves in a thread, and torch's own conversion."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

import streamxf
from tests.dcp.helpers import stored_chain

from .damaged import assert_falls_back
from .killed import EXAMPLES, assert_managed, assert_resumes, finished, losses, two_ranks

pytestmark = pytest.mark.slow

SCRIPT = EXAMPLES / "torchtitan_checkpointer.py"


def test_killed_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("torchtitan")
    saved = assert_managed(tmp_path, two_ranks(), [SCRIPT], inside="checkpoint")
    assert [record.name for record in streamxf.list_checkpoints(saved)] == ["step-6", "step-9", "step-12"]
    assert {stored_chain(path, None) for path in saved.glob("step-*")} == {"floatzip+checksum"}

    whole = tmp_path / "whole.pt"
    convert = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]
    finished([*convert, saved / "step-12", whole], STREAMXF_CHAIN="floatzip+checksum")
    state = torch.load(whole, weights_only=True)
    with streamxf.Checkpoint(saved / "step-12") as checkpoint:
        assert torch.equal(state["0.weight"], checkpoint["0.weight"].read())
    assert state["train_state"]["step"] == 12


@pytest.mark.parametrize("verify", ["sample", "none"])
def test_damaged_and_resumed(verify: str, tmp_path: Path) -> None:
    """With "none", torchtitan's own load meets the damage, and it falls back within the start."""
    pytest.importorskip("torchtitan")
    script = tmp_path / "script.py"
    old = 'manager={"save"'
    assert old in SCRIPT.read_text()
    script.write_text(SCRIPT.read_text().replace(old, f'manager={{"verify": "{verify}", "save"'))
    assert_falls_back(tmp_path, two_ranks(script), "*.distcp", inside="checkpoint")


def test_saving_in_a_thread(tmp_path: Path) -> None:
    pytest.importorskip("torchtitan")
    command = two_ranks(SCRIPT, tmp_path / "run", "async")
    first = losses(finished(command))
    saved = tmp_path / "run" / "checkpoint"
    records = streamxf.list_checkpoints(saved)
    assert [(record.name, record.complete) for record in records] == [
        (f"step-{step}", True) for step in ("6", "9", "12")
    ]
    for step in "9", "12":
        (saved / f"step-{step}" / ".metadata").unlink()
    again = losses(finished(command))
    assert [*again] == ["7", "8", "9", "10", "11", "12"]
    assert again == {step: first[step] for step in again}


def test_options() -> None:
    """torchtitan reads its command line into this, and logs it as JSON."""
    checkpointer = pytest.importorskip("streamxf.integrations.torchtitan").ManagedCheckpointer
    tyro = pytest.importorskip("tyro")
    default = checkpointer.Config(manager={"save": streamxf.Schedule(seconds=1800, at=[1])})
    config = tyro.cli(checkpointer.Config, default=default, args=["--interval", "7"])
    assert config == dataclasses.replace(default, interval=7)
    assert "seconds=1800" in json.loads(json.dumps(config.to_dict()))["manager"]


def test_torchtitans_own(tmp_path: Path) -> None:
    """Its class alone needs nothing but the chain: it resumes from the newest folder that has metadata."""
    pytest.importorskip("torchtitan")
    script = tmp_path / "own.py"
    managed = """ManagedCheckpointer.Config(
        enable=True,
        manager={"save": streamxf.Schedule(steps=SAVE_EVERY), "keep": streamxf.Retention(last=2, every=6)},"""
    example = SCRIPT.read_text()
    for old, new in (
        (managed, "ManagedCheckpointer.Config(\n        enable=True,\n        interval=SAVE_EVERY,"),
        ("streamxf.integrations.torchtitan import ", "torchtitan.components.checkpointer import CheckpointManager as "),
        ("        if checkpointer.manager.stopping:\n            break\n", ""),
    ):
        assert old in example
        example = example.replace(old, new)
    script.write_text(example)
    saved = assert_resumes(tmp_path, two_ranks(script)) / "checkpoint"
    assert streamxf.latest(saved) == str(saved / "step-12")
    assert {stored_chain(path, None) for path in saved.glob("step-*")} == {"floatzip+checksum"}
