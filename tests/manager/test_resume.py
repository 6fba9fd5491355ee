"""What a job resumes from: the newest that is as it was saved, and an error where a fresh start would be a mistake."""

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf import Encrypt
from streamxf.errors import ForeignError, KeyMissingError, NoCheckpointError, UnsupportedError
from streamxf.manager import choice
from streamxf.manager import forget as module_of_forget
from streamxf.manager import holds as module_of_holds
from streamxf.manager import manager as module
from streamxf.manager.forget import forget
from streamxf.manager.holds import active_holds, hold
from streamxf.manager.listing import Run, list_checkpoints
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.retention import Retention
from streamxf.notes import COMMIT
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage
from tests.altered import flip
from tests.dcp.helpers import KEY
from tests.failing import fails_where, fails_with
from tests.forge import split_metadata

from .places import below
from .runs import blank, complete, damage, is_at, resumed, saved_run, state_at

HOLDS = ".streamxf/holds"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    saved_run(tmp_path / "run", 1, 2, 3)
    return tmp_path / "run"


def holds_of(run: Path) -> list[str]:
    return os.listdir(run / HOLDS) if (run / HOLDS).exists() else []


def test_a_new_run_begins_at_the_beginning(tmp_path: Path) -> None:
    assert resumed(tmp_path / "run") is None
    (tmp_path / "run" / "step-7").mkdir(parents=True)
    (tmp_path / "run" / "step-7" / "README").write_text("of a person")
    assert resumed(tmp_path / "run") is None


@pytest.mark.parametrize("framework", ["", "model.pt", "state.msgpack.sxf", "weights"])
@pytest.mark.parametrize("steps", [1, 3])
def test_data_without_any_metadata_is_no_fresh_start(tmp_path: Path, framework: str, steps: int) -> None:
    """As a copy leaves it that leaves out hidden files."""
    with CheckpointManager(tmp_path / "run") as manager:
        for step in range(1, 1 + steps):
            if framework:
                (Path(str(manager.begin(step))) / framework).write_bytes(bytes(2**20))
                manager.commit(step)
            else:
                manager.save(step, state_at(step))
    shutil.copytree(tmp_path / "run", tmp_path / "copy", ignore=shutil.ignore_patterns(".*"))
    before = below(tmp_path / "copy")
    with CheckpointManager(tmp_path / "copy", keep=1) as manager:
        for call in (lambda: manager.resume(blank()), manager.latest):
            with pytest.raises(NoCheckpointError, match=f"step-{steps} ha(s|ve) data, and neither metadata nor a mark"):
                call()
    if steps > 1 and not framework:
        with pytest.raises(NoCheckpointError, match="neither metadata nor a mark"):
            streamxf.latest(tmp_path / "copy")
    assert below(tmp_path / "copy") == before


@pytest.mark.parametrize("framework", [False, True])
@pytest.mark.parametrize("keys", [None, KEY])
def test_what_a_newer_version_saved_is_no_damage(tmp_path: Path, keys: Any, framework: bool) -> None:
    """A job that took an older one would save over it; with keys nothing of it is authentic, and it decides nothing."""
    with CheckpointManager(tmp_path, keys=keys, chain=[Encrypt(keys)] if keys else ()) as manager:
        for step in (1, 2):
            if framework:
                torch.save({}, Path(str(manager.begin(step))) / "model.pt")
                manager.commit(step)
            else:
                manager.save(step, state_at(step))
        newer = tmp_path / "step-2" / (COMMIT if framework else ".metadata")
        newer.write_bytes(split_metadata(newer.read_bytes()).change(format_bytes=bytes([2, 1, 0, 0])).pack())
        for call in (lambda: manager.resume(blank()), manager.latest, lambda: streamxf.latest(tmp_path, keys=keys)):
            with pytest.raises(UnsupportedError, match=r"format version 2.*Upgrade streamxf"):
                call()
    saved_run(tmp_path, 3, keep=1, keys=keys, chain=[Encrypt(keys)] if keys else ())
    assert [(each.name, each.kind) for each in list_checkpoints(tmp_path)] == [("step-2", "foreign"), ("step-3", "own")]
    assert not [*tmp_path.rglob("damage-*")]


@pytest.mark.parametrize("verify", ["none", "sample", "whole"])
def test_damage_makes_it_fall_back_with_the_reason(run: Path, verify: Any, caplog: pytest.LogCaptureFixture) -> None:
    damage(run / "step-3")
    assert resumed(run, verify=verify) == 2
    assert f"{run}/step-3 is passed over: " in caplog.text
    assert complete(run) == ["step-1", "step-2", "step-3"]


