"""Random histories of a run's folder, on a real disk and in the model: saves, failures, kills at any point of saves and
removals, readers, links, damage, a catalog that is lost, clocks that jump, rules that change, two processes at once.
"""

from __future__ import annotations

import copy
import errno
import functools
import operator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

import streamxf
from manager.damages import EVERY_CHECK, KINDS, contents, damage, data_file
from manager.model import METADATA, Saved
from manager.points import Killed
from manager.run_on_disk import RunOnDisk
from streamxf.checkpoint.access import Access
from streamxf.manager.choice import choose
from streamxf.manager.holds import held
from streamxf.manager.listing import list_checkpoints
from streamxf.manager.retention import Retention

DAY = 86400
STEPS = st.integers(1, 40)
LOSSES = st.sampled_from([None, float("nan"), 0.25, 0.5, 0.5, 1.0])
CHECKS = st.sampled_from(["sample", "sample", "whole", "none"])
POINTS = st.integers(0, 14)
SIZE = 2000
COUNT = st.sampled_from([1, 1, 2, 3, -1])
ONE_RULE = st.one_of(
    *(st.fixed_dictionaries({name: COUNT}) for name in ("last", "last", "hourly", "daily", "monthly")),
    st.fixed_dictionaries({"best": COUNT, "metric": st.just("loss"), "mode": st.sampled_from(["min", "max"])}),
    st.fixed_dictionaries({"every": st.integers(2, 20)}),
    st.fixed_dictionaries({"within": st.sampled_from([600.0, 3600.0, 1e6])}),
    st.fixed_dictionaries({"steps": st.lists(STEPS, max_size=2)}),
    st.fixed_dictionaries({"max_bytes": st.integers(1, 5 * SIZE)}),
)
RULES = st.lists(ONE_RULE, min_size=1, max_size=2).map(lambda rules: functools.reduce(operator.or_, rules))
MAYBE_RULES = st.just({}) | RULES  # for jobs, some of which keep everything


