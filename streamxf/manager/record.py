"""`Record`: what is known of one checkpoint of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

Kind = Literal["own", "unclaimed", "foreign", "unfinished", "removing"]

_NUMBER = re.compile("[0-9]+")
_STEP = re.compile(r"[0-9]+(?=[^0-9]*\Z)")  # the last number
_NOT_TEXT = re.compile("[\ud800-\udfff]")
_REMEMBERED = 2**15  # names: a job looks at the same ones after each save
MAX_DIGITS = 15  # of a number in a name; what is longer is no step, and int() would take quadratic time
Line = tuple[int, ...]
"""For each earlier line, in their order, the first step from which on its checkpoints are no part of this one's
history. The run's first line is (), and the longest that is there was saved last.
"""


@dataclass(frozen=True)
class Record:
    """One checkpoint of a run's folder.

    - `name`: its folder, such as ``step-1000``.
    - `time`: when its save began, in seconds since 1970, by the clock of the machine that saved; of a checkpoint that
      no manager saved, when its metadata was written. None if that is unknown.
    - `bytes`: size of its files; None if unknown.
    - `metrics`: those given to the save, and later ones; None if unknown.
    - `kind`: ``"own"``: it names this run and this folder. ``"unclaimed"``: it names no run, because no manager saved
      it. ``"foreign"``: it names another run or folder, because it was copied or renamed; it is never resumed from
      automatically, and never a reason to remove anything. These three are complete. ``"unfinished"``: its save is
      under way or was killed. ``"removing"``: its removal was killed.
    - `save_id`: identifies the save, wherever the checkpoint is copied; None for other writers.
    - `run`: the id of the run that it names.
    - `verified`: whether it may count: with keys, signers or `Encrypt` in the chain, only authenticated ones do.
    - `copy_of`: the folder that it was saved to, if that had another name.
    - `rules`: the retention rules of the job that saved it, as recorded.
    - `link`: where it leads, if it is a link in the place of a folder.
    - `line`: of each earlier line of the run the first step that is no part of this one's history.
    - `lines`: of one of which it is by what was noted of its save, if it does not say its line itself; `given_up`: the
      line that has given it up, whatever it is.
    - `abandoned`: why it is no part of the line that was saved last, such as "training went back to step 400"; "" if it
      is. Such a checkpoint is never resumed from by itself, and no rule removes it.
    - `note`: more in words: why it is foreign or not verified, or the error in its metadata.
    - `damaged`: whether its metadata is; `unread`: whether it cannot be read for now, by the error in `note`.
    - `newer`: whether a version of streamxf saved it that is not known here; its kind is ``"foreign"`` then.
    - `other_notes`: whether notes there are unreadable, not authentic or of another save: other metrics are unknown.
    - `increment`, `files`: whether it is one, and the sizes of files that others may share: of an increment of those
      that have other names, else of all, unless they are very many.
    - `version`: the number of published weights, which are no checkpoint of a job; its kind is ``"foreign"``, unless
      their run is asked for by its id.
    - `needs`: the folders of checkpoints beside it, of whose files it has some there: where files cannot be linked.
    """

    name: str
    time: float | None = None
    bytes: int | None = None
    metrics: Mapping[str, float] | None = None
    kind: Kind = "unclaimed"
    save_id: str | None = None
    run: str | None = None
    verified: bool = True
    copy_of: str = ""
    rules: Mapping[str, Any] = field(default_factory=dict)
    link: str = ""
    line: tuple[int, ...] = ()
    lines: tuple[tuple[int, ...], ...] = ()
    given_up: tuple[int, ...] | None = None
    abandoned: str = ""
    note: str = ""
    damaged: bool = False
    unread: bool = False
    newer: bool = False
    other_notes: bool = False
    increment: bool = field(default=False, repr=False, compare=False)
    files: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    needs: tuple[str, ...] = ()
    version: int | None = None

    @property
    def complete(self) -> bool:
        """Whether its save was published, and its removal not begun."""
        return self.kind in ("own", "unclaimed", "foreign")

    @property
    def counts(self) -> bool:
        """Whether it may be resumed from, be ranked by rules, and be a reason to remove others."""
        return self.kind in ("own", "unclaimed") and self.verified

    @property
    def noted(self) -> bool:
        """Whether its line is known by what was noted of its save."""
        return len(self.lines) == 1

    @property
    def doubtful(self) -> bool:
        """Whether it is complete, and nobody knows by now of which line it is."""
        return self.complete and (self.damaged or self.newer or not self.verified)

    @property
    def state(self) -> tuple[object, ...]:
        """Which save it is, and what decides whether it stays."""
        metrics = repr(self.metrics)  # NaN is not equal to itself
        which = self.save_id or (self.time, self.bytes)
        return self.name, self.kind, which, self.verified, self.link, metrics, self.line, self.other_notes

    def knows(self, metric: str | None) -> bool:
        """Whether it is known which value this metric has, or that it has none."""
        return self.metrics is not None and (metric in self.metrics or not self.other_notes)

    @property
    def step(self) -> int:
        """The last number in the name."""
        return self.order[0][-1]

    @property
    def order(self) -> tuple[tuple[int, ...], str]:
        """What sorts records from the oldest to the newest: the numbers in the name, one after the other.

        Steps decide, and not clocks, which may jump, and differ between machines.
        """
        return order_of(self.name)

    @property
    def series(self) -> str:
        """The name with ``{}`` for the step. Checkpoints of one series are saves of one job, of which some are kept;
        what has another name, such as a model that was put beside them, or another number in it, such as that of an
        experiment, belongs to another.
        """
        return series_of(self.name)


class Taken:
    """The bytes that checkpoints take together: what increments share counts once, and not where another has it; what
    one of them needs counts until that is dropped, too.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.bytes, self._whole, self._linked = 0, Counter[str](), Counter[str]()
        self._needed, self._dropped = Counter[str](), dict[str, Record]()
        for record in records:
            self._count(record, 1)
            self._needed.update(record.needs)

    def drop(self, record: Record) -> None:
        """Do without one of them."""
        self._dropped[record.name] = record
        self._needed.subtract(record.needs)
        for name in (record.name, *record.needs):
            if not self._needed[name] and (gone := self._dropped.pop(name, None)) is not None:
                self._count(gone, -1)

    def _count(self, record: Record, by: int) -> None:
        self.bytes += by * ((record.bytes or 0) - sum(record.files.values()))
        counts = self._linked if record.increment else self._whole
        for name, size in record.files.items():
            before = self._whole[name] or min(self._linked[name], 1)
            counts[name] += by
            self.bytes += size * ((self._whole[name] or min(self._linked[name], 1)) - before)


def is_numbered(name: str) -> bool:
    """Whether a name can be that of a checkpoint of a run: text with numbers, none too long, and not hidden."""
    found = _NUMBER.findall(name)
    usual = not name.startswith(".") and _NOT_TEXT.search(name) is None
    return usual and bool(found) and max(map(len, found)) <= MAX_DIGITS


@lru_cache(_REMEMBERED)
def series_of(name: str) -> str:
    return _STEP.sub("{}", name)


def is_alike(name: str, other: str) -> bool:
    """Whether two names of checkpoints, or of series, differ by their numbers alone."""
    return _NUMBER.sub("{}", name) == _NUMBER.sub("{}", other)


def order_of(name: str) -> tuple[tuple[int, ...], str]:
    return numbers_in(name), name


@lru_cache(_REMEMBERED)
def numbers_in(name: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(name)))
