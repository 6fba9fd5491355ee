"""docs/examples/torchtitan_checkpointer.py, killed and resumed, its saves in a thread, and torch's own conversion."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from dcp.helpers import stored_chain

import streamxf

from .killed import EXAMPLES, assert_resumes, finished, losses, two_ranks

pytestmark = pytest.mark.slow

COMMAND = two_ranks(EXAMPLES / "torchtitan_checkpointer.py")


def test_killed_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("torchtitan")
    saved = assert_resumes(tmp_path, COMMAND) / "checkpoint"
    assert streamxf.latest(saved) == str(saved / "step-12")
    assert {stored_chain(path, None) for path in saved.glob("step-*")} == {"floatzip+checksum"}

    whole = tmp_path / "whole.pt"
    convert = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]
    finished([*convert, saved / "step-12", whole], STREAMXF_CHAIN="floatzip+checksum")
    state = torch.load(whole, weights_only=True)
    with streamxf.Checkpoint(saved / "step-12") as checkpoint:
        assert torch.equal(state["0.weight"], checkpoint["0.weight"].read())
    assert state["train_state"]["step"] == 12


def test_saving_in_a_thread(tmp_path: Path) -> None:
    pytest.importorskip("torchtitan")
    first = losses(finished([*COMMAND, tmp_path / "run", "async"]))
    saved = tmp_path / "run" / "checkpoint"
    assert {stored_chain(path, None) for path in saved.glob("step-*")} == {"floatzip+checksum"}
    for step in "9", "12":
        (saved / f"step-{step}" / ".metadata").unlink()
    again = losses(finished([*COMMAND, tmp_path / "run", "async"]))
    assert [*again] == ["7", "8", "9", "10", "11", "12"]
    assert again == {step: first[step] for step in again}
