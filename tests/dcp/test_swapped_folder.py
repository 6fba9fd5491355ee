"""Somebody puts a link to another folder in the place of the one that is being saved to, at any moment."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import CheckpointManager
from streamxf.checkpoint.saving import Save
from streamxf.errors import AbortedError
from streamxf.storage.lock import locked

from .helpers import KEY, assert_same, error_of, full_chain, load, refused, save

CALLS = ("open", "stat", "lstat", "scandir", "replace", "unlink", "fsync", "mkdir", "link", "rename", "rmdir")
VICTIMS = (".metadata", "__0_0.distcp", ".streamxf-saving", f"__0_0_{'a' * 32}.distcp")


def state_of(value: float) -> dict[str, Any]:
    return {name: torch.full((300,), value) for name in "ab"} | {"step": value}


class Swap:
    """Before the file call of this number, renames `folder` and puts a link to `outside` in its place."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.moved, self.outside = folder, folder.with_name("moved"), folder.with_name("outside")
        self.outside.mkdir(parents=True)
        for name in VICTIMS:
            (self.outside / name).write_text("the victim's")
        self._before = self._seen()
        self._left = number
        self._armed = False
        self._lock = threading.Lock()

    def _seen(self) -> Any:
        return os.stat(self.outside).st_mtime_ns, {file.name: file.read_text() for file in self.outside.iterdir()}

    @property
    def done(self) -> bool:
        return self.moved.exists()

    def check(self) -> None:
        assert self._seen() == self._before

    def arm(self) -> None:
        self._armed = True

    def _reached(self) -> None:
        if not self._armed or not self._lock.acquire(blocking=False):  # by this thread, in the calls below, or another
            return
        try:
            if self._left == 0 and self.folder.is_dir() and not self.folder.is_symlink():
                os.rename(self.folder, self.moved)
                os.symlink(self.outside, self.folder)
            self._left -= self._left > 0
        finally:
            self._lock.release()

    @contextmanager
    def watching(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._before_each(getattr(os, name)))
            yield

    def _before_each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            self._reached()
            return function(*arguments, **options)

        return called


def swaps(tmp_path: Path, step: int = 1) -> Iterator[tuple[Path, int]]:
    """A folder for each try, with `step` more calls before the swap."""
    for number in range(0, 400, step):
        yield tmp_path / str(number), number
    pytest.fail("a save has fewer calls")


class Failing(dcp.DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        if write_item.index.fqn == "b":
            raise ValueError("the planner's own")
        return super().resolve_data(write_item)


@pytest.mark.parametrize(
    ("before", "fails", "threads", "url"),  # each pair of them
    [
        (True, False, 1, False),
        (False, False, 2, True),
        (True, True, 2, True),
        (False, True, 1, True),
        (False, True, 2, False),
    ],
)
def test_a_swap_at_any_call_of_a_save_changes_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool, fails: bool, threads: int, url: bool
) -> None:
    """From the moment at which the folder is opened: until then a link is the caller's."""
    enter = Save.enter
    saved = 0
    for run, number in swaps(tmp_path):
        folder = run / "checkpoint"
        if before:
            save(state_of(0), folder)
        swap = Swap(folder, number)

        def entered(*arguments: Any, swap: Swap = swap, **options: Any) -> Any:
            found = enter(*arguments, **options)
            swap.arm()
            return found

        monkeypatch.setattr(Save, "enter", entered)
        options = {"_extensions": full_chain(), "thread_count": threads, "sync_files": True}
        made: Any = streamxf.FsspecWriter if url else streamxf.FileSystemWriter
        writer = made(f"file://{folder}" if url else folder, **options)
        planner = Failing() if fails else None
        with swap.watching():
            error = error_of(lambda w=writer, p=planner: dcp.save(state_of(1), storage_writer=w, planner=p))
            del writer
        swap.check()
        if not swap.done:
            break
        names = {file.name for file in swap.moved.iterdir()}
        if error is None:
            saved += 1
            assert_same(load(state_of(2), swap.moved), state_of(1))
        else:
            assert isinstance(error, ValueError if fails else AbortedError), repr(error)
            assert {".metadata"} & names == ({".metadata"} if before else set())
            if before:
                assert_same(load(state_of(2), swap.moved), state_of(0))
        assert len([name for name in names if name.endswith(".distcp")]) == (threads if error is None else before)
    assert number > 10
    assert (error is None) != fails
    assert bool(saved) != fails  # a swap after the last look at the folder


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("mode", [False, "thread"])
def test_a_swap_at_any_call_of_a_managers_save_changes_nothing_outside(tmp_path: Path, mode: Any, step: int) -> None:
    for run, number in swaps(tmp_path, step):
        swap = Swap(run / "step-2", number)
        with swap.watching():
            manager = CheckpointManager(run, chain=full_chain(), keys=KEY, keep=1, async_save=mode)
            manager.save(1, state_of(1))
            manager.wait()
            swap.arm()
            errors = [error_of(lambda m=manager: m.save(2, state_of(2))), error_of(manager.wait)]
            manager.close()
        swap.check()
        if not swap.done and number > 20:
            break
    assert errors == [None, None]


def test_a_managers_save_names_the_link(tmp_path: Path) -> None:
    swap = Swap(tmp_path / "step-1", 0)

    class Swapping(dict[str, Any]):
        """What is looked at between the manager's mark and the writer's first look at the folder."""

        def items(self) -> Any:
            swap.arm(), swap._reached()
            return super().items()

    with CheckpointManager(tmp_path) as manager, refused(AbortedError, "this folder was replaced by a link or a file"):
        manager.save(1, Swapping(state_of(1)))
    swap.check()


def test_a_swap_at_any_call_of_cleaning_changes_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run, number in swaps(tmp_path):
        save(state_of(1), run / "checkpoint", [])
        swap, left = Swap(run / "checkpoint", number), f"__0_0_{'b' * 32}.distcp"
        (swap.folder / left).touch()

        def armed(*arguments: Any, swap: Swap = swap) -> Any:
            swap.arm()
            return locked(*arguments)

        monkeypatch.setattr("streamxf.tools.clean.locked", armed)
        with swap.watching():
            error = error_of(lambda folder=swap.folder: streamxf.clean(folder))
        swap.check()
        if not swap.done:
            break
    assert error is None
    assert number > 5
    assert left not in os.listdir(swap.folder)


def test_a_link_that_the_caller_names_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    save(state_of(1), tmp_path / "link")
    assert_same(load(state_of(0), tmp_path / "there"), state_of(1))
    assert (tmp_path / "link").is_symlink()


def test_saves_leave_no_folder_open(tmp_path: Path) -> None:
    def folders() -> int:
        return sum(os.path.isdir(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))

    writers = [streamxf.FileSystemWriter(tmp_path / "a"), streamxf.FileSystemWriter(tmp_path / "b")]
    gc.collect()
    before = folders()
    for planner in (None, Failing(), None):
        error_of(lambda p=planner: dcp.save(state_of(1), storage_writer=writers[0], planner=p))
    assert folders() == before
    error = error_of(lambda: dcp.save(state_of(1), storage_writer=writers[1], planner=Failing()))
    assert isinstance(error, ValueError)
    assert folders() == before  # while the error leads to the save
