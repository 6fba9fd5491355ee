"""A run's folder beside its model: how saves come there, and what can be told from it without streamxf."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis.stateful import RuleBasedStateMachine

from streamxf.errors import NoCheckpointError
from streamxf.format.run import RunFacts
from streamxf.manager import choice, housekeeper
from streamxf.manager.forget import ForgetReport, forget_in
from streamxf.manager.holds import hold_checkpoint
from streamxf.manager.housekeeper import Housekeeper
from streamxf.manager.listing import Run
from streamxf.manager.retention import Retention
from streamxf.manager.saves import SaveNotes
from streamxf.storage.opening import open_storage
from tests.failing import fails_with
from tests.manager.canned import Files, checkpoint, data_of, keying
from tests.manager.model import DAY, Folder, Line, Model
from tests.manager.places import Disk, Objects
from tests.manager.points import Killed, Points, kill

NOON = 1_700_000_000
EVERY_CHECK = {"none", "sample", "whole"}
OWN_ID, OTHER_ID = "1" * 32, "f" * 32
HANGS = 60  # seconds
SETTLED = 12_000_000  # ns, more than the kernel's clock for files takes from tick to tick
HOLD = re.compile(r"(.+)@([0-9]{1,15})@[^@]+-[0-9a-f]{8}")
SESSION = re.compile(r"-([0-9a-f]{32})-[0-9a-f]{8}$")  # in a save's hold
NOTE = ".streamxf-note-00000000"  # somebody else's
WRITERS = re.compile(r"__.*\.distcp|\.metadata")  # names of files of a checkpoint


class Committed(NamedTuple):
    """What a framework's commit record lists."""

    size: int
    paths: frozenset[str]


