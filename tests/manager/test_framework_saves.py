"""What a framework's save leaves that was killed or failed, or that somebody damaged later."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import CheckpointManager
from streamxf.dcp.writer import FileSystemWriter
from streamxf.manager import sessions


def save(manager: CheckpointManager, step: int, text: str = "weights") -> None:
    folder = Path(manager.begin(step))
    (folder / "weights").write_text(text)
    manager.commit(step)


def kinds(run: Path) -> dict[str, str]:
    return {record.name: record.kind for record in streamxf.list_checkpoints(run)}


def killed(run: Path, write: Callable[[Path], None], step: int = 6) -> None:
    """A process that saves, begins another save, writes something, and is gone."""
    if (pid := os.fork()) == 0:
        try:
            manager = CheckpointManager(run)
            save(manager, 3)
            manager.wait()
            write(Path(manager.begin(step)))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def leave_a_draft(folder: Path) -> None:
    (folder / "parts").mkdir()
    (folder / "parts" / "weights.tmp8341").write_text("half of the")


@pytest.mark.parametrize("step", [6, 9], ids=["same step", "another"])
def test_what_a_killed_save_left_goes_with_the_next(step: int, tmp_path: Path) -> None:
    (tmp_path / "step-6").mkdir()
    (tmp_path / "step-6" / "mine.txt").write_text("mine")
    killed(tmp_path, leave_a_draft)
    assert kinds(tmp_path) == {"step-3": "own", "step-6": "unfinished"}
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest() == str(tmp_path / "step-3")
        assert (tmp_path / "step-6" / "parts").exists(), "who does not save removes nothing"
        save(manager, step)
    files = {path.name for path in (tmp_path / "step-6").iterdir() if not path.name.startswith(".")}
    assert files == ({"mine.txt", "weights"} if step == 6 else {"mine.txt"})
    assert streamxf.list_checkpoints(tmp_path)[-1].bytes == len("weights")
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest() == str(tmp_path / f"step-{step}")


def test_without_locks_it_goes_with_the_next_save_of_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing shows that the process was killed, and the new save's note takes the place of the old one."""
    monkeypatch.setattr(sessions, "fcntl", None)
    killed(tmp_path, leave_a_draft)
    with CheckpointManager(tmp_path) as manager:
        save(manager, 9)
        assert (tmp_path / "step-6" / "parts").exists(), "it may be under way"
        save(manager, 6)
    assert not (tmp_path / "step-6" / "parts").exists()


def test_a_save_in_the_place_of_another_finds_nothing_of_it(tmp_path: Path) -> None:
    """Some frameworks refuse to save over what they saved before, and a job would stop there at each start."""
    with CheckpointManager(tmp_path) as manager:
        save(manager, 3)
        (tmp_path / "step-3" / "mine.txt").write_text("mine")
        folder = Path(manager.begin(3))
        assert {path.name for path in folder.iterdir()} == {"mine.txt", ".streamxf-saving"}
        (folder / "weights").write_text("weights again")
        manager.commit(3)
    assert streamxf.list_checkpoints(tmp_path)[0].bytes == len("weights again")


def test_metadata_does_not_complete_what_was_not_committed(tmp_path: Path) -> None:
    """A framework may write more files after DCP has published its own."""

    def publish(folder: Path) -> None:
        dcp.save({"w": torch.ones(9)}, storage_writer=FileSystemWriter(folder), no_dist=True)

    killed(tmp_path, publish)
    assert (tmp_path / "step-6" / ".metadata").exists()
    assert kinds(tmp_path) == {"step-3": "own", "step-6": "unfinished"}
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest() == str(tmp_path / "step-3")
        save(manager, 9)
    assert kinds(tmp_path) == {"step-3": "own", "step-9": "own"}
    assert not (tmp_path / "step-6").exists()


def test_what_a_failed_save_left_goes_with_the_next(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        save(manager, 3)
        future: Future[None] = Future()
        leave_a_draft(Path(manager.begin(6)))
        manager.commit(6, after=future)
        future.set_exception(OSError("the network is down"))
        with pytest.raises(OSError, match="network"):
            manager.wait()
        assert kinds(tmp_path) == {"step-3": "own", "step-6": "unfinished"}
        save(manager, 6)
    assert kinds(tmp_path) == {"step-3": "own", "step-6": "own"}
    assert {path.name for path in (tmp_path / "step-6").iterdir()} >= {"weights"}
    assert not (tmp_path / "step-6" / "parts").exists()


def test_digests_are_computed_even_if_the_job_ends_at_once(tmp_path: Path) -> None:
    future: Future[None] = Future()
    future.set_result(None)
    with CheckpointManager(tmp_path) as manager:
        save(manager, 3)
        (Path(manager.begin(6)) / "weights").write_text("weights")
        manager.commit(6, after=future)
    (tmp_path / "step-6" / "weights").write_text("weighty")
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest() == str(tmp_path / "step-3")
        assert "SHA-256" in manager.skipped["step-6"]


def test_what_could_not_be_loaded_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in 3, 6:
            save(manager, step)
        assert manager.latest() == str(tmp_path / "step-6")
        assert manager.latest({"step-6": "the framework found damage"}) == str(tmp_path / "step-3")
        assert manager.skipped == {"step-6": "the framework found damage"}
        assert "step-6 is passed over: the framework found damage" in caplog.text
        with pytest.raises(streamxf.errors.NoCheckpointError, match="found damage"):
            manager.latest({"step-6": "the framework found damage", "step-3": "here, too"})


def test_a_save_over_what_a_framework_wrote_leaves_nothing_of_it(tmp_path: Path) -> None:
    """Its commit record, which alone says what it wrote, is gone with the beginning of the save."""
    with CheckpointManager(tmp_path) as manager:
        (Path(manager.begin(3)) / "model").mkdir()
        (tmp_path / "step-3" / "model" / "weights").write_text("weights")
        manager.commit(3)
        (tmp_path / "step-3" / "mine.txt").write_text("mine")
        manager.save(3, {"w": torch.ones(9)})
    files = {path.name for path in (tmp_path / "step-3").rglob("*") if path.suffix != ".distcp"}
    assert files == {".metadata", "mine.txt"}
