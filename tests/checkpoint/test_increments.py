"""Incremental saves without DCP."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamxf
from streamxf.checkpoint.memory import SaveMemory

FROZEN = np.arange(50_000, dtype="float32")


def write(path: Path, memory: SaveMemory | None, base: Path | None, moving: Any, **how: Any) -> Any:
    with streamxf.CheckpointWriter(path, memory=memory, base=base, **how) as writer:
        writer["moving"] = moving
        writer["frozen"] = FROZEN
        writer["step"] = path.name
    assert writer.report is not None
    return writer.report


def assert_holds(path: Path, moving: Any) -> None:
    with streamxf.Checkpoint(path, framework="numpy") as checkpoint:
        assert checkpoint["step"].read() == path.name
        assert np.asarray(checkpoint["frozen"].read()).tobytes() == FROZEN.tobytes()
        assert np.asarray(checkpoint["moving"].read()).tobytes() == moving.tobytes()
    assert streamxf.verify(path).ok


def test_arrays_that_have_not_changed_are_shared(tmp_path: Path) -> None:
    memory, last = SaveMemory(), None
    for step in range(4):
        moving = np.full(5000, step, dtype="int16")
        report = write(tmp_path / f"{step}", memory, last, moving)
        assert (report.unchanged, report.whole) == ((1, {"changed": 1}) if last else (0, {}))
        last = tmp_path / f"{step}"
        shutil.rmtree(tmp_path / f"{step - 1}", ignore_errors=True)
        assert_holds(last, moving)


def test_what_comes_in_pieces_is_stored(tmp_path: Path) -> None:
    memory = SaveMemory()
    for step, base in (("1", None), ("2", tmp_path / "1")):
        with streamxf.CheckpointWriter(tmp_path / step, memory=memory, base=base) as writer:
            writer.add("frozen", iter([FROZEN.tobytes()]), dtype="float32", shape=(50_000,))
        assert writer.report is not None
        assert writer.report.unchanged == 0
    with streamxf.CheckpointWriter(tmp_path / "3", memory=memory, base=tmp_path / "2") as writer:
        writer["frozen"] = FROZEN
    assert writer.report is not None
    assert writer.report.unchanged == 1


def test_a_save_that_fails_leaves_no_link_and_changes_nothing(tmp_path: Path) -> None:
    memory, moving = SaveMemory(), np.zeros(5000)
    write(tmp_path / "1", memory, None, moving)
    for _ in range(4):
        with (
            pytest.raises(ZeroDivisionError),
            streamxf.CheckpointWriter(tmp_path / "2", memory=memory, base=tmp_path / "1") as writer,
        ):
            writer["frozen"] = FROZEN
            assert len([*(tmp_path / "2").glob("*.distcp")]) == 2
            raise ZeroDivisionError
        assert not (tmp_path / "2").exists()
    assert write(tmp_path / "2", memory, tmp_path / "1", moving).unchanged == 2
    for path in (tmp_path / "1", tmp_path / "2"):
        assert_holds(path, moving)