class Errors(logging.Handler):
    """What a housekeeper has logged as an error, since it raises none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


class RunOnDisk(RuleBasedStateMachine):
    """What rules are made of."""

    keys = "none"

    def __init__(self) -> None:
        super().__init__()
        self.keying = keying(self.keys)
        self.place: Disk | Objects = Disk()
        self.locks = True
        self.remembers = False  # whether what was found in a folder is remembered soon
        self.named = False  # whether the job and tools say which run it is
        self.run_id: str | None = None
        self.model = Model(bare=lambda: self.bare())
        self.points = Points()
        self.now = NOON
        self.job: Housekeeper | None = None
        self.killed: list[Housekeeper] = []
        self.keeping: dict[str, Any] = {}
        self.check = "sample"
        self.line: Line | None = None  # the job's, from its first save after it has loaded one
        self.loaded: tuple[int, Line] | None = None
        self.blocked = False  # whether nothing can be noted
        self.saves = 0
        self.tidy = False  # whether the job has saved
        self.files: dict[str, Files] = {}  # of complete checkpoints, as they were saved or planted
        self.others: dict[str, bytes | str] = {}  # files in the run that belong to no checkpoint, by their paths
        self.litter: set[str] = set()  # what looks like a file of the manager's, which may go or stay
        self.save_ids: dict[Any, str] = {}  # by the metadata's bytes
        self.muddles: set[bytes] = set()  # contents of notes that count for nothing
        self.committed: dict[str, Committed] = {}  # what frameworks wrote
        self.holds: dict[int, tuple[str, ExitStack]] = {}
        self.errors = Errors()
        # of files that were copied without their times; with them, a line may be undecided
        self.untimed = ExitStack()
        for module in (choice, housekeeper):
            self.untimed.enter_context(patch.object(module, "written", lambda run, name: 0.0))
        self.outside = self.place.outside()
        logging.getLogger("streamxf").addHandler(self.errors)

    def settle(self, remote: bool, remembers: bool, locks: bool, named: bool) -> None:
        """Where the run lies, before anything happens to it."""
        self.locks, self.named, self.remembers = locks, named, remembers
        self.run_id = OWN_ID if named else None
        if remote:
            self.place.close()
            self.place = Objects()
        for name in ("step-1", "step-7"):
            self.put_outside(name)
        self.place.put("config.json", b"{}")
        self.others["config.json"] = b"{}"
        self.outside = self.place.outside()

    def put_outside(self, name: str) -> None:
        """A checkpoint in the folder of a victim, which is of another run."""
        made, _ = checkpoint("none", 0, RunFacts(OTHER_ID, name, int(name[5:]), NOON))
        relative = "../victim" if self.place.local else "../run1"
        for path, data in made.items():
            if self.place.local:
                self.place.put(f"{relative}/{name}/{path}", data)
            else:
                self.place._files.pipe_file(f"{self.place._base}/run1/{name}/{path}", data)

    def teardown(self) -> None:
        self.untimed.close()
        logging.getLogger("streamxf").removeHandler(self.errors)
        self.end_job()
        for job in self.killed:
            for save in job._saves.values():
                save.hold.close()
        for _, stack in self.holds.values():
            stack.close()
        self.place.close()

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = signal.signal(signal.SIGALRM, fails_with(AssertionError, f"nothing has happened for {HANGS} seconds"))
        signal.alarm(HANGS)
        try:
            with self.points.watched(lambda: self.now, self.locks, SETTLED if self.remembers else None):
                yield
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    # -- what can be told from the storage -------------------------------------------------------------

    def is_there(self, name: str) -> bool:
        """Whether a complete checkpoint is, as far as names tell."""
        found = self.place.below(name)
        wanted = ".streamxf-commit" if name in self.committed else ".metadata"
        going = ".streamxf-removed" in found and ".metadata" in self.files.get(name, ()) and ".metadata" not in found
        return (wanted in found and not going) or (self.place.local and self.place.path(name).is_symlink())

    def bare(self) -> set[str]:
        """The folders with data in which nothing says that a save was begun, such as those that lost their metadata."""
        notes = {".metadata", ".streamxf-commit", ".streamxf-removed"}
        found: dict[str, set[str]] = {}
        for path, what in self.place.below().items():
            name, _, file = path.partition("/")
            if isinstance(what, bytes):
                found.setdefault(name, set()).add(file)
        bare = {name for name, files in found.items() if any(file.endswith(".distcp") for file in files - notes)}
        bare = {name for name in bare if name.removeprefix("step-").isdigit() and not found[name] & notes}
        return {name for name in bare if self.model.lines(name) or self.model.is_noted_as_lost(name, found[name])}

    def read_now(self) -> set[str]:
        """The names that somebody holds."""
        found, notes = set(), self.place.below(".streamxf")
        own = self.job._sessions.own.id if self.job is not None else None
        for path, data in notes.items():
            match = HOLD.fullmatch(path.removeprefix("holds/"))
            saves = SESSION.search(path)
            locked = self.place.local and self.locks
            if saves and saves[1] != own and locked and isinstance(notes.get(f"session-{saves[1]}.lock"), bytes):
                continue  # its lock shows that the save was killed
            if match and isinstance(data, bytes) and abs(self.now - int(match[2])) < DAY:
                found.add(match[1])
        return found

    def size(self, name: str) -> int:
        found = self.place.below(name).items()
        return sum(len(data) for path, data in found if WRITERS.fullmatch(path) and isinstance(data, bytes))

    def time_of(self, name: str) -> float | None:
        """When its metadata was written, or its commit record; object stores of this kind do not tell."""
        if not self.place.local:
            return None
        file = ".streamxf-commit" if name in self.committed else ".metadata"
        return int(self.place.path(f"{name}/{file}").stat().st_mtime * 1000) / 1000

    def measure(self, names: Collection[str] | None = None) -> None:
        for name in self.model.folders if names is None else names:
            size = self.committed[name].size if name in self.committed else self.size(name)
            folder = self.model.folders[name]
            files = self.place.below(name)
            late = (data for path, data in files.items() if path.startswith(".streamxf-note-") and path != NOTE)
            save_id = self.save_ids.get(files.get(".metadata"), "").encode()
            replaced = any(isinstance(data, bytes) and save_id not in data for data in late)
            folder.size, folder.muddled = size, files.get(NOTE) in self.muddles or replaced
            if self.keying.strict and name in self.committed:
                found = self.place.below(self.model.links.get(name, name)).keys() - self.committed[name].paths
                folder.mixed = not all(path.startswith(".streamxf") for path in found)

    def to_go(self, rules: dict[str, Any], check: str, line: Line | None = None) -> tuple[set[int], set[int]]:
        self.measure()
        return self.model.to_go(rules, check, self.now, self.read_now(), line=line)

    def removed(self, steps: Collection[int], begun: str = "") -> None:
        """It was done: nothing is there but what belongs to others, and the note of a save begun since."""
        stays = self.others.keys() | self.litter | {f"{begun}/.streamxf-saving"}
        for step in steps:
            name = f"step-{step}"
            self.dropped(name)
            assert {f"{name}/{path}" for path in self.place.below(name)} <= stays

    def dropped(self, name: str) -> None:
        del self.model.folders[name], self.files[name]
        self.committed.pop(name, None)
        self.model.links.pop(name, None)

    def no_longer_a_link(self, step: int) -> None:
        """A save that was killed at its beginning has removed it, and perhaps put a folder in its place."""
        name = f"step-{step}"
        if name in self.model.links and not self.place.path(name).is_symlink():
            self.dropped(name)

    def uncommitted(self, name: str) -> None:
        """A save over what a framework wrote begins without its commit record; what DCP wrote there is still one."""
        if name in self.committed and ".streamxf-commit" not in self.place.below(name):
            folder, files = self.model.folders[name], dict(self.files[name])
            garbled = files.pop(".streamxf-commit", None) is not None
            self.dropped(name)
            if ".metadata" in files:
                broken = set() if garbled else folder.broken
                self.own(name, files, Folder("", True, self.time_of(name), None, broken=broken))

    def learn(self, may_go: Collection[int]) -> None:
        """After a kill, see what was done, which may be no more than this."""
        for name in list(self.model.folders):
            if not self.is_there(name):
                assert name in {f"step-{step}" for step in may_go}
                self.dropped(name)

    def broken(self, step: int) -> set[str]:
        found = self.model.folders.get(f"step-{step}")
        return found.broken if found is not None else set()

    # -- the job ---------------------------------------------------------------------------------------

    def known_id(self) -> str | None:
        """Which run it is, where nothing says so any more."""
        evident = [
            name
            for name, each in self.model.folders.items()
            if each.ours and each.told == name and name.startswith("step-")
        ]
        return None if evident and not self.named else self.run_id

    def seen(self) -> Run:
        return Run(open_storage(self.place.run), self.keying.authority(), self.known_id())

    def learn_line(self) -> None:
        """What is noted now."""
        notes = SaveNotes(open_storage(self.place.run), self.keying.authority())
        noted = {f"step-{step}": notes.get(f"step-{step}") for step in range(100)}
        self.model.noted = {name: each for name, each in noted.items() if each is not None and each.run == self.run_id}

    def forget(self, rules: dict[str, Any], check: str, dry_run: bool = False) -> ForgetReport:
        return forget_in(self.seen(), Retention(**rules), check, dry_run=dry_run)

    def start_job(self, rules: dict[str, Any], check: str) -> None:
        self.end_job()
        self.keeping, self.check, self.tidy = rules, check, False

    def running(self) -> Housekeeper:
        if self.job is None:
            self.job = Housekeeper(self.seen(), Retention(**self.keeping), "step-{}", self.check)
        return self.job

    def end_job(self) -> None:
        if self.job is not None:
            with self.watched():
                self.job.close(ended=True)
            self.job = None
        self.tidy, self.line, self.loaded = False, None, None

    def kill_job(self) -> None:
        if self.job is not None:
            kill(self.job)
            self.killed.append(self.job)
            self.job = None
            self.learn_line()
        self.tidy, self.line, self.loaded = False, None, None

    def go(self, call: Callable[[Housekeeper], Any]) -> Any:
        """Have the job's housekeeper do something."""
        job, found = self.running(), None
        with self.watched():
            with suppress(Killed):
                found = call(job)
            with suppress(Killed):
                job.wait()
        return found

    def is_blocked(self, path: str, by_folder: bool = True) -> bool:
        """Whether a folder lies where a save is to be noted, or none where holds are."""
        return self.place.is_taken(path) and self.place.is_folder(path) == by_folder

    def begin(self, step: int, metrics: dict[str, float], framework: bool = False) -> RunFacts:
        """A save is noted; the first one of a job applies the rules, and puts in order what others left."""
        name = f"step-{step}"
        if self.line is None:
            self.learn_line()
            self.line = self.model.last_line() if self.loaded is None else self.model.after(*self.loaded)[0]
        if not self.tidy:
            going, _ = self.to_go(self.keeping, self.check, self.line)
        known, counted = self.files.get(name, {}), step in self.model.counted
        began = self.now
        if framework:
            self.go(lambda job: job.begin(name, {}, framework=True))
        else:
            facts = self.go(lambda job: job.begin(name, metrics))
        self.learn_line()
        if not self.tidy:
            self.removed(going, name)
            self.tidy = True
        self.run_id = self.running()._run.run_id
        if name in self.model.links:  # in its place there is a folder now
            self.dropped(name)
        if framework:
            facts = RunFacts(str(self.run_id), name, step, began, {}, metrics, line=self.line or ())
            if name in self.model.folders:
                self.dropped(name)
        self.uncommitted(name)
        if name not in self.committed:
            # what a framework wrote for another folder, or with a commit record that nobody can read, is anybody's
            left = {path for path in known.keys() & self.place.below(name).keys() if "/" in path}
            assert not left or not counted or ".streamxf-commit" in known
            self.litter |= {f"{name}/{path}" for path in left}
        if self.is_blocked(f"{name}/.streamxf-saving"):
            self.errors.said.clear()
        assert facts.run == self.run_id
        assert facts.line == self.line
        assert facts.time == began
        return facts

    def publish(self, step: int, metrics: dict[str, float], end: int) -> str:
        """A save up to the point `end`; its id."""
        facts = self.begin(step, metrics)
        self.now += 60
        self.saves += 1
        made, save_id = checkpoint(self.keys, self.saves, facts)
        self.save_ids[made[".metadata"]] = save_id
        self.write(f"step-{step}", made, end)
        if end >= 4:
            self.own(f"step-{step}", made, Folder(f"step-{step}", True, facts.time, metrics, line=facts.line))
        return save_id

    def saved(self, step: int, call: Callable[[Housekeeper], Any]) -> set[int]:
        """The save of a step is complete; what the rules remove then."""
        name = f"step-{step}"
        read = self.read_now() - {name}  # its own hold ends first
        self.measure()
        before, _ = self.model.to_go(self.keeping, self.check, self.now, read, step, self.line)
        self.go(call)
        self.learn_line()
        if not self.is_there(name):
            return before
        assert self.model.lines(name) == [self.line or ()] or self.blocked
        self.measure([name])  # with what came late
        after, _ = self.model.to_go(self.keeping, self.check, self.now, read, step, self.line)
        return after

    def write(self, name: str, made: Files, end: int, below: str = "") -> None:
        """What a save writes up to the point `end`: at 3 its data is there, at 4 its metadata is published, at 5 what
        was there before is removed.
        """
        data = data_of(made)
        if end >= 2:
            self.place.put(f"{name}/{below}{data}", made[data][:100])
        if end >= 3:
            self.place.put(f"{name}/{below}{data}", made[data])
        if end >= 4:
            self.place.put(f"{name}/{below}.metadata", made[".metadata"], self.now)
        if end >= 5:
            for path, what in self.place.below(name).items():
                if isinstance(what, bytes) and WRITERS.fullmatch(path) and path not in made:
                    self.place.remove(f"{name}/{path}")

    def own(self, name: str, files: Files, folder: Folder) -> None:
        """This is what a folder holds from now on."""
        self.committed.pop(name, None)
        self.files[name] = dict(files)
        self.model.folders[name] = folder

    def hold(self, name: str) -> bool:
        stack = ExitStack()
        try:
            stack.enter_context(hold_checkpoint(self.seen(), name))
        except NoCheckpointError:
            return False
        self.holds[max(self.holds, default=0) + 1] = name, stack
        return True

    def release(self, who: int) -> None:
        _, stack = self.holds.pop(who)
        with self.watched():
            stack.close()

    def sound(self) -> list[str]:
        """The checkpoints in which there is nothing wrong."""
        return sorted(name for name, each in self.model.folders.items() if not each.broken and name not in self.linked)

    @property
    def linked(self) -> set[str]:
        """Names that are links, or that links lead to."""
        return {*self.model.links, *self.model.links.values()}
