"""A disk too small for all checkpoints: the rules make room before it is needed, and again when it was not enough."""

import errno
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from streamxf.manager.forget import forget_in
from streamxf.manager.listing import Run
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.record import Record
from streamxf.manager.retention import Retention

from .runs import complete, saved_run

MEBIBYTE = 2**20


def weighing(mebibytes: int, step: int = 0) -> dict[str, Any]:
    """A state that no chain makes smaller."""
    generator = torch.Generator().manual_seed(step)
    return {"weight": torch.randint(256, (mebibytes * MEBIBYTE,), dtype=torch.uint8, generator=generator)}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of four and a half mebibytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={9 * MEBIBYTE // 2}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this process may not mount anything: {error}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(run: Path, *steps: int) -> None:
    with CheckpointManager(run) as manager:
        for step in steps:
            manager.save(step, weighing(1, step))


def test_a_disk_that_old_checkpoints_fill_is_full_without_rules(disk: Path) -> None:
    fill(disk / "run", 1, 2, 3, 4)
    with pytest.raises(CheckpointException, match="streamxf forget"):
        fill(disk / "run", 5)
    assert len(complete(disk / "run")) == 4


@pytest.mark.parametrize("async_save", [False, True])
def test_fewer_checkpoints_to_keep_make_room_before_the_first_save(disk: Path, async_save: bool) -> None:
    fill(disk / "run", 1, 2, 3, 4)
    with CheckpointManager(disk / "run", keep=2, async_save=async_save) as manager:
        assert manager.resume(weighing(1)) == 4
        manager.save(5, weighing(1, 5))
    assert complete(disk / "run") == ["step-4", "step-5"]


def test_so_they_do_where_not_even_a_note_has_room(disk: Path) -> None:
    fill(disk / "run", 1, 2, 3, 4)
    with (disk / "ballast").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(512))
    with CheckpointManager(disk / "run", keep=2) as manager:
        manager.save(5, weighing(1, 5))
    assert complete(disk / "run") == ["step-4", "step-5"]


def test_what_was_resumed_from_stays_until_the_first_save(disk: Path) -> None:
    fill(disk / "run", 1, 2, 3, 4)
    with CheckpointManager(disk / "run", keep=1) as manager:
        assert manager.resume(weighing(1), step=2) == 2
        with pytest.raises(CheckpointException):
            manager.save(3, {"weight": lambda: 0})
        assert {"step-2", "step-4"} <= set(complete(disk / "run"))


@pytest.mark.parametrize("async_save", [False, True])
def test_a_save_that_would_not_fit_has_the_rules_applied_first(disk: Path, async_save: bool) -> None:
    with CheckpointManager(disk / "run", keep=4, async_save=async_save) as manager:
        for step in range(1, 8):
            manager.save(step, weighing(1, step))
            manager.wait()
    assert complete(disk / "run") == ["step-4", "step-5", "step-6", "step-7"]


def test_a_save_that_takes_more_than_the_last_one_makes_room_and_is_tried_once_more(disk: Path) -> None:
    with CheckpointManager(disk / "run", keep=2) as manager:
        for step in (1, 2):
            manager.save(step, weighing(1, step))
        manager.save(3, weighing(3, 3))
        manager.wait()
        assert complete(disk / "run") == ["step-2", "step-3"]
        with pytest.raises(CheckpointException, match="too full"):
            manager.save(4, weighing(4, 4))
        assert "step-3" in complete(disk / "run")


@pytest.mark.parametrize("framework", [False, True])
def test_a_save_in_the_background_that_did_not_fit_leaves_room_for_the_next(disk: Path, framework: bool) -> None:
    with CheckpointManager(disk / "run", keep=2, async_save=True) as manager:
        for step in (1, 2):
            manager.save(step, weighing(1, step))
        manager.wait()
        if framework:
            future: Future[None] = Future()
            manager.begin(3)
            manager.commit(3, after=future)
            future.set_exception(OSError(errno.ENOSPC, "No space left on device"))
        else:
            manager.save(3, weighing(3, 3))
        with pytest.raises((CheckpointException, OSError)) as caught:
            manager.wait()
        assert any("save again" in note for note in caught.value.__notes__)
        assert complete(disk / "run") == ["step-2"]
        manager.save(4, weighing(3, 4))
        manager.wait()
        assert complete(disk / "run") == ["step-2", "step-4"]


def test_a_framework_finds_room_when_it_begins(disk: Path) -> None:
    with CheckpointManager(disk / "run", keep=4) as manager:
        for step in range(1, 8):
            path = Path(manager.begin(step))
            (path / "model.bin").write_bytes(bytes(MEBIBYTE))
            manager.commit(step)
            manager.wait()
    assert complete(disk / "run") == ["step-4", "step-5", "step-6", "step-7"]


def test_a_manager_that_never_saves_never_removes(disk: Path) -> None:
    fill(disk / "run", 1, 2, 3, 4)
    with CheckpointManager(disk / "run", keep=1) as manager:
        assert manager.resume(weighing(1)) == 4
    assert len(complete(disk / "run")) == 4


def test_a_save_over_a_checkpoint_counts_in_its_place(tmp_path: Path) -> None:
    saved_run(tmp_path, 1, 2, 3)
    run = Run.at(tmp_path)
    sizes = [record.bytes or 0 for record in run.read().records]
    keep = Retention(max_bytes=sum(sizes) + 100)  # they differ by a few bytes
    again, next_one = (Record(name, 2e9, sizes[-1], {}) for name in ("step-3", "step-4"))
    assert forget_in(run, keep, "none", dry_run=True, series="step-{}", coming=again).removed == ()
    assert forget_in(run, keep, "none", dry_run=True, series="step-{}", coming=next_one).removed == ("step-1",)
