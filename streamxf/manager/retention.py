"""`Retention`: which checkpoints of a run stay."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal

from streamxf.errors import ParameterError
from streamxf.manager.record import Record, Taken

# In UTC, so that neither a machine's time zone nor daylight saving decides; weeks begin on Mondays.
_CALENDAR: dict[str, Callable[[datetime], Hashable]] = {
    "hourly": lambda at: (at.year, at.month, at.day, at.hour),
    "daily": lambda at: (at.year, at.month, at.day),
    "weekly": lambda at: at.isocalendar()[:2],
    "monthly": lambda at: (at.year, at.month),
    "yearly": lambda at: at.year,
}
_LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_NO_RULE = "no rule removes it"
_ALL = "all"  # recorded for -1
_AHEAD = 86_400.0  # seconds by which a clock may be ahead of this one's
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(rf"([0-9]+(?:\.[0-9]+)?) *({'|'.join(_UNITS)})", re.ASCII)


@dataclass(frozen=True)
class Retention:
    """Rules for which checkpoints stay: a checkpoint stays if any rule keeps it, and the newest always does.

    Without any rule all of them stay. Counts are from 1; -1 means all.

    Parameters
    ----------
    last : int, optional
        Keep the newest N, by step.
    every : int, optional
        Keep steps that this number divides, permanently.
    best : int, optional
        Keep the N with the best values of `metric`; ties go to the newer. NaN and infinite values are never among the
        best, and neither is a checkpoint without the metric. One whose metric is unknown stays, in case it is.
    metric : str, optional
        The name of a metric given to the save.
    mode : str
        Whether the best value is the smallest, ``"min"``, or the largest, ``"max"``.
    hourly, daily, weekly, monthly, yearly : int, optional
        Keep the newest of each of the last N hours, days and so on that have checkpoints, in UTC, as restic's
        ``--keep-hourly`` and others do. While there are fewer, the oldest checkpoint stays too, so that the history
        goes back as far as possible.
    steps : sequence of int
        Keep these steps, permanently.
    max_bytes : int, optional
        Limit on the size of all together. If the other rules keep more, the oldest go first; those among the best go
        last, the worst of them first, and before them those whose metric is unknown. The newest stays, and so do the
        permanent ones of `every` and `steps`. A checkpoint whose size is unknown counts as 0.
    max_age : float or str, optional
        Remove those saved longer than this before the newest, seconds or ``"90m"``, ``"12h"``, ``"7d"``, with the same
        exceptions. A checkpoint whose time is unknown, or contradicts those of later steps, stays under rules of time.
    extras : {"keep", "remove"}
        What happens to other regular files in the folder of a removed checkpoint, if only the manager saved there.

    Raises ParameterError if a rule is invalid.
    """

    last: int | None = None
    every: int | None = None
    best: int | None = None
    metric: str | None = None
    mode: Literal["min", "max"] = "min"
    hourly: int | None = None
    daily: int | None = None
    weekly: int | None = None
    monthly: int | None = None
    yearly: int | None = None
    steps: Sequence[int] = ()
    max_bytes: int | None = None
    max_age: float | str | None = None
    extras: Literal["keep", "remove"] = "keep"

    def __post_init__(self) -> None:
        for name in ("last", "best", *_CALENDAR):
            value = getattr(self, name)
            if value != -1 and not _is_whole(value, 1):
                raise _refused(name, value, "how many to keep, from 1, or -1 for all; without the rule leave it out")
        if not _is_whole(self.every, 1):
            raise _refused("every", self.every, "a number of steps, from 1")
        if not _is_whole(self.max_bytes, 1):
            raise _refused("max_bytes", self.max_bytes, "a number of bytes, from 1")
        object.__setattr__(self, "max_age", _seconds("max_age", self.max_age))
        is_list = isinstance(self.steps, Sequence) and not isinstance(self.steps, str | bytes)
        if not is_list or not all(each is not None and _is_whole(each, 0) for each in self.steps):
            raise _refused("steps", self.steps, "a list of steps, whole numbers from 0")
        if self.mode not in ("min", "max"):
            raise _refused("mode", self.mode, "'min' where small values are good, 'max' where large ones are")
        if self.extras not in ("keep", "remove"):
            raise _refused("extras", self.extras, "'keep' or 'remove'")
        if not isinstance(self.metric, str | None):
            raise _refused("metric", self.metric, "the name of a metric")
        if (self.best is None) != (not self.metric):
            raise ParameterError("best= and metric= go together, as in best=2, metric='loss'")
        object.__setattr__(self, "steps", tuple(self.steps))

    @classmethod
    def of(cls, keep: Retention | int | None) -> Retention:
        """The meaning of ``keep=``: a number N keeps the newest N."""
        if isinstance(keep, int) and not isinstance(keep, bool):
            return cls(last=keep)
        if keep is not None and not isinstance(keep, cls):
            raise ParameterError(f"keep={keep!r:.80}: it is a Retention, or how many of the newest to keep")
        return keep or cls()

    @property
    def keeps_all(self) -> bool:
        """Whether there is no rule, so that nothing is ever removed."""
        return self == Retention(mode=self.mode, extras=self.extras)

    def to_json(self) -> dict[str, Any]:
        """The rules as a checkpoint records them: without floats, which the format does not have."""
        found = {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }
        made = {name: repr(value) if isinstance(value, float) else value for name, value in found.items()}
        return {name: _ALL if value == -1 else [*value] if name == "steps" else value for name, value in made.items()}

    @classmethod
    def of_json(cls, rules: Mapping[str, Any]) -> Retention:
        """Raises ParameterError if these are no rules of this version."""
        try:
            known: dict[str, Any] = {name: -1 if value == _ALL else value for name, value in rules.items()}
            return cls(**known)
        except TypeError as error:
            raise ParameterError(f"the recorded rules cannot be used: {error}") from None

    def decide(self, records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
        """The reasons for which each complete checkpoint stays, from the oldest to the newest; none if it may go.

        Reads no clock and no storage: the answer depends on the records alone.
        """
        complete = sorted((each for each in records if each.complete), key=lambda each: each.order)
        reasons: dict[str, tuple[str, ...]] = {each.name: () for each in complete}
        for reason, record in self._reasons(complete[::-1]):
            reasons[record.name] += (reason,)
        limited = self.max_age is not None or self.max_bytes is not None
        if complete and (not reasons[complete[-1].name] or (limited and reasons[complete[-1].name] == (_NO_RULE,))):
            reasons[complete[-1].name] = ("newest",)
        if self.max_age is not None and (newest := complete[-1].time if complete else None) is not None:
            for record in self._droppable([each for each in complete[:-1] if reasons[each.name]], complete):
                if record.time is not None and record.time < newest - float(self.max_age):
                    reasons[record.name] = ()
        if self.max_bytes is not None:
            taken = Taken(complete)
            for record in (each for each in complete if not reasons[each.name]):
                taken.drop(record)
            for record in self._droppable([each for each in complete[:-1] if reasons[each.name]], complete):
                if taken.bytes <= self.max_bytes:
                    break
                reasons[record.name] = ()
                taken.drop(record)
        return reasons

    def _reasons(self, records: Sequence[Record]) -> Iterator[tuple[str, Record]]:
        """What each rule keeps, and the rule in words; the records are from the newest to the oldest."""
        if replace(self, max_bytes=None, max_age=None).keeps_all:
            yield from ((_NO_RULE, record) for record in records)
        yield from ((_counted("last", self.last), record) for record in records[: _end(self.last)])
        if self.every is not None:
            word = f"every {self.every:,} steps" if self.every > 1 else "every step"
            yield from ((word, record) for record in records if self._is_divided(record))
        yield from ((f"{_counted('best', self.best)} by {self.metric}", record) for record in self.ranked(records))
        if self.best is not None:  # it may be among the best
            yield from (("its metrics are unknown", record) for record in records if not record.knows(self.metric))
        for name, bucket in _CALENDAR.items():
            yield from _newest_of_each(name, bucket, getattr(self, name), records)
        if any(getattr(self, name) is not None for name in _CALENDAR):
            yield from (("its time is unknown", record) for record in records if record.time is None)
        yield from ((f"step {record.step:,}", record) for record in records if record.step in self.steps)

    def ranked(self, records: Sequence[Record]) -> Sequence[Record]:
        """Those with the best values, the best first; among equal values the order is that of the records."""
        sign = 1 if self.mode == "min" else -1
        values = [(sign * (each.metrics or {}).get(self.metric or "", math.nan), each) for each in records]
        ranked = sorted((pair for pair in values if math.isfinite(pair[0])), key=lambda pair: pair[0])
        return [record for _, record in ranked[: _end(self.best)]]

    def _droppable(self, staying: Sequence[Record], complete: Sequence[Record]) -> list[Record]:
        """Which of those that stay may go to save bytes, in the order in which they go."""
        best = {each.name: rank for rank, each in enumerate(self.ranked(complete[::-1]))}
        passing = [each for each in staying if not (each.step in self.steps or self._is_divided(each))]
        maybe = {each.name for each in passing if self.best is not None and not each.knows(self.metric)}
        return sorted(passing, key=lambda each: (each.name in best, each.name in maybe, -best.get(each.name, 0)))

    def _is_divided(self, record: Record) -> bool:
        return self.every is not None and record.step % self.every == 0


def _newest_of_each(
    word: str, bucket: Callable[[datetime], Hashable], count: int | None, records: Sequence[Record]
) -> Iterator[tuple[str, Record]]:
    """The newest record of each bucket, in at most `count` buckets; the oldest record, too, if there are fewer.

    All that was seen is remembered, not only the last bucket: where a clock was set back, a day's records are apart.
    """
    seen: set[Hashable] = set()
    for record in records:
        if count is None or len(seen) == count:
            return
        if record.time is None:
            continue
        at = datetime.fromtimestamp(min(max(0, record.time), _LATEST), UTC)
        if bucket(at) not in seen:
            seen.add(bucket(at))
            yield word, record
        elif record is records[-1]:
            yield f"oldest {word}", record


def with_plausible_times(records: Iterable[Record], now: float) -> list[Record]:
    """The same records, without the times that cannot be right: more than a day ahead of `now`, or later than that of a
    later step. What is less ahead counts as saved now, or what was saved since the clock was set back would seem old.
    """
    made: list[Record] = []
    earliest = now + _AHEAD
    for record in sorted(records, key=lambda each: each.order, reverse=True):
        doubtful = record.time is not None and record.time > earliest
        known = None if doubtful or record.time is None else min(record.time, now)
        made.append(record if known == record.time else replace(record, time=known))
        if record.complete and record.time is not None and not doubtful:
            earliest = min(earliest, record.time)
    return made[::-1]


def duration(text: str) -> float | None:
    """A time such as ``90``, ``90s``, ``30m``, ``2h``, ``7d`` or ``4w`` in seconds; None of anything else."""
    match = _DURATION.fullmatch(text.strip().lower())
    return None if match is None else float(match[1]) * _UNITS[match[2]]


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    found = duration(value) if isinstance(value, str) else value
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= sys.float_info.max:
        raise _refused(name, value, "a time, more than 0: seconds, or '90m', '12h', '7d'")
    return float(found)


def _end(count: int | None) -> int | None:
    """Where to cut a list, for a rule's count."""
    return 0 if count is None else None if count < 0 else count


def _counted(word: str, count: int | None) -> str:
    return f"{word} {count:,}" if count is not None and count > 0 else f"{word} (all)"


def _is_whole(value: Any, least: int) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least)


def _refused(name: str, value: object, expected: str) -> ParameterError:
    return ParameterError(f"{name}={value!r:.80}: it is {expected}")
