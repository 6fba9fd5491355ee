"""`CheckpointManager(incremental=N)`: what a save shares with the last one that stores all, and what stays of runs."""

import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.checkpoint.datafile import DataFile
from streamxf.errors import ParameterError
from streamxf.manager.manager import CheckpointManager
from streamxf.storage.local import LocalStorage
from tests.forked import status_of_child

FROZEN = torch.randn(30_000, generator=torch.Generator().manual_seed(1))  # few enough for one thread, after a fork, too


def state_at(step: int) -> dict[str, Any]:
    return {"frozen": FROZEN.clone(), "weight": torch.arange(5000.0) + step, "step": step}


def blank() -> dict[str, Any]:
    return {"frozen": torch.zeros(30_000), "weight": torch.zeros(5000), "step": None}


def assert_holds(run: Path, step: int, **how: Any) -> None:
    state = blank()
    with CheckpointManager(run, **how) as manager:
        assert manager.resume(state, step=step) == step
    wanted = state_at(step)
    assert state["step"] == step
    assert all(torch.equal(state[name], wanted[name]) for name in ("frozen", "weight"))
    assert streamxf.verify(run / f"step-{step}").ok


def save(manager: CheckpointManager, *steps: int) -> None:
    for step in steps:
        manager.save(step, state_at(step))


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("*.distcp")}


def full(run: Path) -> list[int]:
    """The steps that have no file of another one's."""
    found = {int(folder.name[5:]): names(folder) for folder in run.glob("step-*")}
    with_base = {step for step in found if bases_of(run / f"step-{step}")}
    return sorted({*found} - with_base)


def bases_of(folder: Path) -> tuple[str, ...]:
    with streamxf.Checkpoint(folder) as checkpoint:
        index = checkpoint.metadata[0].index
        assert index is not None
        return tuple(name for _, name in index.bases or ())


@pytest.mark.parametrize("mode", [False, "thread"])
def test_every_nth_save_stores_all_and_others_share_the_files_of_the_last_one(tmp_path: Path, mode: Any) -> None:
    with CheckpointManager(tmp_path, incremental=4, async_save=mode) as manager:
        for step in range(1, 11):
            save(manager, step)
            manager.wait()
    assert full(tmp_path) == [1, 5, 9]
    assert [bases_of(tmp_path / f"step-{step}") for step in (2, 4, 6, 10)] == [("step-1",)] * 2 + [
        ("step-5",),
        ("step-9",),
    ]
    shutil.rmtree(tmp_path / "step-5")
    for step in (1, 4, 6, 8, 10):
        assert_holds(tmp_path, step)


def test_rules_remove_what_others_share_and_saves_go_on_sharing(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, incremental=6, keep=2) as manager:
        for step in range(1, 7):
            save(manager, step)
            manager.wait()
    assert [bases_of(tmp_path / f"step-{step}") for step in (5, 6)] == [("step-1",)] * 2
    assert sorted(folder.name for folder in tmp_path.glob("step-*")) == ["step-5", "step-6"]
    assert len(names(tmp_path / "step-5") & names(tmp_path / "step-6")) == 1
    for step in (5, 6):
        assert_holds(tmp_path, step)


def test_saves_under_way_share_the_last_published_one(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, incremental=3, async_save=True, in_flight=3) as manager:
        save(manager, *range(1, 13))
    for step in range(1, 13):
        assert_holds(tmp_path, step)
    assert 1 in full(tmp_path)
    assert 12 > len(full(tmp_path)) > 2


def test_another_line_begins_with_all(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, incremental=100) as manager:
        save(manager, 1, 2, 3)
        assert manager.resume(blank(), step=2) == 2
        save(manager, 4, 5)
        assert manager.resume(blank()) == 5
        save(manager, 6)
    assert full(tmp_path) == [1, 4, 6]
    with CheckpointManager(tmp_path, incremental=100) as manager:
        assert manager.resume(blank()) == 6
        save(manager, 7, 8)
    assert full(tmp_path) == [1, 4, 6, 7]
    for step in range(1, 9):
        assert_holds(tmp_path, step)


