"""What a framework's save leaves that was killed or failed, or that somebody damaged later."""

import errno
import fcntl
import itertools
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import CheckpointManager
from streamxf.checkpoint.notes import Note
from streamxf.dcp.writer import FileSystemWriter
from streamxf.errors import NoCheckpointError, UnsupportedError
from streamxf.manager import housekeeper
from streamxf.notes import COMMIT, REMOVED, SAVING, Saving
from tests.failing import fails_with
from tests.forked import status_of_child

from .points import no_locks
from .runs import blank, is_at, resumed, saved_run, state_at


def save(manager: CheckpointManager, step: int, text: str = "weights") -> None:
    folder = Path(manager.begin(step))
    (folder / "weights").write_text(text)
    manager.commit(step)


@pytest.mark.parametrize("writer", [streamxf.FileSystemWriter, dcp.FileSystemWriter])
def test_what_dcp_wrote_and_somebody_committed_is_resumed_from(tmp_path: Path, writer: Any) -> None:
    saved_run(tmp_path, 1)
    with CheckpointManager(tmp_path) as manager:
        dcp.save(state_at(2), storage_writer=writer(manager.begin(2)))
        manager.commit(2)
    assert resumed(tmp_path) == 2
    with CheckpointManager(tmp_path) as manager:
        save(manager, 3)
        with pytest.raises(UnsupportedError, match=r"manager\.latest\(\) gives its path"):
            manager.resume(blank())


def kinds(run: Path) -> dict[str, str]:
    return {record.name: record.kind for record in streamxf.list_checkpoints(run)}


def killed(run: Path, write: Callable[[Path], None], step: int = 6, *, first: bool = False, **options: Any) -> None:
    """A process that saves, begins another save, writes something, and is gone."""
    if (pid := os.fork()) == 0:
        try:
            manager = CheckpointManager(run, **options)
            if not first:
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


def publish(folder: Path) -> None:
    dcp.save({"w": torch.ones(9)}, storage_writer=FileSystemWriter(folder), no_dist=True)


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
    for name in ("fcntl", "lockf"):
        monkeypatch.setattr(fcntl, name, no_locks)
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

    killed(tmp_path, publish)
    assert (tmp_path / "step-6" / ".metadata").exists()
    assert kinds(tmp_path) == {"step-3": "own", "step-6": "unfinished"}
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest() == str(tmp_path / "step-3")
        save(manager, 9)
    assert kinds(tmp_path) == {"step-3": "own", "step-9": "own"}
    assert not (tmp_path / "step-6").exists()


