"""Random histories of a run's folder, on a real disk or in an object store, and in the model: saves, failures, kills at
any point of saves and removals, readers, links, damage, notes that are lost, clocks that jump, rules that change, two
processes at once, and an adversary between them.
"""

from __future__ import annotations

import copy
import errno
import functools
import operator
import os
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from streamxf.errors import KeyMissingError, NoCheckpointError
from streamxf.manager import holds
from streamxf.manager.choice import choose
from streamxf.manager.latest import latest_in
from streamxf.manager.listing import list_checkpoints
from tests.altered import flipped
from tests.manager.adversary import STRANGE, Adversary
from tests.manager.canned import checkpoint, data_of
from tests.manager.model import DAY, Folder
from tests.manager.points import Killed
from tests.manager.run_on_disk import EVERY_CHECK, SETTLED, WRITERS, Committed
from tests.manager.values import play

STEPS = st.integers(1, 40)
LOSSES = st.sampled_from([None, float("nan"), float("-inf"), 0.25, 0.5, 0.5, 1.0])
CHECKS = st.sampled_from(["sample", "sample", "whole", "none"])
POINTS = st.integers(0, 20)
SIZE = 3000
COUNT = st.sampled_from([1, 1, 2, 3, -1])
ONE_RULE = st.one_of(
    *(st.fixed_dictionaries({name: COUNT}) for name in ("last", "last", "hourly", "daily", "monthly")),
    st.fixed_dictionaries({"best": COUNT, "metric": st.just("loss"), "mode": st.sampled_from(["min", "max"])}),
    st.fixed_dictionaries({"every": st.integers(2, 20)}),
    st.fixed_dictionaries({"max_age": st.sampled_from([600.0, 3600.0, 1e6])}),
    st.fixed_dictionaries({"steps": st.lists(STEPS, max_size=2)}),
    st.fixed_dictionaries({"max_bytes": st.integers(1, 5 * SIZE)}),
)
RULES = st.lists(ONE_RULE, min_size=1, max_size=2).map(lambda rules: functools.reduce(operator.or_, rules))
MAYBE_RULES = st.just({}) | RULES  # for jobs, some of which keep everything
DAMAGES = st.sampled_from(["flip", "cut", "data", "garbled", "emptied", "metadata"])


def losses(loss: float | None) -> dict[str, float]:
    return {} if loss is None else {"loss": loss}


