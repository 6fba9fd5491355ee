"""Saves in the background: how many at a time, what happens when there are too many, and where their errors arise."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from streamxf.manager import manager as module
from streamxf.manager.listing import list_checkpoints
from streamxf.manager.manager import CheckpointManager
from streamxf.storage.local import LocalStorage
from streamxf.storage.storage import Storage
from tests.dcp.helpers import needs_gloo
from tests.failing import fails_with

from .runs import blank, complete, is_at, resumed_by, saved_run, state_at

LIMIT = 120


class Held:
    """Saves in the background wait before they publish, until they may go on."""

    def __init__(self) -> None:
        self.go_on = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)
        self._put = LocalStorage.put

    def put(self, storage: Storage, name: str, *arguments: Any, **options: Any) -> None:
        if name == ".metadata":
            self.waiting.release()
            assert self.go_on.acquire(timeout=LIMIT)
        self._put(storage, name, *arguments, **options)

    def let(self, count: int) -> None:
        for _ in range(count):
            self.go_on.release()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held()
    monkeypatch.setattr(LocalStorage, "put", lambda *arguments, **options: made.put(*arguments, **options))
    yield made
    made.let(100)


def ended(manager: CheckpointManager, count: int = 1) -> None:
    """Wait until the first saves have ended, without taking note of it."""
    for saving in list(manager._saving)[:count]:
        saving.future.exception(LIMIT)


def test_training_goes_on_while_a_copy_is_saved(tmp_path: Path, held: Held) -> None:
    state = state_at(1)
    with CheckpointManager(tmp_path, async_save=True) as manager:
        manager.save(1, state, metrics={"loss": 0.5})
        state["weight"].zero_()
        assert complete(tmp_path) == []
        held.let(1)
        manager.wait()
        assert resumed_by(manager) == 1
    assert list_checkpoints(tmp_path)[0].metrics == {"loss": 0.5}


def test_the_end_waits_for_saves_and_removals(tmp_path: Path) -> None:
    saved_run(tmp_path, *range(1, 6), async_save=True, in_flight=2, keep=2)
    assert complete(tmp_path) == ["step-4", "step-5"]
    assert not list(tmp_path.rglob(".streamxf-saving"))
    assert not list(tmp_path.glob(".streamxf/going-*"))


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_save_that_is_due_is_left_out_while_there_are_too_many(tmp_path: Path, held: Held, in_flight: int) -> None:
    with CheckpointManager(tmp_path, async_save=True, save=1, in_flight=in_flight, when_busy="skip") as manager:
        asked = []
        for step in range(1, 6):
            if manager.should_save(step, last=False):
                asked.append(step)
                manager.save(step, state_at(step))
        assert asked == [1, 2][:in_flight]
        held.let(in_flight)
        ended(manager, in_flight)
        assert manager.should_save(6)
        held.let(9)
        manager.save(6, state_at(6))
        assert manager.should_save(7, last=True), "the last one is never left out"
        manager.save(7, state_at(7))
    assert complete(tmp_path) == [f"step-{step}" for step in [*asked, 6, 7]]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_save_that_is_due_waits_while_there_are_too_many(tmp_path: Path, held: Held, in_flight: int) -> None:
    with CheckpointManager(tmp_path, async_save=True, in_flight=in_flight) as manager:
        for step in range(1, in_flight + 1):
            manager.save(step, state_at(step))
        thread = threading.Thread(target=manager.save, args=(in_flight + 1, state_at(in_flight + 1)))
        thread.start()
        for _ in range(in_flight):
            assert held.waiting.acquire(timeout=LIMIT)
        assert thread.is_alive()
        assert len(manager._saving) == in_flight
        held.let(9)
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert len(complete(tmp_path)) == in_flight + 1


def test_a_step_that_is_saved_twice_is_saved_one_after_the_other(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, async_save=True, in_flight=2) as manager:
        manager.save(1, state_at(1), metrics={"loss": 1.0})
        manager.save(1, state_at(5), metrics={"loss": 5.0})
        manager.wait()
        found = blank()
        assert manager.resume(found) == 1
        assert is_at(found, 5)
    assert list_checkpoints(tmp_path)[0].metrics == {"loss": 5.0}
    assert len(list((tmp_path / "step-1").glob("*.distcp"))) == 1


def unsaveable() -> dict[str, Any]:
    """A state of which a copy can be made, and whose save fails."""
    return {"deep": {"step": 0}, "deep.step": 1}


def test_an_error_is_raised_once_and_training_goes_on(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, async_save=True, save=1) as manager:
        assert manager.should_save(1)
        manager.save(1, unsaveable())
        ended(manager)
        with pytest.raises(CheckpointException):
            manager.should_save(2)
        assert manager.should_save(3)
        manager.save(3, state_at(3))
        manager.save(4, unsaveable())
        with pytest.raises(CheckpointException):
            manager.save(5, state_at(5))
        manager.save(6, unsaveable())
        with pytest.raises(CheckpointException):
            manager.wait()
        manager.save(7, state_at(7))
    assert complete(tmp_path) == ["step-3", "step-7"]
    assert not list(tmp_path.rglob(".streamxf-saving"))


def test_the_end_raises_the_error_of_the_last_save(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, async_save=True)
    manager.save(1, unsaveable())
    with pytest.raises(CheckpointException):
        manager.close()
    manager.close()


def test_an_error_of_training_counts_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        with CheckpointManager(tmp_path, async_save=True, in_flight=2) as manager:
            manager.save(1, state_at(1))
            manager.save(2, unsaveable())
            raise ZeroDivisionError
    assert "a save in the background failed" in caplog.text
    assert complete(tmp_path) == ["step-1"]


def test_an_interrupted_wait_does_not_lose_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CheckpointManager(tmp_path, async_save=True) as manager:
        manager.save(1, state_at(1), metrics={"loss": 1.0})
        with monkeypatch.context() as patched:
            patched.setattr(module.futures, "wait", fails_with(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                manager.save(2, state_at(2))
        manager.wait()
    assert [(record.name, record.metrics) for record in list_checkpoints(tmp_path)] == [("step-1", {"loss": 1.0})]


@pytest.mark.parametrize("async_save", [False, True])
def test_an_interrupted_save_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, async_save: bool) -> None:
    with CheckpointManager(tmp_path, async_save=async_save) as manager:
        with monkeypatch.context() as patched:
            patched.setattr(module, "dcp_async_save" if async_save else "dcp_save", fails_with(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                manager.save(1, state_at(1))
        manager.wait()
        assert not list(tmp_path.rglob(".streamxf-saving"))
        manager.save(1, state_at(1))
    assert complete(tmp_path) == ["step-1"]


@pytest.mark.slow
@needs_gloo
def test_a_process_of_its_own_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "meeting"), 1), rank=0, world_size=1)
    try:
        with CheckpointManager(tmp_path / "run", async_save="process", save=1, keep=2) as manager:
            for step in (1, 2, 3):
                assert manager.should_save(step)
                manager.save(step, state_at(step))
        assert complete(tmp_path / "run") == ["step-2", "step-3"]
    finally:
        dist.destroy_process_group()