@pytest.mark.parametrize("verify", ["sample", "whole"])
@pytest.mark.parametrize("error", [TimeoutError("no answer"), PermissionError("forbidden"), RuntimeError("a client's")])
def test_a_storage_that_cannot_be_reached_is_no_damage(
    monkeypatch: pytest.MonkeyPatch, verify: Any, error: Exception
) -> None:
    """An older one would be resumed from, and saved past the newest."""
    base = f"memory://unreached-{secrets.token_hex(4)}"
    saved_run(base, 1, 2)
    fails_where(monkeypatch, MemoryFileSystem, "_open", lambda self, path, *_: "/step-2/__0_" in path, error)
    expected = type(error) if isinstance(error, OSError) else ForeignError
    with pytest.raises(expected, match=str(error)):
        resumed(base, verify=verify)
    with pytest.raises(expected, match=str(error)):
        streamxf.latest(base, verify=verify)
    monkeypatch.undo()
    assert resumed(base, verify=verify) == 2


def test_damage_that_only_the_load_finds_makes_it_fall_back(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    flip(*(run / "step-3").glob("*.distcp"))
    assert resumed(run, verify="none", chain="floatzip+checksum") == 2
    assert f"{run}/step-3 is passed over: " in caplog.text


def test_nothing_usable_is_no_fresh_start(run: Path) -> None:
    for step in (1, 2, 3):
        damage(run / f"step-{step}")
    for ask in (lambda manager: manager.resume(blank()), CheckpointManager.latest):
        with CheckpointManager(run) as manager, pytest.raises(NoCheckpointError, match="no checkpoint can be resumed"):
            ask(manager)
    assert complete(run) == ["step-1", "step-2", "step-3"]


def test_what_goes_once_it_was_found_damaged_is_no_fresh_start_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_run(tmp_path, 1)

    def gone(*_: Any) -> str:
        shutil.rmtree(tmp_path / "step-1")
        return "it was found damaged"

    monkeypatch.setattr(module, "damage_of", gone)
    with CheckpointManager(tmp_path) as manager, pytest.raises(NoCheckpointError, match="it was found damaged"):
        manager.resume(blank())


def test_what_was_loaded_may_be_removed_once_the_job_saves(run: Path) -> None:
    with CheckpointManager(run) as manager:
        assert manager.latest() is not None
        assert [name.partition("@")[0] for name in holds_of(run)] == ["step-3"]
        manager.save(4, state_at(4))
        assert "step-3" not in [name.partition("@")[0] for name in holds_of(run)]


def test_one_step_and_no_other_may_be_asked_for(run: Path) -> None:
    state = blank()
    with CheckpointManager(run) as manager:
        assert manager.resume(state, step=2) == 2
        assert is_at(state, 2)
        with pytest.raises(NoCheckpointError, match=r"no checkpoint of step 9 .*`streamxf list`"):
            manager.resume(state, step=9)
    damage(run / "step-2")
    with CheckpointManager(run) as manager, pytest.raises(NoCheckpointError, match="of step 2"):
        manager.resume(state, step=2)


def test_a_state_that_does_not_fit_is_an_error_and_no_damage(run: Path) -> None:
    with CheckpointManager(run) as manager:
        for state in ({**blank(), "weight": torch.zeros(7)}, {**blank(), "other": torch.zeros(7)}):
            with pytest.raises((CheckpointException, RuntimeError, ValueError)):
                manager.resume(state)
    assert holds_of(run) == []


def test_a_missing_key_is_an_error_and_no_damage(tmp_path: Path, key: streamxf.Key) -> None:
    saved_run(tmp_path, 1, chain="encrypt", keys=key)
    with CheckpointManager(tmp_path) as manager, pytest.raises(KeyMissingError):
        manager.resume(blank())
    assert resumed(tmp_path, chain="encrypt", keys=key) == 1


# -- while others remove and save --------------------------------------------------------------------------------------


@contextmanager
def during_load(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> Iterator[None]:
    """Do something between the choice of a checkpoint and its load."""
    load = module.dcp_load

    def acting(*arguments: Any, **options: Any) -> None:
        act()
        load(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(module, "dcp_load", acting)
        yield


def test_what_is_being_loaded_is_not_removed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(run, 4)
    damage(run / "step-4")  # or it would stay as the newest one
    reports = []
    keep = Retention(steps=[1])
    with during_load(monkeypatch, lambda: reports.append(forget(run, keep))):
        assert resumed(run) == 3
    (report,) = reports
    assert report.removed == ("step-2",)
    assert list(report.in_use) == ["step-3"] or "step-3" in report.kept
    assert holds_of(run) == []


def test_a_removal_that_has_begun_makes_it_choose_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata goes after the choice and before the hold."""
    hold_checkpoint = choice.hold_checkpoint
    asked = []

    def removed_first(place: Run, name: str) -> Any:
        asked.append(name)
        if name == "step-3":
            (run / name / ".metadata").unlink()
        return hold_checkpoint(place, name)

    monkeypatch.setattr(choice, "hold_checkpoint", removed_first)
    assert resumed(run) == 2
    assert asked == ["step-3", "step-2"]
    assert holds_of(run) == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_save_that_is_replaced_at_that_moment_is_not_loaded_in_part(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    def replace() -> None:
        if len(replaced) < times:
            replaced.append(True)
            dcp.save(state_at(3), storage_writer=streamxf.FileSystemWriter(run / "step-3"))

    replaced: list[bool] = []
    with during_load(monkeypatch, replace):
        assert resumed(run) == 4 - times
    assert ("step-3 is passed over: IdentityError" in caplog.text) == (times == 2)


def test_a_removal_looks_for_holds_after_it_has_said_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that waited for it long enough keeps what is still there."""
    monkeypatch.setattr(module_of_holds, "_PATIENCE", 0.2)
    place, looks_for_holds = Run(open_storage(run)), module_of_forget.active_holds
    with ExitStack() as stack:

        def looking(storage: Storage, **options: Any) -> dict[str, str]:
            if not holds_of(run):
                stack.enter_context(hold(run / "step-1"))
            return looks_for_holds(storage, **options)

        monkeypatch.setattr(module_of_forget, "active_holds", looking)
        in_use, failed = module_of_forget.remove_checkpoints(place, place.read().records[:1])
        assert (list(in_use), failed) == (["step-1"], {})
    assert resumed(run) == 3
    assert complete(run) == ["step-1", "step-2", "step-3"]


def test_a_reader_waits_for_a_removal(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is refused when it is over: it has put its hold too late."""
    here, results = threading.current_thread(), []
    place, looks_for_holds = Run(open_storage(run)), module_of_forget.active_holds

    def read() -> None:
        try:
            with hold(run / "step-1"):
                results.append("held")
        except NoCheckpointError:
            results.append("refused")

    reader = threading.Thread(target=read)

    def looking(storage: Storage, **options: Any) -> dict[str, str]:
        found = looks_for_holds(storage, **options)
        if threading.current_thread() is here and not reader.ident:
            reader.start()
            while not holds_of(run):
                pass
        return found

    monkeypatch.setattr(module_of_forget, "active_holds", looking)
    assert module_of_forget.remove_checkpoints(place, place.read().records[:1]) == ({}, {})
    reader.join(60)
    assert results == ["refused"]
    assert active_holds(place.storage) == {}


# -- runs that are not as they should be -------------------------------------------------------------------------------


def test_a_folder_that_may_only_be_read_is_resumed_from(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(storage: Storage, path: str, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", storage.label(path))

    monkeypatch.setattr(module_of_holds, "put_small", refuse)
    assert resumed(run) == 3
    with CheckpointManager(run) as manager:
        assert manager.latest() == str(run / "step-3")
    assert "nothing keeps step-3 from being removed while it is read" in caplog.text
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_who_asks_for_readers_removes_nothing_and_who_removes_checkpoints_does(run: Path) -> None:
    """A listing must work where nothing can be written."""
    killed = run / ".streamxf" / "holds" / f"step-1@{int(time.time()) - 100_000}@host-1-01234567"
    killed.parent.mkdir(exist_ok=True)
    killed.touch()
    assert active_holds(open_storage(run)) == {}
    assert killed.exists()
    assert forget(run, 2).removed == ("step-1",)
    assert not killed.exists()


@pytest.mark.parametrize("kind", [PermissionError, ForeignError], ids=["of s3fs, without a number", "of gcsfs"])
def test_who_may_only_read_an_object_store_resumes(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    monkeypatch.setattr(module_of_holds, "put_small", fails_with(kind, "Access Denied"))
    assert resumed(run) == 3
    assert "nothing keeps step-3 from being removed while it is read: " in caplog.text
