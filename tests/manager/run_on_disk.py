"""A run's folder on a disk, beside its model: how saves come there, and what can be told from it without streamxf."""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from manager.damages import EVERY_CHECK, contents, data_file
from manager.model import METADATA, Model, Saved
from manager.points import Killed, Points
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.storage import Storage
from streamxf.errors import NoCheckpointError
from streamxf.manager.holds import holding
from streamxf.manager.keeper import Keeper
from streamxf.manager.retention import Retention

NOON = 1.7e9


class Errors(logging.Handler):
    """What a keeper has logged as an error, since it raises none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


class RunOnDisk(RuleBasedStateMachine):
    """What rules are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Path(tempfile.mkdtemp(prefix="streamxf-history-"))
        self.storage = Storage.of(self.run)
        self.model = Model()
        self.points = Points()
        self.now = NOON
        self.job: Keeper | None = None
        self.keeping: dict[str, Any] = {}
        self.check = "sample"
        self.fresh: set[int] = set()  # published, and then the process was killed: the catalog has yet to learn of it
        self.stale: set[int] = set()  # whose metadata is no longer what the catalog noted of it
        self.written: dict[int, int] = {}  # which contents a step has
        self.holds: dict[int, ExitStack] = {}
        self.errors = Errors()
        logging.getLogger("streamxf.manager.keeper").addHandler(self.errors)
        self.had_good = False
        self.tidy = False  # whether the job has saved
        self.announced: set[int] = set()  # by frameworks, and never said to be complete

    def teardown(self) -> None:
        logging.getLogger("streamxf.manager.keeper").removeHandler(self.errors)
        self.end_job()
        for stack in self.holds.values():
            stack.close()
        shutil.rmtree(self.run)

    def watched(self) -> AbstractContextManager[None]:
        return self.points.watched(lambda: self.now)

    def path(self, step: int) -> Path:
        return self.run / f"step-{step}"

    def notes(self, what: str) -> dict[int, Any]:
        """What the catalog has under this heading, by steps; read without streamxf."""
        try:
            found = json.loads((self.run / ".streamxf" / "catalog.json").read_text())[what]
        except FileNotFoundError:
            return {}
        return {int(name.removeprefix("step-")): each for name, each in found.items()}

    def size(self, step: int) -> int:
        return sum(file.stat().st_size for file in self.path(step).iterdir())

    def seen(self, step: int) -> Saved:
        """What one can say of a checkpoint that the catalog does not know."""
        return Saved(step, (self.path(step) / ".metadata").stat().st_mtime, self.size(step), None)

    def measure(self) -> None:
        """Where the catalog does not say what a folder took, what it takes now counts."""
        for step in self.model.saved.keys() - (self.notes("saved").keys() - self.fresh):
            self.model.saved[step] = self.model.saved[step]._replace(size=self.size(step))

    def removed(self, going: set[int]) -> None:
        """It was done. What is stale is not removed before the next call, now that its outdated note has gone."""
        for step in going & self.stale:
            self.model.saved[step] = self.seen(step)
        self.model.remove(going - self.stale)
        self.stale -= going

    def learn(self, may_go: set[int]) -> None:
        """After a kill: see what was done, and what was begun; no more than this may be gone, or going."""
        before = set(self.model.saved)
        noted, known = self.notes("removing"), self.notes("saved")
        for step, saved in {**self.model.saved, **self.model.going}.items():
            self.model.saved.pop(step, None)
            self.model.going.pop(step, None)
            here = (self.path(step) / ".metadata").exists()
            if step in noted:
                self.model.going[step] = saved
                if not here:
                    self.model.broken[step] = EVERY_CHECK | {METADATA}
            elif here or (step in known and METADATA in self.broken(step) and self.path(step).exists()):
                self.model.saved[step] = saved
        self.model.saving = set(self.notes("saving"))
        self.fresh &= self.model.saving
        for step in {step for step in self.announced if not self.notes("saving").get(step, {}).get("commits")}:
            self.take_back(step)
        assert before - self.model.saved.keys() <= may_go

    def is_odd(self, step: int) -> bool:
        """Whether the catalog believes of a checkpoint what is no longer so. A save over it that fails is left out."""
        return step in self.stale or METADATA in self.broken(step)

    def broken(self, step: int) -> set[str]:
        return self.model.broken.get(step, set())

    def go(self, call: Callable[[Keeper], Any]) -> None:
        """Have the job's keeper do something."""
        assert self.job is not None
        with self.watched():
            with suppress(Killed):
                call(self.job)
            self.job.wait()

    def start_job(self, rules: dict[str, Any], check: str) -> None:
        self.end_job()
        self.keeping, self.check = rules, check
        self.job = Keeper(self.storage, Retention(**rules), "step-{}", Access(), check)
        self.tidy = False

    def end_job(self) -> None:
        if self.job is not None:
            self.job.close(ended=False)
            self.job = None

    def begin(self, step: int, call: Callable[[Keeper], None]) -> None:
        """A save is noted; the first one of a job puts in order what others left."""
        if self.job is None:
            self.start_job(self.keeping, self.check)
        self.go(call)
        if not self.tidy:
            self.tidy = True
            self.model.finish(self.now)
            self.model.saving = set(self.notes("saving"))
            self.fresh.clear()
            self.announced &= self.model.saving
        if step in self.model.going:
            self.model.saved[step] = self.model.going.pop(step)
        if METADATA in self.broken(step):
            self.model.saved.pop(step, None)
        self.model.saving.add(step)

    def publish(self, step: int, loss: float | None, end: int) -> None:
        """A save up to the point `end`."""
        metrics = {} if loss is None else {"loss": loss}
        began = self.now
        self.begin(step, lambda job: job.begin(f"step-{step}", metrics))
        self.take_back(step)
        self.now += 60
        if self.write(step, end):
            self.model.saved[step] = Saved(step, began, 0, metrics)
            self.fresh.add(step)
        self.measure()

    def take_back(self, step: int) -> None:
        """Nobody knows any longer that a framework was to say when a save is complete."""
        if step in self.announced:
            self.announced.discard(step)
            if (self.path(step) / ".metadata").exists():
                self.model.saved[step] = self.seen(step)

    def write(self, step: int, end: int) -> bool:
        """What a save writes up to the point `end`: at 1 its folder is made, at 4 its metadata is published, at 5 what
        was there before is removed. Whether it was published.
        """
        path, number = self.path(step), 1 - self.written.get(step, 1)
        data = data_file(number)
        if end >= 1:
            path.mkdir(exist_ok=True)
        if end >= 2:
            (path / data).write_bytes(contents(number)[data][:100])
        if end >= 3:
            (path / data).write_bytes(contents(number)[data])
        if end >= 4:
            (path / ".metadata").write_bytes(contents(number)[".metadata"])
            os.utime(path / ".metadata", (self.now, self.now))
            self.written[step] = number
            self.model.broken.pop(step, None)
            self.stale.discard(step)
        if end >= 5:
            for file in path.iterdir():
                if file.name not in contents(number):
                    file.unlink()
        return end >= 4

    def may_go(self, rules: dict[str, Any], check: str, just_saved: int | None = None) -> set[int]:
        """What a `forget` may remove that does not come to its end."""
        model = copy.deepcopy(self.model)
        model.saving -= {just_saved}
        model.finish(self.now)
        return model.to_go(rules, check, self.now, just_saved)[0]

    def hold(self, step: int) -> bool:
        stack = ExitStack()
        with self.watched():
            try:
                stack.enter_context(holding(self.storage, f"step-{step}"))
            except NoCheckpointError:
                return False
        who = max(self.holds, default=0) + 1
        self.holds[who] = stack
        self.model.readers[who] = step, int(self.now)
        return True

    def release(self, who: int) -> None:
        self.holds.pop(who).close()
        self.model.readers.pop(who, None)

    def sound(self) -> set[int]:
        return {step for step in self.model.saved.keys() - self.model.saving if not self.broken(step)}