class Histories(Adversary):
    """What happens to one run's folder."""

    @initialize(rules=MAYBE_RULES, check=CHECKS, where=st.integers(0, 3), locks=st.booleans(), named=st.booleans())
    def begins(self, rules: dict[str, Any], check: str, where: int, locks: bool, named: bool) -> None:
        self.settle(where == 3, where == 2, locks, named)
        self.start_job(rules, check)

    # -- the job ---------------------------------------------------------------------------------------

    @rule(rules=MAYBE_RULES, check=CHECKS, killed=st.booleans())
    def restart(self, rules: dict[str, Any], check: str, killed: bool) -> None:
        """The job ends, or was killed, and begins again with these rules."""
        if killed:
            self.kill_job()
        self.start_job(rules, check)

    @precondition(lambda self: self.model.counted)
    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        """The job resumes from some step, or goes back to it, perhaps to what was given up before."""
        step = data.draw(st.sampled_from(sorted(self.model.counted)))
        job = self.running()
        with self.watched():
            records = job._run.read(series="step-{}").records
            (record,) = (each for each in records if each.name == f"step-{step}")
            job.go_on_from(record)
        self.line, self.loaded = None, (step, self.model.line_of(step))

    @rule(step=STEPS, point=POINTS)
    def kill_at_the_first_save(self, step: int, point: int) -> None:
        """A job that applies its rules, and finishes what others began to remove, is killed, too."""
        self.start_job(self.keeping, self.check)
        may_go, _ = self.to_go(self.keeping, self.check)
        with self.points.at(point, self.points.kill), suppress(Killed):
            self.go(lambda job: job.begin(f"step-{step}", {}))
        self.kill_job()
        self.no_longer_a_link(step)
        self.uncommitted(f"step-{step}")
        self.learn(may_go)
        self.errors.said.clear()

    @rule(ahead=st.integers(0, 3), values=st.lists(LOSSES, min_size=1, max_size=4))
    def save(self, ahead: int, values: list[float | None]) -> None:
        """The next steps, or, with 0, the newest once more."""
        for loss in values:
            newest = max((step for step in self.model.counted if step <= 40), default=0)
            self.save_step(min(newest + ahead, 40) or 1, loss, None)

    @rule(step=STEPS, loss=LOSSES, late=LOSSES)
    def save_step(self, step: int, loss: float | None, late: float | None) -> None:
        """Perhaps with a metric that comes late."""
        save_id = self.publish(step, losses(loss), 5)
        self.model.folders[f"step-{step}"].metrics = losses(loss) | losses(late)
        self.removed(self.saved(step, lambda job: job.commit(f"step-{step}", save_id, losses(late))))

    @rule(step=STEPS, loss=LOSSES, end=st.integers(0, 6), below=st.sampled_from(["", "model/"]))
    def a_framework_saves(self, step: int, loss: float | None, end: int, below: str) -> None:
        """What a framework saves is complete once it says so, at 6; what it overwrites is not from the beginning on."""
        name = f"step-{step}"
        if self.is_blocked(f"{name}/.streamxf-saving") or self.is_blocked(f"{name}/.streamxf-commit"):
            return
        is_another = name in self.model.folders
        facts = self.begin(step, {}, framework=True)
        old = {path: what for path, what in self.place.below(name).items() if isinstance(what, bytes)}
        old = {path: what for path, what in old.items() if WRITERS.fullmatch(path)}
        self.now += 60
        self.saves += 1
        made, _ = checkpoint(self.keys, self.saves, None)
        self.write(name, made, min(end, 4), below)
        if end < 6:
            self.kill_job()
            return
        written = {f"{below}{path}": data for path, data in made.items()}
        self.own(name, written, Folder(name, True, facts.time, losses(loss), line=facts.line))
        # what is left of a failed save goes with it, and another run's files stay
        everything = written if is_another else {**old, **written}
        self.committed[name] = Committed(sum(map(len, everything.values())), frozenset(everything))
        self.removed(self.saved(step, lambda job: job.complete(name, losses(loss), {})))

    @rule(step=STEPS, end=st.integers(1, 3))
    def save_that_fails(self, step: int, end: int) -> None:
        self.publish(step, {}, end)
        self.go(lambda job: job.give_up(f"step-{step}"))

    @rule(step=STEPS, loss=LOSSES, end=st.integers(0, 5))
    def kill_while_saving(self, step: int, loss: float | None, end: int) -> None:
        self.publish(step, losses(loss), end)
        self.kill_job()

    @rule(step=STEPS, loss=LOSSES, point=POINTS)
    def kill_after_saving(self, step: int, loss: float | None, point: int) -> None:
        """While the save is noted, or others are removed."""
        save_id = self.publish(step, losses(loss), 5)
        with self.points.at(point, self.points.kill):
            may_go = self.saved(step, lambda job: job.commit(f"step-{step}", save_id, {}))
        self.kill_job()
        self.learn(may_go)
        self.errors.said.clear()

    @rule(step=STEPS)
    def somebody_saves_by_hand(self, step: int) -> None:
        """Without a manager, where nothing is."""
        name = f"step-{step}"
        if self.is_free(name):
            self.saves += 1
            made, _ = checkpoint(self.keys, self.saves, None)
            self.write(name, made, 5)
            self.own(name, made, Folder("", True, self.time_of(name), None))

    @precondition(lambda self: self.model.folders)
    @rule(data=st.data())
    def somebody_puts_a_file(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.model.folders))) + "/notes.txt"
        if path.partition("/")[0] not in self.linked and self.is_free(path):
            self.place.put(path, b"not of the checkpoint")
            self.others[path] = b"not of the checkpoint"

    # -- the command line, and whatever else people do ---------------------------------------------------

    @rule(rules=RULES, check=CHECKS, dry_run=st.booleans())
    def forget_once(self, rules: dict[str, Any], check: str, dry_run: bool) -> None:
        going, in_use = self.to_go(rules, check)
        takes = sum(self.model.counted[step].size for step in going)
        stay = self.model.counted.keys() - going - in_use
        with self.watched():
            report = self.forget(rules, check, dry_run)
        assert not report.failed
        assert list(report.removed) == [f"step-{step}" for step in sorted(going)]
        assert {f"step-{step}" for step in stay} <= report.kept.keys()
        assert report.in_use.keys() == {f"step-{step}" for step in in_use}
        assert report.bytes == takes
        if not dry_run:
            self.removed(going)

    @rule(rules=RULES, check=CHECKS, point=POINTS, killed=st.booleans())
    def forget_that_fails(self, rules: dict[str, Any], check: str, point: int, killed: bool) -> None:
        """It is killed, or the storage fails once, at any point."""

        def fail() -> None:
            raise OSError(errno.EIO, "the disk has failed")

        may_go, _ = self.to_go(rules, check)
        with self.points.at(point, self.points.kill if killed else fail), self.watched(), suppress(Killed, OSError):
            self.forget(rules, check)
        self.learn(may_go)

    @rule(rules=RULES, others=RULES, check=CHECKS, point=st.integers(0, 60))
    def two_forget(self, rules: dict[str, Any], others: dict[str, Any], check: str, point: int) -> None:
        """Two processes, one of which runs while the other is at some point."""
        may_go: set[int] = set()
        model = self.model
        for one, two in ((rules, others), (others, rules)):
            self.model = copy.deepcopy(model)
            for each in (one, two):
                going, _ = self.to_go(each, check)
                self.model.folders = {
                    name: folder for name, folder in self.model.folders.items() if name not in named(going)
                }
                may_go |= going
        self.model = model
        with self.points.at(point, lambda: self.forget(others, check), unlocked=True), self.watched():
            self.forget(rules, check)
        self.learn(may_go)
        self.forget_once(rules, check, False)

    @rule(rules=RULES, check=CHECKS, point=st.integers(0, 60), data=st.data())
    def forget_meets_a_reader(self, rules: dict[str, Any], check: str, point: int, data: st.DataObject) -> None:
        """Who wants to read a checkpoint that is about to be removed is refused, or it stays."""
        may_go, _ = self.to_go(rules, check)
        if not may_go or self.is_blocked(".streamxf/holds", False):
            return
        wanted = f"step-{data.draw(st.sampled_from(sorted(may_go)))}"
        reads: list[bool] = []
        reader = threading.Thread(target=lambda: reads.append(self.hold(wanted)))

        def begins() -> None:
            reader.start()
            reader.join(0.03)

        patient = patch.object(holds, "_PATIENCE", 5.0)  # on a busy machine a removal takes more than a second
        with self.points.at(point, begins), self.watched(), patient:
            self.forget(rules, check)
            if reader.ident is not None:
                reader.join()
        self.learn(may_go)
        assert reads != [True] or wanted in self.model.folders

    @precondition(lambda self: self.job is not None and self.tidy)
    @rule(rules=RULES, check=CHECKS, point=st.integers(0, 60), again=st.booleans(), data=st.data())
    def forget_meets_a_save(
        self, rules: dict[str, Any], check: str, point: int, again: bool, data: st.DataObject
    ) -> None:
        """What the job saves while a `forget` is at some point stays as it was saved, even if that removes the step."""
        may_go, _ = self.to_go(rules, check)
        step = data.draw(st.sampled_from(sorted(may_go)) if again and may_go else STEPS)
        name, done = f"step-{step}", []
        if step > 40 or name in self.linked or name in self.committed:
            return
        before = self.model, self.files, copy.deepcopy(self.committed)

        def save() -> None:
            save_id = self.publish(step, {}, 5)
            done.append(self.model.folders[name])
            self.go(lambda job: job.commit(name, save_id, {}))

        with self.points.at(point, save, unlocked=True), self.watched():
            self.forget(rules, check)
        if done:
            everything = self.model.counted.keys() - {step}  # either may remove what its rules do not keep
            del before
            self.learn(everything)
        else:
            self.learn(may_go)

    @precondition(lambda self: self.model.folders)
    @rule(data=st.data())
    def begin_to_read(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.folders)))
        if self.is_blocked(".streamxf/holds", False) or not (self.place.local or name.removeprefix("step-").isdigit()):
            return
        with self.watched():
            assert self.hold(name)
        assert name in self.read_now()

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def end_reading(self, data: st.DataObject) -> None:
        self.release(data.draw(st.sampled_from(sorted(self.holds))))

    @rule(check=CHECKS)
    def resume(self, check: str) -> None:
        """By the newest good one; who cannot read it is told so."""
        with self.watched():
            complete = [name for name in self.model.folders if name.removeprefix("step-").isdigit()]
            bare = self.bare() if not complete else set()
            try:
                found = latest_in(self.seen(), check).record
                assert (found and found.step) == self.model.newest_good(check)
                assert len(bare) < 2
            except NoCheckpointError:
                assert len(bare) > 1
            counted = self.model.counted
            held = ExitStack()
            try:
                record = choose(self.seen(), "step-{}", check, held, {}).record
                assert (record and record.step) == max(self.model.in_line(), default=None)
                assert counted or not complete
            except KeyMissingError:
                assert complete
                assert not self.keying.reads
                assert not bare
            except NoCheckpointError:
                assert complete or bare
                assert not counted
            finally:
                held.close()

    @precondition(lambda self: self.place.local and self.sound())
    @rule(name=st.sampled_from(["best", "current"]), data=st.data())
    def link(self, name: str, data: st.DataObject) -> None:
        self.unlink(name)
        to = data.draw(st.sampled_from(sorted(self.sound())))
        os.symlink(to, self.place.path(name))
        self.model.links[name] = to

    @rule(name=st.sampled_from(["best", "current"]))
    def unlink(self, name: str) -> None:
        if self.model.links.pop(name, None) is not None:
            self.place.remove(name)

    @precondition(lambda self: self.sound())
    @rule(kind=DAMAGES, data=st.data())
    def damage(self, kind: str, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.sound()))
        if f"{name}/.streamxf-saving" in self.litter:  # without keys, who damages what lies beside it may do anything
            return
        if name in STRANGE and kind not in ("flip", "cut", "data"):  # it would count as what it is named, such as 0003
            return
        folder, files = self.model.folders[name], dict(self.files[name])
        path, own = data_of(files), ".streamxf-commit" if name in self.committed else ".metadata"
        if kind in ("flip", "cut", "data"):
            files[path] = damaged(files[path]) if kind == "flip" else files[path][: len(files[path]) // 2]
            self.place.put(f"{name}/{path}", files[path])
            if kind == "data":
                self.place.remove(f"{name}/{path}")
                del files[path]
            folder.broken = EVERY_CHECK - {"none"} if kind == "flip" else set(EVERY_CHECK)
        elif kind == "metadata":
            self.place.remove(f"{name}/{own}")
            self.dropped(name)
            if ".metadata" in files and own != ".metadata":
                self.own(name, files, Folder("", True, self.time_of(name), None))
            return
        else:
            files[own] = damaged(self.place.below(name)[own]) if kind == "garbled" else b""
            self.place.put(f"{name}/{own}", files[own], self.now)
            if name in self.committed and ".metadata" in files and self.keying.strict:
                # which keys verify: beside that, a record that they do not counts for nothing
                del files[own]
                self.litter.add(f"{name}/{own}")
                self.own(name, files, Folder("", True, None, None))
                self.model.folders[name].time = self.time_of(name)
                return
            if name in self.committed:
                self.committed[name] = self.committed[name]._replace(size=0)
                self.litter |= {f"{name}/{each}" for each in files if "/" in each}  # nothing else says whose they are
            told_none = Folder("", not self.keying.strict, self.time_of(name), None, broken=set(EVERY_CHECK))
            told_none.unread = True
            self.model.folders[name] = told_none
        self.files[name] = files

    @rule(which=st.integers(0, 9), all_of_it=st.booleans())  # how many there are depends on how fast files settle, too
    def notes_are_lost(self, which: int, all_of_it: bool) -> None:
        found = sorted(self.place.below(".streamxf"))
        if all_of_it:
            self.place.lose(".streamxf")
        elif found:
            self.place.lose(f".streamxf/{found[which % len(found)]}")
        self.learn_line()

    @rule(seconds=st.sampled_from([-400 * DAY, -DAY, -3600, -60, 60, 3600, DAY, 40 * DAY, 400 * DAY]))
    def clock_jumps(self, seconds: int) -> None:
        self.now = max(self.now + seconds, 10**9)

    @rule(check=CHECKS)
    def all_is_put_in_order(self, check: str) -> None:
        """After whatever kills: by the next save and the next call, nothing is left but what is wanted."""
        for who in list(self.holds):
            self.release(who)
        self.now += 2 * DAY  # until when a killed process is waited for, where no locks tell
        self.start_job({}, check)
        self.save(1, [None])
        self.forget_once({"last": 1}, check, False)
        good, line = self.model.newest_good(check), self.model.in_line()
        counted = {step: each for step, each in line.items() if not each.unread}
        linked = {step for step in counted if f"step-{step}" in self.model.links.values()}
        held = {step for step in counted if f"step-{step}" in self.read_now()}
        assert counted.keys() <= {max(counted), good} | linked | held

    # -- what holds at any time --------------------------------------------------------------------------

    @invariant()
    def folders_settle(self) -> None:
        if self.remembers:
            time.sleep(1.2 * SETTLED / 1e9)

    @invariant()
    def what_counts_is_listed(self) -> None:
        with self.watched():
            run = self.seen()
            listed = {each.name: each for each in run.read().records}
            shown = {each.name: each.complete for each in list_checkpoints(self.place.run)}
        self.measure()
        counted = {
            name: (each.time, each.bytes or 0, repr(each.metrics))
            for name, each in listed.items()
            if each.counts and each.series == "step-{}"
        }
        assert counted == {
            f"step-{step}": (each.time, each.size, repr(each.metrics)) for step, each in self.model.counted.items()
        }
        given_up = {f"step-{step}" for step in self.model.counted.keys() - self.model.in_line().keys()}
        assert {name for name in counted if listed[name].abandoned} == given_up
        assert all(shown[name] or not self.model.folders[name].told for name in counted)
        rest = {name for name in self.model.folders if self.place.local or name.removeprefix("step-").isdigit()}
        assert all(listed[name].note or listed[name].kind == "foreign" for name in rest - counted.keys())

    @invariant()
    def nothing_is_touched(self) -> None:
        """What stays is as it was saved or planted, and so is what lies beside it and outside."""
        for name, files in self.files.items():
            found = self.place.below(name)
            assert {path: found.get(path) for path in files} == files
        everything = self.place.below()
        assert {path: everything.get(path) for path in self.others} == self.others
        assert self.place.outside() == self.outside

    @invariant()
    def no_error_is_logged(self) -> None:
        assert not self.errors.said


def named(steps: set[int]) -> set[str]:
    return {f"step-{step}" for step in steps}


def damaged(data: bytes | str) -> bytes:
    assert isinstance(data, bytes)
    middle = len(data) - 300 if len(data) > 900 else len(data) // 2  # in the index, and not in torch's pickle
    return flipped(data, middle)


def rarely(count: int) -> list[Any]:
    return [pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, count + 1)]


