"""Random histories of runs with incremental saves, on disks with and without links, and in an object store: full and
incremental saves, kills at any point, forget, going back, consolidate, rekey, rotation by others, and what two do at
once. No checkpoint has a wrong element, and none lacks a base but by what others removed.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
import warnings
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf import Retention
from streamxf.errors import StreamxfError
from streamxf.manager.listing import list_checkpoints
from streamxf.manager.manager import CheckpointManager
from streamxf.places import open_storage
from streamxf.storage.local import LocalStorage
from streamxf.storage.storage import StorageEntry
from tests.manager.points import Killed, Points, kill
from tests.storage.stores import MemoryStorage

SURE = {"links": False, "stored": True, "in_order": True, "fresh": True}
KEY, OTHER = (streamxf.Key(bytes(range(first, first + 32))) for first in (0, 1))
STEPS, POINTS = st.integers(1, 12), st.integers(0, 25)
DAY = 86_400
CHANGES = {
    LocalStorage: ("put", "create", "link", "remove", "remove_folder"),
    MemoryStorage: ("write", "create", "remove"),
}


class Store(MemoryStorage):
    """An object store that knows when files were written."""

    own_abilities = replace(MemoryStorage.own_abilities, in_one_step=True)

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[str, float] = {}

    def info(self, path: str = "") -> StorageEntry:
        return super().info(path)._replace(written=self.times.get(self.path_of(path)))

    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        super().write(path, data, over=over)
        self.times[self.path_of(path)] = time.time()


def state_of(version: tuple[int, int]) -> dict[str, Any]:
    frozen, moving = version
    return {
        "frozen": torch.arange(3000.0) + frozen,
        "moving": torch.arange(2000.0) * moving,
        "raw": torch.arange(1500) + moving,
        "plain": moving,
    }


class Histories(RuleBasedStateMachine):
    """A run beside a model of it: which versions of the state each step may have, and whose base others removed."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.stack = Points(), ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="streamxf-increments-"))
        self.may: dict[int, set[tuple[int, int]]] = {}  # by step, what may be there; whatever is not must not
        self.must: set[int] = set()  # steps that are there
        self.lost: set[str] = set()  # files that others removed
        self.version, self.job = (0, 0), None

    @initialize(where=st.sampled_from(["links", "no links", "store"]), every=st.integers(2, 6), keyed=st.booleans())
    def begins(self, where: str, every: int, keyed: bool) -> None:
        run: Any = Store() if where == "store" else open_storage(self.folder / "run")
        self.run = run.told(SURE) if where == "no links" else run
        self.how: dict[str, Any] = {"chain": "floatzip+encrypt", "keys": KEY} if keyed else {}
        self.every = every
        for owner, names in CHANGES.items():
            for name in names:
                changed = self.points.before(vars(owner)[name])
                self.stack.enter_context(patch.object(owner, name, changed))
        self.stack.enter_context(patch.object(os, "fsync", lambda _: None))
        self.save(0, 1, False)

    def teardown(self) -> None:
        self.end()
        self.stack.close()
        shutil.rmtree(self.folder)

    def running(self) -> CheckpointManager:
        if self.job is None:
            chains = {"*": self.how.get("chain", "floatzip"), "raw": "floatzip" if self.how else "raw"}
            if self.how:
                encrypt = streamxf.Encrypt(KEY)
                chains = {"*": [streamxf.FloatZip(), encrypt], "raw": [encrypt]}  # type: ignore[dict-item]
            self.job = CheckpointManager(self.run, chains, keys=self.how.get("keys"), incremental=self.every)
            state = state_of((7, 7))
            with suppress(streamxf.errors.NoCheckpointError):
                self.job.resume(state)
        return self.job

    def end(self, *, killed: bool = False) -> None:
        job, self.job = self.job, None
        if job is not None and killed:
            if job._housekeeper is not None:
                kill(job._housekeeper)
            job._signals.close()
            for writer in job._writers.values():
                if writer._save is not None:
                    writer._save.unlock()
                    if writer._save.unpublished is not None:
                        writer._save.unpublished.detach()
        elif job is not None:
            job.close()

    def listed(self) -> dict[str, Any]:
        with suppress(streamxf.errors.NoCheckpointError):  # before the first save
            return {each.name: each for each in list_checkpoints(self.run) if each.complete}
        return {}

    def killing(self, point: int, act: Any) -> bool:
        """Whether something was killed at a point; the job goes with it."""
        try:
            with self.points.at(point, self.points.kill):
                act()
                return False
        except (Killed, CheckpointException):
            self.end(killed=True)
            return True
        finally:
            self.points._dead = False

    def next_state(self, cold: bool) -> dict[str, Any]:
        self.version = self.version[0] + cold, self.version[1] + 1
        return state_of(self.version)

    # -- what happens ----------------------------------------------------------------------------------

    @rule(ahead=st.integers(0, 2), count=st.integers(1, 4), cold=st.booleans())
    def save(self, ahead: int, count: int, cold: bool) -> None:
        for _ in range(count):
            step = min(max(self.must, default=1) + ahead, 14)
            self.running().save(step, self.next_state(cold))
            self.running().wait()
            self.may[step] = {self.version}
            self.must.add(step)

    @rule(step=STEPS, cold=st.booleans(), point=POINTS)
    def kill_while_saving(self, step: int, cold: bool, point: int) -> None:
        job, state = self.running(), self.next_state(cold)
        killed = self.killing(point, lambda: (job.save(step, state), job.wait()))
        self.may[step] = {self.version} | (self.may.get(step, set()) if killed else set())
        self.must |= set() if killed else {step}

    @rule(last=st.integers(1, 3), point=st.none() | POINTS)
    def forget(self, last: int, point: int | None) -> None:
        before = self.listed()
        act = partial(streamxf.forget, self.run, Retention(last=last), keys=self.how.get("keys"), verify="none")
        if point is not None:
            self.killing(point, act)
        else:
            report = act()
            assert not report.failed
            needed = {base for name in report.kept for base in before[name].needs}
            assert needed.isdisjoint(report.removed)
        left = self.listed()
        assert left
        self.must &= {int(name[5:]) for name in left}

    @precondition(lambda self: self.must)
    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        names = sorted({f"step-{step}" for step in self.must} - self.broken(self.listed()))
        if names:
            step = int(data.draw(st.sampled_from(names))[5:])
            state = state_of((7, 7))
            assert self.running().resume(state, step=step) == step
            assert self.is_one(state, self.may[step])

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        self.end(killed=killed)

    @precondition(lambda self: self.must)
    @rule(data=st.data(), point=st.none() | POINTS)
    def consolidate(self, data: st.DataObject, point: int | None) -> None:
        name = f"step-{data.draw(st.sampled_from(sorted(self.must)))}"
        keys = [KEY, OTHER] if self.how else None
        act = partial(streamxf.consolidate, self.run.child(name), keys=keys, file_size=10_000)
        try:
            if (point is None or not self.killing(point, act)) and point is None:
                act()
                assert not self.listed()[name].increment
        except (StreamxfError, OSError):
            assert name in self.broken(self.listed())

    @precondition(lambda self: self.must and self.how)
    @rule(data=st.data())
    def rekey(self, data: st.DataObject) -> None:
        name = f"step-{data.draw(st.sampled_from(sorted(self.must)))}"
        streamxf.rekey(self.run.child(name), keys=KEY, recipients=[KEY, OTHER])

    @precondition(lambda self: len(self.must) > 1)
    @rule(data=st.data())
    def others_rotate(self, data: st.DataObject) -> None:
        """As a framework does, by the folder's name."""
        step = data.draw(st.sampled_from(sorted(self.must)))
        place = self.run.child(f"step-{step}")
        self.lost |= {f"step-{step}/{name}" for name in place.names()}
        place.remove_all()
        self.must.discard(step)
        del self.may[step]

    @precondition(lambda self: isinstance(self.run, Store))
    @rule(step=STEPS, last=st.integers(1, 2), point=st.integers(0, 40), cold=st.booleans())
    def save_meets_forget(self, step: int, last: int, point: int, cold: bool) -> None:
        """What another process removes, at any point of a save."""
        job, state = self.running(), self.next_state(cold)
        other = partial(streamxf.forget, self.run, last, keys=self.how.get("keys"), verify="none")
        with self.points.at(point, lambda: in_thread(other)):
            job.save(step, state)
            job.wait()
        self.may[step] = {self.version}
        self.must = {int(name[5:]) for name in self.listed()}

    @precondition(lambda self: isinstance(self.run, Store))
    @rule(step=STEPS, last=st.integers(1, 2), point=st.integers(0, 40), cold=st.booleans())
    def forget_meets_save(self, step: int, last: int, point: int, cold: bool) -> None:
        job, state = self.running(), self.next_state(cold)
        with self.points.at(point, lambda: in_thread(lambda: (job.save(step, state), job.wait()))):
            streamxf.forget(self.run, last, keys=self.how.get("keys"), verify="none")
        saved = self.points._action is None
        self.may[step] = {self.version} | self.may.get(step, set()) if saved else self.may.get(step, set())
        self.must = {int(name[5:]) for name in self.listed()}

    @rule()
    def days_pass(self) -> None:
        """Pins of what never came count for nothing."""
        if isinstance(self.run, Store):
            self.run.times = {path: at - 2 * DAY for path, at in self.run.times.items()}
        for pin in self.folder.glob("run/*/.streamxf-pin-*"):
            os.utime(pin, (time.time() - 2 * DAY,) * 2)

    # -- what holds at any time ------------------------------------------------------------------------

    def broken(self, listed: dict[str, Any]) -> set[str]:
        """What needs files that others removed."""
        found = set()
        for name, record in listed.items():
            with streamxf.Checkpoint(self.run.child(name), keys=self.how.get("keys")) as checkpoint:
                files = {path.removeprefix("../") for path in checkpoint.metadata[0].files}
            found |= {name} if record.needs and files & self.lost else set()
        return found

    def is_one(self, state: dict[str, Any], versions: set[tuple[int, int]]) -> bool:
        return any(
            all(torch.equal(torch.as_tensor(state[name]), torch.as_tensor(value)) for name, value in known.items())
            for known in map(state_of, versions)
        )

    @invariant()
    def what_is_there_is_right(self) -> None:
        listed = self.listed()
        assert {f"step-{step}" for step in self.must} <= listed.keys()
        broken = self.broken(listed)
        for name in listed:
            try:
                with streamxf.Checkpoint(self.run.child(name), keys=self.how.get("keys")) as checkpoint:
                    found = {each: checkpoint[each].read() for each in state_of((0, 0))}
            except (StreamxfError, OSError):
                assert name in broken, name
                continue
            assert self.is_one(found, self.may[int(name[5:])]), name


def in_thread(act: Any) -> None:
    """As another process, to which the points mean nothing."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in failed:
        raise error


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, 201))])
def test_histories_of_increments(part: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with warnings.catch_warnings(action="ignore"):
        how = settings(max_examples=10 if part else 8, derandomize=not part, stateful_step_count=14)
        run_state_machine_as_test(Histories, settings=how)
