"""What retention and removal of checkpoints mean, in plain Python that shares nothing with streamxf: where the two
disagree, one of them is wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

METADATA = "metadata"  # what no check needs to find, since everybody sees that it is not there
FORMATS = {"hourly": "%Y-%m-%d %H", "daily": "%Y-%m-%d", "weekly": "%G week %V", "monthly": "%Y-%m", "yearly": "%Y"}


class Saved(NamedTuple):
    """A complete checkpoint."""

    step: int
    time: float
    size: int
    metrics: dict[str, float] | None  # None if nobody knows them


def keep(saved: list[Saved], rules: dict[str, Any]) -> set[int]:
    """The steps of the checkpoints that stay."""
    newest_first = sorted(saved, reverse=True, key=lambda one: one.step)
    if not saved:
        return set()
    stay = {newest_first[0].step}
    if not any(rules[name] for name in rules.keys() - {"max_bytes", "mode"}):
        stay |= {one.step for one in saved}
    stay |= {one.step for one in first(rules.get("last", 0), newest_first)}
    stay |= {one.step for one in first(rules.get("best", 0), best_first(newest_first, rules))}
    if rules.get("best"):
        stay |= {one.step for one in saved if one.metrics is None}
    for rule, form in FORMATS.items():
        by_bucket: dict[str, Saved] = {}
        for one in newest_first:
            at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=one.time)
            by_bucket.setdefault(at.strftime(form), one)
        wanted = rules.get(rule, 0)
        stay |= {one.step for one in first(wanted, list(by_bucket.values()))}
        if wanted == -1 or wanted > len(by_bucket):
            stay.add(newest_first[-1].step)
    if "within" in rules:
        stay |= {one.step for one in saved if newest_first[0].time - one.time <= rules["within"]}
    stay |= {one.step for one in saved if is_for_ever(one, rules)}
    if "max_bytes" in rules:
        best = best_first(newest_first, rules)[: None if rules.get("best") == -1 else rules.get("best", 0)]
        others = [one for one in newest_first if one not in best]
        for one in others[::-1] + best[::-1]:
            too_much = sum(other.size for other in saved if other.step in stay) > rules["max_bytes"]
            if too_much and one is not newest_first[0] and not is_for_ever(one, rules):
                stay.discard(one.step)
    return stay


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
class Model:
    """A run's folder, as one would tell it to a person.

    - `saved`: the complete checkpoints, by their steps.
    - `broken`: which ways of checking find the damage of a step; none of them finds what is not damaged.
    - `saving`: steps whose save was begun and has not ended, as far as anybody knows.
    - `going`: what someone began to remove.
    - `readers`: for each reader the step, and when it began.
    - `links`: where links lead to.
    """

    saved: dict[int, Saved] = field(default_factory=dict)
    broken: dict[int, set[str]] = field(default_factory=dict)
    saving: set[int] = field(default_factory=set)
    going: dict[int, Saved] = field(default_factory=dict)
    readers: dict[int, tuple[int, float]] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)

    def newest_good(self, check: str) -> int | None:
        """The newest step that a check finds nothing wrong with."""
        return max((step for step in self.saved if check not in self.broken.get(step, ())), default=None)

    def read(self, now: float) -> set[int]:
        """The steps that someone reads. Nobody reads for a day: what looks so was killed, and is forgotten."""
        self.readers = {who: one for who, one in self.readers.items() if abs(now - one[1]) < 86400}
        return {step for step, _ in self.readers.values()}

    def finish(self, now: float) -> None:
        """What was to be removed goes, unless someone still reads it."""
        for step in self.read(now) & self.going.keys() if self.going else ():
            if METADATA not in self.broken.get(step, ()):
                self.saved[step] = self.going[step]
        self.going.clear()

    def to_go(
        self, rules: dict[str, Any], check: str, now: float, just_saved: int | None = None
    ) -> tuple[set[int], set[int]]:
        """What a `forget` would remove, and what it would not only because someone reads it."""
        spared = keep(list(self.saved.values()), rules) | self.saving | {*self.links.values(), just_saved}
        wanted = self.saved.keys() - spared
        going = wanted - self.read(now)
        good = self.newest_good(check)
        if not going or good is None:
            return set(), wanted - going
        return going - {good}, wanted - going - {good}

    def remove(self, steps: set[int]) -> None:
        for step in steps:
            del self.saved[step]
