"""docs/examples/torchtune_checkpointer.py, killed, damaged and resumed, and its saves in a thread."""

from pathlib import Path

import pytest

import streamxf
from tests.dcp.helpers import stored_chain

from .damaged import assert_falls_back
from .killed import EXAMPLES, assert_resumes, finished, losses, two_ranks

pytestmark = pytest.mark.slow

COMMAND = two_ranks(EXAMPLES / "torchtune_checkpointer.py")


def assert_saved(folder: Path) -> None:
    assert streamxf.latest(folder) == str(folder / "dist_epoch_12")
    assert {stored_chain(path, None) for path in folder.glob("dist_epoch_*")} == {"floatzip+checksum"}


def test_killed_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("torchtune")
    assert_saved(assert_resumes(tmp_path, COMMAND))


def test_damaged_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("torchtune")
    assert_falls_back(tmp_path, COMMAND, "*.distcp")


def test_saving_in_a_thread(tmp_path: Path) -> None:
    pytest.importorskip("torchtune")
    first = losses(finished([*COMMAND, tmp_path, "async"]))
    assert_saved(tmp_path)
    for epoch in "9", "12":
        (tmp_path / f"dist_epoch_{epoch}" / ".metadata").unlink()
    again = losses(finished([*COMMAND, tmp_path, "async"]))
    assert [*again] == ["7", "8", "9", "10", "11", "12"]
    assert again == {step: first[step] for step in again}