@pytest.mark.parametrize("hundred", [0, *rarely(100)])
def test_histories_without_a_disk(hundred: int):
    for seed in range(100 * hundred, 100 * (hundred + 1)) if hundred else range(10**6, 10**6 + 1000):
        play(seed)


@pytest.mark.parametrize("keys", ["none", "keys", "signed"])
@pytest.mark.parametrize("part", [0, *rarely(24)])
def test_histories(part: int, keys: str):
    """What the decisions are carried out by does so."""
    kind = type("Histories", (Histories,), {"keys": keys})
    often = settings(max_examples=12 if part else 7, derandomize=not part, stateful_step_count=30)
    run_state_machine_as_test(kind, settings=often)


@pytest.mark.parametrize("point", range(10))
def test_a_killed_save_over_what_was_never_committed_does_not_complete_it(point: int):
    history = type("History", (Histories,), {"keys": "none"})()
    try:
        history.begins(rules={"last": 1}, named=False, locks=False, check="sample", where=0)
        history.a_framework_saves(below="", end=5, loss=None, step=39)
        history.kill_at_the_first_save(point=point, step=39)
        history.what_counts_is_listed()
    finally:
        history.teardown()


@pytest.mark.parametrize("point", range(15))
def test_what_a_framework_wrote_stays_that_while_its_removal_fails(point: int):
    history = type("History", (Histories,), {"keys": "keys"})()
    try:
        history.begins(rules={}, named=False, locks=True, check="none", where=1)
        history.a_framework_saves(below="", end=6, loss=0.5, step=4)
        history.save_step(step=38, loss=0.25, late=None)
        history.forget_that_fails(check="none", killed=False, point=point, rules={"last": 1})
        history.what_counts_is_listed()
    finally:
        history.teardown()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_is_not_in_the_way_of_a_commit_record(kind: str):
    history = type("History", (Histories,), {"keys": "keys"})()
    try:
        history.begins(rules={}, named=False, locks=True, check="none", where=1)
        history.save_step(step=37, loss=0.25, late=None)
        history.put_litter("step-37/.streamxf-commit", kind, b"")
        history.a_framework_saves(below="model/", end=6, loss=0.5, step=37)
        history.what_counts_is_listed()
        history.nothing_is_touched()
    finally:
        history.teardown()
