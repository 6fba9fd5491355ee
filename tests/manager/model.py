"""What a run, its rules and its removals mean, in plain Python that shares nothing with streamxf: where the two
disagree, one of them is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

DAY = 86400
FORMATS = {"hourly": "%Y-%m-%d %H", "daily": "%Y-%m-%d", "weekly": "%G week %V", "monthly": "%Y-%m", "yearly": "%Y"}


Line = tuple[int, ...]


class Saved(NamedTuple):
    """A checkpoint that counts."""

    step: int
    time: float | None  # None if nobody knows it
    size: int
    metrics: dict[str, float] | None  # likewise
    muddled: bool = False  # whether it may have others

    def may_have(self, metric: str) -> bool:
        return self.metrics is None or (self.muddled and metric not in self.metrics)


def keep(saved: list[Saved], rules: dict[str, Any]) -> set[int]:
    """The steps of the checkpoints that stay."""
    newest_first = sorted(saved, reverse=True, key=lambda one: one.step)
    if not saved:
        return set()
    newest = newest_first[0]
    stay = {newest.step}
    if not any(rules[name] for name in rules.keys() - {"max_bytes", "max_age", "mode"}):
        stay |= {one.step for one in saved}
    stay |= {one.step for one in first(rules.get("last", 0), newest_first)}
    stay |= {one.step for one in first(rules.get("best", 0), best_first(newest_first, rules))}
    if rules.get("best"):
        stay |= {one.step for one in saved if one.may_have(rules["metric"])}
    for rule, form in FORMATS.items():
        by_bucket: dict[str, Saved] = {}
        for one in newest_first:
            if one.time is not None:
                at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=one.time)
                by_bucket.setdefault(at.strftime(form), one)
            elif rule in rules:
                stay.add(one.step)
        wanted = rules.get(rule, 0)
        stay |= {one.step for one in first(wanted, list(by_bucket.values()))}
        if wanted == -1 or wanted > len(by_bucket):
            stay.add(newest_first[-1].step)
    stay |= {one.step for one in saved if is_for_ever(one, rules)}
    if "max_age" in rules:
        old = {one.step for one in newest_first if is_older(one, newest, rules["max_age"])}
        stay -= {one.step for one in saved if one.step in old and not is_for_ever(one, rules)}
    if "max_bytes" in rules:
        best = best_first(newest_first, rules)[: None if rules.get("best") == -1 else rules.get("best", 0)]
        others = [one for one in newest_first[::-1] if one not in best]
        if rules.get("best"):  # stable
            others.sort(key=lambda one: one.may_have(rules["metric"]))
        for one in others + best[::-1]:
            too_much = sum(other.size for other in saved if other.step in stay) > rules["max_bytes"]
            if too_much and one is not newest and not is_for_ever(one, rules):
                stay.discard(one.step)
    return stay


def believed(saved: list[Saved], now: float) -> list[Saved]:
    """Without times that cannot be right: a day in the future, or after that of a later step; none is in the future."""
    latest, made = now + DAY, []
    for one in sorted(saved, reverse=True, key=lambda one: one.step):
        right = one.time is not None and one.time <= latest
        made.append(one._replace(time=min(one.time, now) if right else None))
        latest = one.time if right else latest
    return made


def is_older(one: Saved, newest: Saved, seconds: float) -> bool:
    return one.time is not None and newest.time is not None and newest.time - one.time > seconds


def first(count: int, ordered: list[Saved]) -> list[Saved]:
    return ordered if count == -1 else ordered[:count]


def best_first(newest_first: list[Saved], rules: dict[str, Any]) -> list[Saved]:
    values = {one.step: (one.metrics or {}).get(rules.get("metric", ""), math.nan) for one in newest_first}
    sign = -1 if rules.get("mode") == "max" else 1
    measured = [one for one in newest_first if math.isfinite(values[one.step])]
    return sorted(measured, key=lambda one: (sign * values[one.step], -one.step))


def is_for_ever(one: Saved, rules: dict[str, Any]) -> bool:
    return one.step in rules.get("steps", ()) or ("every" in rules and one.step % rules["every"] == 0)


@dataclass
class Folder:
    """A complete checkpoint in a folder of the run, or behind a link there.

    - `told`: under which name it says that it was saved; "" if it does not say.
    - `ours`: whether it may be this run's: with keys, who saved it had them; and it names no other run.
    - `broken`: which ways of checking find its damage; none of them finds what is not damaged.
    - `unread`: whether its metadata cannot be read; `doubted`: whether it does not count since nobody vouches for it.
    - `line`: for each time that training had gone back before, where what was given up then begins.
    - `mixed`: whether, with keys, others lie among the files that a framework committed.
    - `muddled`: whether beside it lies a note that nobody can read or vouches for, or of another save. It may have been
      one that was put there later, so nobody knows which metrics it has besides.
    """

    told: str
    ours: bool
    time: float | None
    metrics: dict[str, float] | None
    size: int = 0
    broken: set[str] = field(default_factory=set)
    muddled: bool = False
    mixed: bool = False
    unread: bool = False
    doubted: bool = False
    line: Line = ()


@dataclass
class Model:
    """A run's folder, as told to a person: what is in it, by folders' names, and where links lead."""

    folders: dict[str, Folder] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    noted: dict[str, Any] = field(default_factory=dict)  # beside the checkpoints, by their names
    bare: Callable[[], set[str]] = set  # folders with data, of which nothing says any more what it is
    written: Callable[[str], float] = lambda name: 0.0  # when the data of a folder was; 0 if nobody knows

    @property
    def counted(self) -> dict[int, Folder]:
        """The checkpoints that may be resumed from, and which rules are applied to: those in their own places."""
        return {
            int(name.removeprefix("step-")): each
            for name, each in self.folders.items()
            if each.ours and each.told in ("", name) and name.removeprefix("step-").isdigit()
        }

    def last_line(self) -> Line:
        """The one on which training went back most often."""
        found = {step: self.line_of(step) for step in self.counted}
        found |= {step: self.lines(name)[0] for name, step in self.doubtful().items() if len(self.lines(name)) == 1}
        return max(((len(line), step, line) for step, line in found.items()), default=(0, 0, ()))[2]

    def line_of(self, step: int) -> Line:
        """The line of a checkpoint that counts: what was noted before its save, if it does not say it itself."""
        name = f"step-{step}"
        each = self.folders[name]
        lines = self.lines(name) if each.unread or each.doubted or not each.told else []
        return lines[0] if len(lines) == 1 else each.line

    def lines(self, name: str) -> list[Line]:
        """Of one of which what is there may be, by what is noted."""
        if name not in self.noted:
            return []
        known = list(self.noted[name].lines) or [()] * (name in self.folders)
        coming = self.noted[name].coming
        return known + [coming] * bool(known and coming is not None and coming not in known)

    def is_given_up(self, name: str, line: Line) -> bool:
        """Whether it was passed over, in a line that this one continues or gave up."""
        up = self.noted[name].given_up if name in self.noted else None
        each = self.folders.get(name)
        asked = each is None or each.unread or each.doubted or not each.told
        return asked and up is not None and len(line) >= len(up)

    def is_noted_as_lost(self, name: str, files: Collection[str]) -> bool:
        """Whether data without a line is what a save left: nobody has noted another, and none is under way."""
        if ".streamxf-saving" in files:
            return False
        return name not in self.noted or self.noted[name].given_up is not None

    def doubtful(self) -> dict[str, int]:
        """What may be a checkpoint, and nobody knows of which line, with its step."""
        found = {name for name, each in self.folders.items() if each.unread or each.doubted} | self.bare()
        steps = {name: name.removeprefix("step-") for name in found if name.startswith("step-")}
        return {name: int(step) for name, step in steps.items() if step.isdigit()}

    def in_line(self, line: Line | None = None) -> dict[int, Folder]:
        """Those which are history of a line, by default of the last."""
        line = self.last_line() if line is None else line
        bounds = dict(enumerate(line)) | {len(line): math.inf}
        found = {step: each for step, each in self.counted.items() if step < bounds.get(len(self.line_of(step)), 0)}
        return {step: each for step, each in found.items() if not self.is_given_up(f"step-{step}", line)}

    def may_be_later(self, name: str) -> bool:
        """Whether what is newest depends on which of its lines something doubtful is of."""
        found = {step: self.line_of(step) for step in self.counted}
        found |= {step: self.lines(each)[0] for each, step in self.doubtful().items() if len(self.lines(each)) == 1}
        lines = [(len(line), step, line) for step, line in found.items()]
        own = [(len(line), self.doubtful()[name], line) for line in self.lines(name)]
        last = {max([*lines, each], default=(0, 0, ()))[2] for each in own} | {self.last_line()}
        newest = {max((n for n, each in self.in_line(line).items() if not each.unread), default=None) for line in last}
        return len(newest) > 1

    def is_known_out(self, name: str, line: Line) -> bool:
        """Whether something doubtful is certainly no history of a line: given up, or noted as of another."""
        lines, step = self.lines(name), int(name.removeprefix("step-"))
        bounds = dict(enumerate(line)) | {len(line): math.inf}
        return self.is_given_up(name, line) or (len(lines) == 1 and step >= bounds.get(len(lines[0]), 0))

    def after(self, step: int, own: Line) -> tuple[Line, set[str]]:
        """The line of training that goes on from this step, which is of its `own`; what was passed over, and may be of
        any line.
        """
        last = self.last_line()
        bounds = dict(enumerate(last)) | {len(last): math.inf}
        lines = {name: self.lines(name) for name in self.doubtful()}
        left = {
            name
            for name, number in self.doubtful().items()
            if number != step and not self.is_known_out(name, last)
            if number > step or len(lines[name]) > 1 or self.written(name) > self.written(f"step-{step}")
        }
        unknown = {name for name in left if len(lines[name]) != 1}
        whole = {number for number, each in self.in_line(last).items() if not each.unread}
        if step < bounds.get(len(own), 0) and not left and step >= max(whole, default=0):
            return last, unknown
        most = max([len(last), *(len(line) for name in left for line in lines[name])])
        return own + (step + 1,) + (0,) * (most - len(own) + 8 * any(not lines[name] for name in left)), unknown

    def newest_good(self, check: str, line: Line | None = None) -> int | None:
        """The newest step that a check finds nothing wrong with."""
        return max(
            (step for step, each in self.in_line(line).items() if check not in each.broken and not each.mixed),
            default=None,
        )

    def to_go(
        self,
        rules: dict[str, Any],
        check: str,
        now: float,
        read: Collection[str],
        just_saved: int | None = None,
        line: Line | None = None,
        abandoned: bool = False,
    ) -> tuple[set[int], set[int]]:
        """What a `forget` would remove, and what it would not only because someone reads it; perhaps also what training
        has given up.
        """
        counted = {step: each for step, each in self.in_line(line).items() if not each.unread}
        saved = [Saved(step, each.time, each.size, each.metrics, each.muddled) for step, each in counted.items()]
        up = {step for step, each in self.counted.items() if not each.unread} - counted.keys() if abandoned else set()
        wanted = (counted.keys() - keep(believed(saved, now), rules)) | up
        wanted -= {step for step in wanted if f"step-{step}" in self.links.values()} | {just_saved}
        in_use = {step for step in wanted if f"step-{step}" in read}
        good = self.newest_good(check, line)
        return set() if good is None else wanted - in_use - {good}, in_use - {good} if wanted - in_use else in_use