@pytest.mark.parametrize("point", range(1, 6))
def test_a_removal_that_is_killed_is_finished(point: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is gone by then: what is left is no checkpoint, neither of the framework nor of DCP."""
    with CheckpointManager(tmp_path) as manager:
        folder = Path(manager.begin(3))
        publish(folder)
        (folder / "weights").write_text("weights")
        manager.commit(3)
        save(manager, 6)
    unlink, calls = os.unlink, itertools.count(1)

    def unlink_until_killed(path: Any, *args: Any, **options: Any) -> None:
        if path in os.listdir(folder) and next(calls) == point:
            raise KeyboardInterrupt
        unlink(path, *args, **options)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(os, "unlink", unlink_until_killed)
        streamxf.forget(tmp_path, keep=1)
    assert kinds(tmp_path) == {"step-3": "own" if point == 1 else "removing", "step-6": "own"}
    with CheckpointManager(tmp_path, keep=2) as manager:
        save(manager, 9)
    assert kinds(tmp_path) == {"step-6": "own", "step-9": "own"}
    assert not folder.exists()


@pytest.mark.parametrize("file", [REMOVED, ".metadata"])
def test_garbage_beside_a_commit_record_keeps_no_files(file: str, tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, keep=1) as manager:
        folder = Path(manager.begin(3))
        (folder / "parts").mkdir()
        (folder / "parts" / "weights").write_text("weights")
        manager.commit(3)
        manager.wait()
        (folder / file).write_bytes(b"\xff" * 2**21)
        save(manager, 6)
    assert not folder.exists()


def test_nothing_beside_metadata_hides_it(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        save(manager, 3)
    publish(tmp_path / "step-6")
    (tmp_path / "step-3" / COMMIT).rename(tmp_path / "step-6" / REMOVED)
    assert kinds(tmp_path)["step-6"] == "unclaimed"


def test_the_run_of_a_job_that_was_killed_in_its_first_save_goes_on(tmp_path: Path) -> None:
    """Nothing but the mark of that save tells of it."""
    killed(tmp_path, publish, first=True)
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest() is None
        save(manager, 3)
        assert manager.latest() == str(tmp_path / "step-3")
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest() == str(tmp_path / "step-3")
        save(manager, 4)
    assert kinds(tmp_path) == {"step-3": "own", "step-4": "own"}
    assert not (tmp_path / "step-6").exists()


def test_what_a_first_save_left_goes_with_one_of_dcps_in_its_place(tmp_path: Path) -> None:
    killed(tmp_path, lambda folder: (publish(folder), leave_a_draft(folder)), first=True)
    saved_run(tmp_path, 6)
    assert not (tmp_path / "step-6" / "parts").exists()


def test_what_a_killed_save_held_may_go(tmp_path: Path) -> None:
    """Its lock is free, so nobody waits for a day."""
    killed(tmp_path, leave_a_draft)
    with CheckpointManager(tmp_path, keep=1) as manager:
        for step in (6, 9):
            save(manager, step)
    assert kinds(tmp_path) == {"step-9": "own"}
    assert os.listdir(tmp_path / ".streamxf" / "holds") == []


@pytest.mark.parametrize("known", [True, False], ids=["run known", "run unknown"])
def test_the_mark_of_a_save_in_another_run_hides_and_removes_nothing(
    tmp_path: Path, key: streamxf.Key, known: bool
) -> None:
    """It is genuine there, for the same key and under the same name; only where nothing says which run this is, it may
    hide what names no run.
    """
    keyed: dict[str, Any] = {"keys": key, "chain": [streamxf.Encrypt(key)]}
    other, run = tmp_path / "other", tmp_path / "run"
    killed(other, leave_a_draft, **keyed)
    if known:
        saved_run(run, 3, **keyed)
    writer = FileSystemWriter(run / "step-6", chain=keyed["chain"])
    dcp.save(state_at(6), storage_writer=writer, no_dist=True)
    (run / "step-9").mkdir(parents=True)
    (run / "step-9" / "mine.txt").write_text("mine")
    for name in ("step-6", "step-9"):
        mark = Saving.of_json({**Note.parse((other / "step-6" / SAVING).read_bytes()).content, "name": name})
        shutil.copy(other / "step-6" / SAVING, run / name / SAVING)
        if name != "step-6":
            (run / name / SAVING).write_bytes(Note.seal(mark.to_json(), keyed["chain"][0]))
    shutil.copytree(other / ".streamxf", run / ".streamxf", dirs_exist_ok=True)
    with CheckpointManager(run, **keyed) as manager:
        state = blank()
        assert manager.resume(state) == (6 if known else None)
        assert is_at(state, 6) or not known
        streamxf.forget(run, 2, keys=key)
        manager.save(7, state_at(7))
    assert (run / "step-6" / ".metadata").exists()
    assert (run / "step-9" / "mine.txt").exists() or not known


@pytest.mark.parametrize("steps", [(3,), (2, 3)])
def test_a_killed_save_over_another_stops_nobody_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, steps: tuple[int, ...]
) -> None:
    def killed() -> None:
        with CheckpointManager(tmp_path) as manager:
            for step in steps:
                save(manager, step)
            (Path(manager.begin(3)) / "model.pt").write_text("a part")
            os._exit(9)

    assert status_of_child(killed) == 9
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest() == (None if steps == (3,) else str(tmp_path / "step-2"))
        assert re.search("the save (that replaces|of) step-3 was not completed", caplog.text)
        save(manager, 3)
        assert manager.latest() == str(tmp_path / "step-3")


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


def beside(folder: Path) -> None:
    (folder / "optimizer.pt").write_bytes(b"somebody's")


def link_beside(folder: Path) -> None:
    (folder / "parts").mkdir()
    (folder / "parts" / "optimizer.pt").symlink_to("/dev/null")


def far_below(folder: Path) -> None:
    """Where no listing comes: nor does one into a folder that may be passed through, and not be read."""
    place = folder.joinpath(*["d"] * 70)
    place.mkdir(parents=True)
    beside(place)


@pytest.mark.parametrize("plant", [beside, link_beside, far_below])
@pytest.mark.parametrize("verify", ["none", "whole"])
def test_what_lies_beside_a_frameworks_files_is_not_loaded(
    tmp_path: Path, key: streamxf.Key, plant: Callable[[Path], None], verify: Any
) -> None:
    """A framework takes the files that it finds."""
    keyed: dict[str, Any] = {"keys": key, "chain": [streamxf.Encrypt(key)], "verify": verify}
    with CheckpointManager(tmp_path, **keyed) as manager:
        save(manager, 3)
        save(manager, 6)
        assert manager.latest() == str(tmp_path / "step-6")
        plant(tmp_path / "step-6")
        assert manager.latest() == str(tmp_path / "step-3")
        named = "/d" if plant is far_below else "optimizer.pt"
        assert f"{named} is not among the committed files" in manager.skipped["step-6"]
    assert streamxf.latest(tmp_path, keys=key) == str(tmp_path / "step-3")


def test_without_keys_what_lies_beside_a_frameworks_files_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(tmp_path) as manager:
        save(manager, 3)
        link_beside(tmp_path / "step-3")
        for _ in range(2):
            assert manager.latest() == str(tmp_path / "step-3")
    assert caplog.text.count("parts/optimizer.pt is not among the committed files") == 1


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


def test_a_save_that_could_not_be_noted_takes_the_place_of_a_frameworks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointManager(tmp_path) as manager:
        save(manager, 3)
        manager.wait()
        with monkeypatch.context() as patched:
            patched.setattr(housekeeper, "put_small", fails_with(OSError, errno.ENOSPC, "No space left on device"))
            manager.save(3, state_at(3))
            manager.wait()
    assert kinds(tmp_path) == {"step-3": "own"}
    assert resumed(tmp_path) == 3


def test_a_save_over_that_of_another_run_does_not_take_its_files_for_its_own(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, run_id="a" * 32) as manager:
        (Path(manager.begin(3)) / "rank-1").write_text("another's")
        save(manager, 3)
    with CheckpointManager(tmp_path, run_id="b" * 32) as manager:
        save(manager, 3, "own")
    note = Note.parse((tmp_path / "step-3" / COMMIT).read_bytes())
    assert [each["path"] for each in note.content["files"]] == ["weights"]


def test_who_saves_beside_what_nobody_wrote_is_told_at_once(
    tmp_path: Path, key: streamxf.Key, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a whole run might turn out to hold nothing that can be resumed from."""
    (tmp_path / "step-3").mkdir()
    beside(tmp_path / "step-3")
    with CheckpointManager(tmp_path, keys=key, chain=[streamxf.Encrypt(key)]) as manager:
        save(manager, 3)
        assert "step-3 will not be resumed from as it is: optimizer.pt is not among the committed files" in caplog.text
        with pytest.raises(NoCheckpointError, match="move it away"):
            manager.latest()
        (tmp_path / "step-3" / "optimizer.pt").rename(tmp_path / "optimizer.pt")
        assert manager.latest() == str(tmp_path / "step-3")


def test_where_the_commit_record_is_damaged_all_stays(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (3, 6):
            (Path(manager.begin(step)) / "model").mkdir()
            (tmp_path / f"step-{step}" / "model" / "weights").write_text("weights")
            manager.commit(step)
    (tmp_path / "step-3" / COMMIT).write_text("{")
    report = streamxf.forget(tmp_path, 1)
    assert not report.removed
    assert report.kept["step-3"][0].startswith("MetadataError: ")
    assert (tmp_path / "step-3" / "model" / "weights").read_text() == "weights"
