"""What kills leave in a run's folder, and what the next job makes of it."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf import Retention
from streamxf.format.names import LOCK
from streamxf.manager import manager as module
from streamxf.manager.manager import CheckpointManager
from streamxf.notes import SAVING
from streamxf.storage.lock import locked
from streamxf.storage.opening import open_storage
from tests.failing import fails_with

from .runs import complete, resumed_by, saved_run, state_at, unsaveable


def killed_saves(run: Path, monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Saves of a job that was killed after it had published them, before it could say so."""
    with monkeypatch.context() as patched, CheckpointManager(run) as job:
        patched.setattr("streamxf.manager.housekeeper.Housekeeper._end", lambda *_: None)
        for step in steps:
            job.save(step, state_at(step))


def test_a_save_over_one_that_was_killed_after_it_had_published_leaves_that_until_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_saves(tmp_path, monkeypatch, 1)
    assert (tmp_path / "step-1" / SAVING).exists()
    with CheckpointManager(tmp_path) as manager:
        with pytest.raises(CheckpointException):
            manager.save(1, unsaveable())
        assert resumed_by(manager) == 1
    assert not (tmp_path / "step-1" / SAVING).exists()


@pytest.mark.parametrize("left", [(), (".streamxf-saving.0123abcd.tmp",), (".streamxf-note-0123abcd",)])
def test_folders_in_which_nothing_is_left_go_with_the_next_save(tmp_path: Path, left: tuple[str, ...]) -> None:
    saved_run(tmp_path, 1)
    (tmp_path / "step-5").mkdir()
    (tmp_path / "of-2024").mkdir()
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-7" / "data.bin").write_bytes(b"somebody's")
    for name in left:
        (tmp_path / "step-5" / name).write_bytes(b"")
    saved_run(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == [".streamxf", "of-2024", "step-1", "step-2", "step-7"]
    assert os.listdir(tmp_path / "step-7") == ["data.bin"]


def test_a_hold_that_ends_leaves_the_folder_of_the_next_one(tmp_path: Path) -> None:
    """Somebody who is about to put a file there would fail."""
    saved_run(tmp_path, 1)
    with streamxf.hold(tmp_path / "step-1"):
        pass
    assert (tmp_path / ".streamxf" / "holds").is_dir()


def test_what_a_failed_save_leaves_goes_with_the_next_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the file of a rank that was killed, while the others have told of it."""

    def fails(*_: Any, **__: Any) -> None:
        (tmp_path / "step-1" / f"__1_0_{'a' * 32}.distcp").write_bytes(b"of rank 1")
        raise CheckpointException("rank 1 has died", {})

    with CheckpointManager(tmp_path) as job:
        with monkeypatch.context() as patched, pytest.raises(CheckpointException):
            patched.setattr(module, "dcp_save", fails)
            job.save(1, state_at(1))
        job.wait()
    saved_run(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == [".streamxf", "step-2"]


def test_a_failed_save_that_leaves_nothing_leaves_no_folder(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        with pytest.raises(CheckpointException):
            manager.save(1, unsaveable())
        manager.wait()
        assert os.listdir(tmp_path) == [".streamxf"]


def test_a_removal_that_was_killed_holds_up_nobody_who_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_run(tmp_path, 1, 2)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("streamxf.manager.forget._remove_unchanged", fails_with(KeyboardInterrupt))
        streamxf.forget(tmp_path, 1)
    (note,) = (tmp_path / ".streamxf").glob("going-*")
    _, _, number = note.name.split("-")
    note.rename(note.with_name(f"going-{int(time.time()) - 61}-{number}"))
    began = time.monotonic()
    with streamxf.hold(tmp_path / "step-1"):
        assert time.monotonic() - began < 30
    saved_run(tmp_path, 3)
    assert complete(tmp_path) == ["step-1", "step-2", "step-3"]
    assert not list((tmp_path / ".streamxf").glob("going-*"))


def test_what_a_killed_removal_has_left_stays_while_somebody_writes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved_run(tmp_path, 1, 2)
    unlink, gone = os.unlink, []

    def killed(path: Any, *arguments: Any, **options: Any) -> None:
        if os.fspath(path) == ".metadata":
            gone.append(path)
        elif gone:
            raise KeyboardInterrupt
        unlink(path, *arguments, **options)

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(os, "unlink", killed)
        streamxf.forget(tmp_path, 1)
    left = {*os.listdir(tmp_path / "step-1")} - {LOCK}
    assert left
    assert gone
    with locked(open_storage(tmp_path / "step-1")), monkeypatch.context() as patched:
        patched.setattr("streamxf.storage.lock.PATIENCE", 0.0)
        saved_run(tmp_path, 3)
        assert {*os.listdir(tmp_path / "step-1")} - {LOCK} == left
    assert "step-1 could not be cleaned up: another process" in caplog.text
    saved_run(tmp_path, 4)
    assert not (tmp_path / "step-1").exists()


@pytest.mark.parametrize("framework", [False, True])
@pytest.mark.parametrize("calls", range(1, 8))
def test_a_removal_that_is_killed_removes_extras_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: bool, calls: int
) -> None:
    if framework:
        with CheckpointManager(tmp_path) as manager:
            for step in (1, 2):
                (Path(manager.begin(step)) / "weights").write_bytes(b"weights")
                manager.commit(step)
    else:
        saved_run(tmp_path, 1, 2)
    for name in ("A.txt", "_.txt", "z.txt"):
        (tmp_path / "step-1" / name).write_bytes(b"extra")
    keep, unlink = Retention(last=1, extras="remove"), os.unlink
    left = calls

    def killed(path: Any, *arguments: Any, **options: Any) -> None:
        nonlocal left
        if not os.fspath(path).startswith((".streamxf.lock", ".streamxf-removed.", "going")):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        unlink(path, *arguments, **options)

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(os, "unlink", killed)
        streamxf.forget(tmp_path, keep)
    streamxf.forget(tmp_path, keep)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-2"]
