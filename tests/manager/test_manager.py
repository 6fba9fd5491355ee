"""`CheckpointManager` in one process: saves in the foreground, what stays of them, and misuse."""

import errno
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.errors import NoCheckpointError, ParameterError
from streamxf.manager import housekeeper as module
from streamxf.manager import notes
from streamxf.manager.forget import forget
from streamxf.manager.holds import announced_removals
from streamxf.manager.latest import is_complete
from streamxf.manager.listing import Run, list_checkpoints
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.retention import Retention
from streamxf.manager.schedule import Schedule
from streamxf.manager.sessions import Sessions
from streamxf.storage.opening import open_storage
from tests.dcp.helpers import stored_chain

from .runs import blank, complete, is_at, resumed, resumed_by, saved_run, state_at, unsaveable

now = time.time()


def contents_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fail(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


def test_what_is_saved_is_listed_with_its_metrics_and_loads(tmp_path: Path) -> None:
    run = tmp_path / "run"
    saved_run(run, 1, 2)
    first, second = list_checkpoints(run)
    assert (first.name, first.step, first.metrics, first.kind) == ("step-1", 1, {"loss": 1.0}, "own")
    assert first.run == second.run
    assert first.save_id != second.save_id
    assert second.bytes == sum(file.stat().st_size for file in (run / "step-2").iterdir())
    state = blank()
    reader = streamxf.FileSystemReader(run / "step-2")
    dcp.load(state, storage_reader=reader)
    assert is_at(state, 2)


def test_what_no_rule_keeps_is_removed_after_a_save(tmp_path: Path) -> None:
    saved_run(tmp_path, *range(1, 8), keep=Retention(last=2, every=3, best=1, metric="loss", mode="max"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".streamxf", "step-1", "step-3", "step-6", "step-7"]
    assert not announced_removals(Run(open_storage(tmp_path)))


def test_the_schedule_is_asked_once_a_step(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, save=Schedule(steps=3, at={4})) as manager:
        assert [step for step in range(1, 9) if manager.should_save(step, last=step == 8)] == [3, 4, 6, 8]


def test_names_and_chains_and_writers_arguments_are_used(tmp_path: Path, key: streamxf.Key) -> None:
    writer = {"thread_count": 2, "single_file_per_rank": False}
    with CheckpointManager(tmp_path, name="checkpoint-{}", chain="zstd+encrypt", keys=key, writer=writer) as manager:
        manager.save(5, state_at(5) | {"bias": torch.zeros(10)})  # numbers and texts have no file of their own
    checkpoint = tmp_path / "checkpoint-5"
    assert len(list(checkpoint.glob("*.distcp"))) > 1
    assert stored_chain(checkpoint, key) == "zstd+encrypt"
    assert resumed(tmp_path, name="checkpoint-{}", chain="zstd+encrypt", keys=key) == 5


def test_a_failed_save_leaves_the_older_ones_and_the_next_one_works(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, keep=2) as manager:
        for step in (1, 2):
            manager.save(step, state_at(step))
        with pytest.raises(CheckpointException):
            manager.save(3, unsaveable())
        manager.wait()
        assert complete(tmp_path) == ["step-1", "step-2"]
        assert list(tmp_path.glob("step-3/*")) == []
        manager.save(3, state_at(3))
    assert complete(tmp_path) == ["step-2", "step-3"]


def test_a_step_that_is_saved_again_replaces_what_is_there(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, state_at(1), metrics={"loss": 2.0})
        with pytest.raises(CheckpointException):
            manager.save(1, unsaveable())
        assert resumed_by(manager) == 1
        manager.save(1, state_at(7), metrics={"loss": 3.0})
    (record,) = list_checkpoints(tmp_path)
    assert record.metrics == {"loss": 3.0}
    assert len(list((tmp_path / "step-1").glob("*.distcp"))) == 1


def test_the_last_save_stays_beside_later_steps_of_an_abandoned_attempt(tmp_path: Path) -> None:
    saved_run(tmp_path, 10, 20, 30, 40)
    with CheckpointManager(tmp_path, keep=1) as manager:
        assert manager.resume(blank(), step=10) == 10
        manager.save(11, state_at(11))
        manager.wait()
        assert complete(tmp_path) == ["step-11", "step-20", "step-30", "step-40"]


def test_a_relative_path_is_that_of_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with CheckpointManager("run") as manager:
        (tmp_path / "elsewhere").mkdir()
        os.chdir("elsewhere")
        manager.save(1, state_at(1))
        assert manager.latest() == str(tmp_path / "run" / "step-1")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("place", ["link/../run", "link/../new/../run", "run/../link/.."])
def test_two_dots_after_a_link_mean_what_they_mean_to_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """By text, `link/../run` were a folder beside the link."""
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/deep")
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    run, real = Path(os.path.realpath(place)), tmp_path / "disk"
    assert real in (run, run.parent)
    saved_run(place, 1)
    dcp.save(state_at(2), storage_writer=streamxf.FileSystemWriter(f"{place}/step-2"))
    saved_run(place, 3)
    assert complete(place) == complete(run) == ["step-1", "step-2", "step-3"]
    assert resumed(place) == 3
    assert streamxf.latest(place) == f"{place}/step-3"
    assert is_complete(f"{place}/step-3/../step-3")
    streamxf.unpack(f"{place}/step-3", f"{place}/step-3.pt")
    assert (run / "step-3.pt").is_file()
    with streamxf.open(f"{place}/step-3.sxf", "wb") as file:
        file.write(b"x")
    assert (run / "step-3.sxf").is_file()
    assert pickle.loads(pickle.dumps(open_storage(place))).real() == str(run)
    assert not list((tmp_path / "run").iterdir())
    assert {each.name for each in tmp_path.iterdir()} == {"disk", "link", "run"}


def test_a_run_may_be_a_link_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    saved_run(tmp_path / "run", 1, 2, 3, keep=1)
    assert complete(tmp_path / "run") == complete(tmp_path / "disk") == ["step-3"]
    (tmp_path / "disk" / "best").symlink_to("step-3")
    saved_run(tmp_path / "run", 4, 5, keep=1)
    assert complete(tmp_path / "run") == ["step-3", "step-5"]


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, state_at(1))
        manager.wait()
        shutil.rmtree(tmp_path / "run")
        manager.save(2, state_at(2))
        manager.wait()
        assert complete(tmp_path / "run") == ["step-2"]


def test_a_job_that_only_reads_changes_nothing(tmp_path: Path) -> None:
    """Least of all what another job has begun to save."""
    saved_run(tmp_path, 1)
    other = CheckpointManager(tmp_path)
    other.begin(2)
    (tmp_path / "step-2" / f"__0_0_{'a' * 32}.distcp").write_bytes(b"of the other job")
    before = contents_of(tmp_path)
    with CheckpointManager(tmp_path) as manager:
        assert manager.resume(blank()) == 1
        manager.wait()
    assert contents_of(tmp_path) == before
    other.close()


@pytest.mark.parametrize("wrote", [True, False])
def test_what_a_killed_save_left_goes_when_the_next_job_saves(tmp_path: Path, wrote: bool) -> None:
    killed = CheckpointManager(tmp_path)
    killed._housekeeper.begin("step-5", {})  # type: ignore[union-attr]
    assert os.listdir(tmp_path / "step-5") == [".streamxf-saving"], "noted before anything is written"
    if wrote:
        (tmp_path / "step-5" / f"__0_0_{'a' * 32}.distcp").write_bytes(b"half")
        (tmp_path / "step-5" / "README").write_text("of a person")
    assert [(record.name, record.kind) for record in list_checkpoints(tmp_path)] == [("step-5", "unfinished")]
    killed._housekeeper._sessions.close()  # type: ignore[union-attr]
    with patch.object(time, "time", lambda: now + 100_000):
        saved_run(tmp_path, 6)
    assert [record.name for record in list_checkpoints(tmp_path)] == ["step-6"]
    assert [path.name for path in (tmp_path / "step-5").glob("*")] == ["README"] * wrote
    assert (tmp_path / "step-5").exists() == wrote
    killed.close()


def test_metrics_survive_a_kill_between_a_save_and_its_entry(tmp_path: Path) -> None:
    killed = CheckpointManager(tmp_path)
    killed._housekeeper._saved = lambda *_: None  # type: ignore[union-attr, method-assign]
    killed.save(3, state_at(3), metrics={"loss": 0.5})
    killed.close()
    assert [record.metrics for record in list_checkpoints(tmp_path)] == [{"loss": 0.5}]
    shutil.rmtree(tmp_path / ".streamxf")
    assert [record.metrics for record in list_checkpoints(tmp_path)] == [{"loss": 0.5}]


def test_frameworks_announce_and_commit(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, name="checkpoint-{}") as manager:
        path = Path(manager.begin(1))
        assert path == tmp_path / "checkpoint-1"
        (path / "model.bin").write_bytes(b"weights")
        assert manager.latest() is None
        manager.commit(1, metrics={"loss": 1.0})
        manager.wait()
        assert manager.latest() == str(path)
        manager.begin(1)
        assert complete(tmp_path) == []
        assert os.listdir(path) == [".streamxf-saving"], "what was there before is no longer"
        with pytest.raises(NoCheckpointError, match="nothing was saved"):
            manager.commit(1)
        (path / "model.bin").write_bytes(b"weights")
        manager.commit(1)
    assert complete(tmp_path) == ["checkpoint-1"]


def test_a_save_that_cannot_be_announced_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CheckpointManager(tmp_path) as manager:
        monkeypatch.setattr(module, "put_small", lambda *_, **__: fail(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            manager.begin(1)


@pytest.mark.parametrize(
    "use",
    [
        lambda manager: manager.should_save(1),
        lambda manager: manager.save(1, state_at(1)),
        lambda manager: manager.begin(1),
        lambda manager: manager.resume(blank()),
        lambda manager: manager.latest(),
        lambda manager: manager.wait(),
    ],
)
def test_a_closed_manager_is_refused(tmp_path: Path, use: Callable[[CheckpointManager], Any]) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, state_at(1))
    manager.close()
    with pytest.raises(ParameterError, match="closed"):
        use(manager)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"async_save": "fork"}, {"async_save": "process"}, {"in_flight": 0}, {"in_flight": True}),
        *({"when_busy": "drop"}, {"verify": "all"}, {"save": -1}, {"keep": -2}, {"writer": {"thread_count": 0}}),
        {"keys": b"short", "chain": "encrypt"},
    ],
)
def test_wrong_arguments_are_refused_when_the_manager_is_made(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises((ParameterError, TypeError)) as error:
        CheckpointManager(tmp_path / "run", **wrong)
    assert isinstance(error.value, ParameterError), error.value
    assert not (tmp_path / "run").exists()


def test_errors_of_the_keeper_are_logged_and_do_not_end_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(tmp_path, keep=1) as manager:
        manager.save(1, state_at(1))
        manager.wait()
        with monkeypatch.context() as patched:
            patched.setattr(Sessions, "seen", lambda *_, **__: fail(errno.EIO))
            patched.setattr(module, "forget_in", lambda *_, **__: fail(errno.EIO))
            manager.save(2, state_at(2))
            manager.wait()
        assert "step-2 is saved, and could not be noted: OSError: [Errno 5]" in caplog.text
        assert "older checkpoints could not be removed: OSError: [Errno 5]" in caplog.text
        assert complete(tmp_path) == ["step-1", "step-2"]
        manager.save(3, state_at(3))
    assert complete(tmp_path) == ["step-3"]


def test_a_full_disk_is_made_room_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing can be noted before something was removed."""
    saved_run(tmp_path, 1, 2, 3)
    put = notes.put_small

    def full(*arguments: Any, **options: Any) -> None:
        if len(complete(tmp_path)) == 3:
            fail(errno.ENOSPC)
        put(*arguments, **options)

    monkeypatch.setattr(notes, "put_small", full)
    assert forget(tmp_path, Retention(last=1)).removed == ("step-1", "step-2")
    assert complete(tmp_path) == ["step-3"]
