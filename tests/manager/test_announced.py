"""Saves that a framework makes by itself, between `begin` and `commit`; and a job whose ranks came too late."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch.distributed as dist

import streamxf
from streamxf.errors import NoCheckpointError, ParameterError


def save(manager: streamxf.CheckpointManager, step: int, text: str) -> None:
    folder = Path(manager.begin(step))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_text(text)


def test_complete_once_it_is_committed(tmp_path: Path) -> None:
    with streamxf.CheckpointManager(tmp_path) as manager:
        save(manager, 3, "three")
        manager.commit(3, metrics={"loss": 1})
        assert manager.latest() == manager.path(3) == str(tmp_path / "step-3")
        save(manager, 6, "six")
        assert manager.latest() == str(tmp_path / "step-3")
        manager.commit(6)
        assert manager.latest() == str(tmp_path / "step-6")
        save(manager, 6, "six again")
        assert manager.latest() == str(tmp_path / "step-3"), "what was there before is no longer"
    third, sixth = streamxf.list_checkpoints(tmp_path)
    assert (third.kind, third.metrics, third.bytes) == ("own", {"loss": 1.0}, 5)
    assert sixth.kind == "unfinished"


def test_damage_is_seen_by_sizes(tmp_path: Path) -> None:
    with streamxf.CheckpointManager(tmp_path) as manager:
        for step in 3, 6:
            save(manager, step, "weights")
            manager.commit(step)
        manager.wait()
        (tmp_path / "step-6" / "weights").write_text("weight")
        assert manager.latest() == str(tmp_path / "step-3")
        (tmp_path / "step-3" / "weights").unlink()
        with pytest.raises(NoCheckpointError, match="had 7 bytes when it was committed"):
            manager.latest()


def test_what_it_takes_is_measured(tmp_path: Path) -> None:
    with streamxf.CheckpointManager(tmp_path, save=streamxf.Schedule(optimal=True)) as manager:
        assert manager.should_save(1)
        save(manager, 1, "one")
        manager.commit(1)
        assert manager.interval is not None
        assert not manager.should_save(2), "the first one was just saved"


def test_in_the_background(tmp_path: Path) -> None:
    future: Future[None] = Future()
    with streamxf.CheckpointManager(tmp_path, save=1) as manager, contextlib.ExitStack() as stack:
        stack.callback(future.cancel)
        save(manager, 1, "one")
        manager.commit(1, after=future)
        manager.commit(1, metrics={"loss": 1.0})  # which is known before the save is over
        assert manager.should_save(2)
        assert [record.kind for record in streamxf.list_checkpoints(tmp_path)] == ["unfinished"]
        future.set_result(None)
        assert manager.should_save(3)
        assert manager.latest() == manager.path(1)
        (record,) = streamxf.list_checkpoints(tmp_path)
        assert record.metrics == {"loss": 1.0}


def test_failed_in_the_background(tmp_path: Path) -> None:
    future: Future[None] = Future()
    with streamxf.CheckpointManager(tmp_path) as manager:
        save(manager, 1, "one")
        manager.commit(1, after=future)
        future.set_exception(OSError("the disk is full"))
        with pytest.raises(OSError, match="the disk is full"):
            manager.should_save(2)
        assert manager.latest() is None
    assert [record.kind for record in streamxf.list_checkpoints(tmp_path)] == ["unfinished"]


@pytest.fixture
def two_ranks_later() -> Iterator[None]:
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks_later")
def test_a_manager_made_before_its_ranks(tmp_path: Path) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with streamxf.CheckpointManager(tmp_path) as manager:
        assert not manager.should_save(1)
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
        for call in lambda: manager.should_save(2), manager.latest, lambda: manager.begin(2), lambda: manager.commit(2):
            with pytest.raises(ParameterError, match="make it afterwards"):
                call()