class Histories(RunOnDisk):
    """What happens to one run's folder."""

    # -- the job ---------------------------------------------------------------------------------------

    @initialize(rules=MAYBE_RULES, check=CHECKS)
    def begins(self, rules: dict[str, Any], check: str) -> None:
        self.start_job(rules, check)

    @rule(rules=MAYBE_RULES, check=CHECKS)
    def restart(self, rules: dict[str, Any], check: str) -> None:
        """The job ends, or was killed, and begins again with these rules."""
        self.start_job(rules, check)

    @precondition(lambda self: self.model.going or self.model.saving)
    @rule(step=STEPS, point=POINTS)
    def kill_at_the_first_save(self, step: int, point: int) -> None:
        """A job that finishes what another began to remove is killed, too."""
        if not self.is_odd(step):
            self.start_job(self.keeping, self.check)
            with self.points.at(point, self.points.kill):
                self.go(lambda job: job.begin(f"step-{step}", {}))
                self.end_job()
            self.learn(set())
            self.errors.said.clear()

    @rule(ahead=st.integers(0, 3), losses=st.lists(LOSSES, min_size=1, max_size=4))
    def save(self, ahead: int, losses: list[float | None]) -> None:
        """The next steps, or, with 0, the newest once more."""
        for loss in losses:
            self.save_step(max(self.model.saved, default=0) + ahead or 1, loss)

    @rule(step=STEPS, loss=LOSSES)
    def save_step(self, step: int, loss: float | None) -> None:
        self.publish(step, loss, 5)
        self.model.saving.discard(step)
        self.fresh.discard(step)
        self.model.finish(self.now)
        going, _ = self.model.to_go(self.keeping, self.check, self.now, step)
        self.go(lambda job: job.commit(f"step-{step}", {}))
        self.removed(going)

    @rule(step=STEPS, loss=LOSSES, end=st.integers(0, 6))
    def a_framework_saves(self, step: int, loss: float | None, end: int) -> None:
        """What a framework saves is complete once it says so, at 6; what it overwrites is not from the beginning on.
        If it is killed, what it wrote may go after a day.
        """
        if self.is_odd(step):
            return
        began = self.now
        self.begin(step, lambda job: job.announce(f"step-{step}"))
        self.announced.add(step)
        self.model.saved.pop(step, None)
        self.had_good = False
        self.now += 60
        self.write(step, min(end, 5))
        if end < 6:
            self.end_job()
            return
        metrics = {} if loss is None else {"loss": loss}
        self.announced.discard(step)
        self.model.saving.discard(step)
        self.model.saved[step] = Saved(step, began, self.size(step), metrics)
        self.model.finish(self.now)
        going, _ = self.model.to_go(self.keeping, self.check, self.now, step)
        self.go(lambda job: job.complete(f"step-{step}", metrics))
        self.removed(going)

    @rule(step=STEPS, end=st.integers(1, 3))
    def save_that_fails(self, step: int, end: int) -> None:
        if not self.is_odd(step):
            self.publish(step, 0.0, end)
            self.go(lambda job: job.give_up(f"step-{step}"))
            self.model.saving.discard(step)

    @rule(step=STEPS, loss=LOSSES, end=st.integers(0, 5))
    def kill_while_saving(self, step: int, loss: float | None, end: int) -> None:
        if not self.is_odd(step):
            self.publish(step, loss, end)
            self.end_job()

    @rule(step=STEPS, loss=LOSSES, point=POINTS)
    def kill_after_saving(self, step: int, loss: float | None, point: int) -> None:
        """While the save is entered in the catalog, or others are removed."""
        self.publish(step, loss, 5)
        may_go = self.may_go(self.keeping, self.check, step)
        if not may_go & self.stale:
            with self.points.at(point, self.points.kill):
                self.go(lambda job: job.commit(f"step-{step}", {}))
                self.end_job()
            self.learn(may_go)
            self.errors.said.clear()

    # -- the command line, and whatever else people do ---------------------------------------------------

    @rule(rules=RULES, check=CHECKS, dry_run=st.booleans())
    def forget(self, rules: dict[str, Any], check: str, dry_run: bool) -> None:
        if not dry_run:
            self.model.finish(self.now)
        going, in_use = self.model.to_go(rules, check, self.now)
        takes = sum(self.model.saved[step].size for step in going)
        stay = self.model.saved.keys() - going - in_use
        with self.watched():
            report = streamxf.forget(self.run, Retention(**rules), verify=check, dry_run=dry_run)
        failed = set() if dry_run else going & self.stale
        assert list(report.removed) == [f"step-{step}" for step in sorted(going - failed)]
        assert list(report.kept) == [f"step-{step}" for step in sorted(stay)]
        assert report.in_use.keys() == {f"step-{step}" for step in in_use}
        assert report.failed.keys() == {f"step-{step}" for step in failed}
        assert failed or report.bytes == takes
        if not dry_run:
            self.removed(going)

    @rule(rules=RULES, check=CHECKS, point=POINTS, killed=st.booleans())
    def forget_that_fails(self, rules: dict[str, Any], check: str, point: int, killed: bool) -> None:
        """It is killed, or the storage fails once, at any point."""

        def fail() -> None:
            raise OSError(errno.EIO, "the disk has failed")

        may_go = self.may_go(rules, check)
        if not may_go & self.stale:
            with self.points.at(point, self.points.kill if killed else fail), self.watched(), suppress(Killed, OSError):
                streamxf.forget(self.run, Retention(**rules), verify=check)
            self.learn(may_go)

    @rule(rules=RULES, others=RULES, check=CHECKS, point=st.integers(0, 40))
    def two_forget(self, rules: dict[str, Any], others: dict[str, Any], check: str, point: int) -> None:
        """Two processes, one of which runs while the other is at some point."""

        def other() -> None:
            streamxf.forget(self.run, Retention(**others), verify=check)

        may_go: set[int] = set()
        for first, second in ((rules, others), (others, rules)):
            model = copy.deepcopy(self.model)
            model.finish(self.now)
            for each in (first, second):
                going, _ = model.to_go(each, check, self.now)
                model.remove(going)
                may_go |= going
        if not may_go & self.stale:
            with self.points.at(point, other, unlocked=True), self.watched():
                streamxf.forget(self.run, Retention(**rules), verify=check)
            self.learn(may_go)
            self.forget(rules, check, False)

    @rule(rules=RULES, check=CHECKS, point=st.integers(0, 40), data=st.data())
    def forget_meets_a_reader(self, rules: dict[str, Any], check: str, point: int, data: st.DataObject) -> None:
        """Who wants to read a checkpoint that is about to be removed is refused, or it stays."""
        may_go = self.may_go(rules, check)
        if not may_go or may_go & self.stale:
            return
        wanted = data.draw(st.sampled_from(sorted(may_go)))
        with self.points.at(point, lambda: self.hold(wanted), unlocked=True), self.watched():
            streamxf.forget(self.run, Retention(**rules), verify=check)
        reads = wanted in self.model.read(self.now)
        self.learn(may_go)
        assert not reads or wanted in self.model.saved

    @precondition(lambda self: self.job is not None and self.tidy and not self.stale)
    @rule(rules=RULES, check=CHECKS, point=st.integers(0, 25), again=st.booleans(), data=st.data())
    def forget_meets_a_save(
        self, rules: dict[str, Any], check: str, point: int, again: bool, data: st.DataObject
    ) -> None:
        """What the job saves while a `forget` is at some point stays as it was saved, even if that removes the step."""
        may_go = self.may_go(rules, check)
        step = data.draw(st.sampled_from(sorted(may_go)) if again and may_go else STEPS)
        model = copy.deepcopy(self.model)
        model.finish(self.now)
        model.remove(may_go)
        for each in (self.model, model):  # before the removals of forget, and after them
            each = copy.deepcopy(each)
            each.saved[step] = Saved(step, self.now, SIZE, {})
            each.saving.discard(step)
            for keeping, way, just_saved in ((self.keeping, self.check, step), (rules, check, None)):
                may_go |= each.to_go(keeping, way, self.now, just_saved)[0]
        done = []

        def save() -> None:
            done.append(True)
            self.go(lambda job: job.begin(f"step-{step}", {}))
            self.write(step, 5)
            self.go(lambda job: job.commit(f"step-{step}", {}))

        began = self.now
        with self.points.at(point, save, unlocked=True), self.watched():
            streamxf.forget(self.run, Retention(**rules), verify=check)
        if done:
            self.model.saved[step] = Saved(step, began, self.size(step) if self.path(step).exists() else 0, {})
            self.model.going.pop(step, None)
        self.learn(may_go)

    @rule(data=st.data())
    def begin_to_read(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.model.saved | self.model.going)) if self.model.saved else STEPS)
        assert self.hold(step) == (step in self.model.saved and METADATA not in self.broken(step))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def end_reading(self, data: st.DataObject) -> None:
        self.release(data.draw(st.sampled_from(sorted(self.holds))))

    @rule(check=CHECKS)
    def resume(self, check: str) -> None:
        found = choose(self.storage, list_checkpoints(self.run), Access(), check).record
        assert (found and found.step) == self.model.newest_good(check)

    @precondition(lambda self: self.model.saved)
    @rule(name=st.sampled_from(["best", "keep-7"]), data=st.data())
    def link(self, name: str, data: st.DataObject) -> None:
        self.unlink(name)
        self.model.links[name] = data.draw(st.sampled_from(sorted(self.model.saved)))
        (self.run / name).symlink_to(f"step-{self.model.links[name]}")

    @rule(name=st.sampled_from(["best", "keep-7"]))
    def unlink(self, name: str) -> None:
        if self.model.links.pop(name, None) is not None:
            (self.run / name).unlink()

    @precondition(lambda self: self.sound())
    @rule(kind=st.sampled_from(KINDS), choice=st.data())
    def damage(self, kind: str, choice: st.DataObject) -> None:
        step = choice.draw(st.sampled_from(sorted(self.sound())))
        self.model.broken[step] = damage(
            kind, self.path(step) / ".metadata", self.path(step) / data_file(self.written[step])
        )
        known = step in self.notes("saved")
        if kind == "emptied" and known:
            self.stale.add(step)
        if kind == METADATA and not known:
            del self.model.saved[step]
        self.measure()
        self.had_good = False

    @rule()
    def lose_catalog(self) -> None:
        (self.run / ".streamxf" / "catalog.json").unlink(missing_ok=True)
        for step in {**self.model.saved, **self.model.going}:
            if (self.path(step) / ".metadata").exists():
                self.model.saved[step] = self.seen(step)
            else:
                self.model.saved.pop(step, None)
        for step in list(self.announced):
            self.take_back(step)
        self.model.going.clear()
        self.model.saving.clear()
        self.fresh.clear()
        self.stale.clear()

    @rule(seconds=st.sampled_from([-400 * DAY, -DAY, -3600, -60, 60, 3600, DAY, 40 * DAY, 400 * DAY]))
    def clock_jumps(self, seconds: int) -> None:
        self.now = max(self.now + seconds, 1e9)
        with self.watched():
            held(self.storage)
        self.model.read(self.now)

    @rule(check=CHECKS)
    def all_is_put_in_order(self, check: str) -> None:
        """After whatever kills: by the next save and the next calls, nothing is left but what is wanted."""
        for who in list(self.holds):
            self.release(who)
        self.start_job({}, check)
        self.save(1, [None])
        for _ in "twice":  # what is stale goes with the second call
            self.forget({"last": 1}, check, False)
        assert not self.notes("removing")
        good = self.model.newest_good(check)
        assert good is None or self.model.saved.keys() <= {max(self.model.saved), good, *self.model.links.values()}

    # -- what holds at any time --------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        with self.watched():
            listed = list_checkpoints(self.run)
        complete = {
            each.step: (each.time, each.bytes, repr(each.metrics)) for each in listed if each.state == "complete"
        }
        assert complete == {step: (each.time, each.size, repr(each.metrics)) for step, each in self.model.saved.items()}
        folders = {int(path.name.removeprefix("step-")) for path in self.run.glob("step-*")}
        assert {each.step for each in listed if each.state == "removing"} == self.model.going.keys() & folders
        rest = folders - self.model.saved.keys() - self.model.going.keys()
        unfinished = {step for step in rest if step in self.model.saving or any(self.path(step).glob("*.distcp"))}
        assert {each.step for each in listed if each.state == "unfinished"} == unfinished
        assert not self.errors.said

    @invariant()
    def what_stays_is_as_it_was_saved(self) -> None:
        """So is what is going, as long as its metadata is there, by which others would take it for a checkpoint."""
        going = {step for step in self.model.going if (self.path(step) / ".metadata").exists()}
        for step in (self.model.saved.keys() | going) - self.model.broken.keys():
            for name, data in contents(self.written[step]).items():
                assert (self.path(step) / name).read_bytes() == data

    @invariant()
    def the_last_good_one_stays(self) -> None:
        good = self.model.saved.keys() - self.model.broken.keys()
        flipped = any(found == EVERY_CHECK - {"none"} for found in self.model.broken.values())  # "none" is blind to it
        assert good or not self.had_good or flipped
        self.had_good = bool(good)


ALL = [pytest.param(100, marks=pytest.mark.exhaustive, id=f"part-{part}") for part in range(1, 101)]


@pytest.mark.parametrize("histories", [40, *ALL])
def test_histories(histories: int):
    run_state_machine_as_test(Histories, settings=settings(max_examples=histories, stateful_step_count=30))