def test_a_failed_save_changes_nothing_for_the_next_ones(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, incremental=3) as manager:
        save(manager, 1, 2)
        for step in (3, 4, 4):  # with a base, the second one whole
            with pytest.raises(CheckpointException):
                manager.save(step, state_at(step) | {"bad": lambda: 0})
            manager.wait()  # the housekeeper takes back what was written
            assert not names(tmp_path / f"step-{step}")
        save(manager, 4, 5)
    assert full(tmp_path) == [1, 4]
    for step in (1, 2, 4, 5):
        assert_holds(tmp_path, step)


@pytest.mark.parametrize("harm", ["removed", "metadata", "replaced", "cut"])
def test_what_happens_to_a_base_harms_no_later_save(tmp_path: Path, harm: str) -> None:
    with CheckpointManager(tmp_path, incremental=100) as manager:
        save(manager, 1, 2)
        base = tmp_path / "step-1"
        if harm == "removed":
            shutil.rmtree(base)
        elif harm == "metadata":
            (base / ".metadata").unlink()
        elif harm == "replaced":
            shutil.rmtree(base)
            streamxf.transcode(tmp_path / "step-2", base)
        else:
            (file,) = base.glob("*.distcp")
            file.unlink()
            file.write_bytes(b"short")
        save(manager, 3, 4)
    for step in (2, 3, 4):
        assert_holds(tmp_path, step)


def test_a_step_that_is_saved_again_is_no_base_of_itself(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, incremental=100) as manager:
        save(manager, 1, 2)
        manager.save(1, state_at(1))
        manager.save(2, state_at(2))
        save(manager, 3, 3)
    for step in (1, 2, 3):
        assert_holds(tmp_path, step)
    shutil.rmtree(tmp_path / "step-1")  # each folder is whole by itself, however often its step was saved
    assert_holds(tmp_path, 3)


def test_arguments_that_contradict_it_are_refused(tmp_path: Path) -> None:
    for wrong in (0, -1, 2.0, True, "2"):
        with pytest.raises(ParameterError, match="incremental"):
            CheckpointManager(tmp_path, incremental=wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"base.*incremental"):
        CheckpointManager(tmp_path, incremental=2, writer={"base": tmp_path})


POINTS = {
    **{name: (LocalStorage, name) for name in ("link", "info", "create", "sync", "put", "remove", "mount")},
    **{name: (DataFile, name) for name in ("add", "finish", "_leave")},
}


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_of_an_increment_leaves_the_others_whole(tmp_path: Path, point: str) -> None:
    for count in range(1, 30):
        run = tmp_path / f"{count}"
        if status_of_child(partial(killed_at, run, *POINTS[point], count)) == 0:  # there are fewer
            break
        with CheckpointManager(run, incremental=100) as manager:
            state = blank()
            last = manager.resume(state)
            assert last in (1, 2)
            assert all(torch.equal(state[name], state_at(last)[name]) for name in ("frozen", "weight"))
            save(manager, 2, 3)
        for step in (1, 2, 3):
            assert_holds(run, step)
            assert not streamxf.clean(run / f"step-{step}").removed
    assert 1 < count < 30 or point in ("link", "mount", "remove")


def killed_at(run: Path, owner: Any, name: str, count: int) -> None:
    """Save twice, and be killed when something is called so often in the second save."""
    calls, real = iter(range(1, 10**6)), getattr(owner, name)

    def call(*arguments: Any, **how: Any) -> Any:
        if armed and next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **how)

    armed: list[bool] = []
    setattr(owner, name, call)
    manager = CheckpointManager(run, incremental=100)
    save(manager, 1)
    manager.wait()
    armed.append(True)
    save(manager, 2)
    armed.clear()
    manager.close()
