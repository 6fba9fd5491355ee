"""`RunState`: a run as a value. What its folder says is read once; what follows from that is decided here, by functions
that look at no storage, no clock and no environment.

Training that goes back to an earlier checkpoint gives up those after it, and begins a new line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from streamxf.errors import UnsupportedError, escaped
from streamxf.manager.record import Line, Record, order_of, series_of
from streamxf.manager.retention import Retention, with_plausible_times
from streamxf.manager.saves import SaveNote
from streamxf.places import GLOBAL

ABANDONED, FOREIGN = "abandoned: ", "foreign: "
_BARE = f"it has data, and neither {GLOBAL} nor a commit record; perhaps a copy left out hidden files"
_NOT_KNOWN = "its metadata cannot be read, so that its line is not known"
_UNKNOWN = 8  # lines, of which what nobody can read may be one
_MOST = 1000  # lines
_LATER = "this place may store later what was saved since"
_LONGEST_DELAY = 600.0  # seconds: rclone waits 5, and sends 100 GB within this time
_OLDER = 2
_NEWEST = "the newest that verifies"
_UNVERIFIED = "no checkpoint of this run verifies, so none is removed"

# when the data of a checkpoint was last written to, by its name: 0 if it has none, infinity if nobody knows
When = Callable[[str], float]


class Doubt(NamedTuple):
    """What speaks against going on from a checkpoint: which other one, why, and whether that `stops` everything."""

    name: str
    text: str
    stops: bool = False


@dataclass(frozen=True)
class RunState:
    """What lists, metadata, commit records and notes said of a run, at one moment.

    - `records`: the checkpoints, complete or not, the oldest first; `names`: of all folders that may be some.
    - `lost`: what lost its metadata, by what is noted of it or by its data. `bare`: all folders with data of which
      nothing there says what it is; `empty`: those with nothing in them.
    - `linked`: those to which links in the run's folder lead, such as ``best -> step-100``, each with a link.
    - `unread`: those that could not be read for now, by no fault of theirs, each with the error.
    - `unread_notes`: why notes of saves could not be read, by their names, or under "" why none could.
    """

    records: Sequence[Record] = ()
    names: Collection[str] = ()
    lost: Sequence[Record] = ()
    bare: Sequence[str] = ()
    empty: Sequence[str] = ()
    linked: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, Exception] = field(default_factory=dict)
    unread_notes: Mapping[str, Exception] = field(default_factory=dict)

    @classmethod
    def read_from(
        cls,
        found: Iterable[Record],
        data: Mapping[str, str],
        noted: Callable[[str], SaveNote | None],
        run_of: Callable[[str], str | None],
    ) -> RunState:
        """What follows from the records of folders, as each says itself, from the `data` in those without a checkpoint
        (``"save"`` if a save has left it, ``""`` for none), and from the notes, in the run of each series.
        """
        bare = sorted(name for name, kind in data.items() if kind)
        records = [seen_from(each, run_of(each.series), noted) for each in found]
        lost = [Record(name, kind="unfinished", note=_BARE) for name in bare]
        lost = [_with_note(each, noted(each.name), run_of(each.series)) for each in lost]
        # of what no save has left, nor is noted of a published one, there is nothing to say
        left = {name for name in bare if data[name] == "save" and noted(name) is None}
        lost = [each for each in lost if each.lines or each.given_up is not None or each.name in left]
        parts: dict[str, list[Record]] = {}
        for each in (*records, *lost):
            parts.setdefault(each.series, []).append(each)
        lines = {series: last_line(part) for series, part in parts.items()}
        records, lost = (sorted(part, key=lambda record: record.order) for part in (records, lost))
        records = [replace(each, abandoned=_reason(each, lines[each.series])) for each in records]
        lost = [replace(each, abandoned=_reason(each, lines[each.series])) for each in lost]
        return cls(records, (), lost, bare, sorted(data.keys() - bare))

    def of(self, series: str) -> list[Record]:
        """The checkpoints of a series."""
        return [each for each in self.records if each.series == series]

    def doubted(self, series: str) -> list[Record]:
        """What may be a checkpoint of a series, and does not say of which line: it cannot be read, or its metadata is
        gone, with its data there.
        """
        return [*(each for each in self.of(series) if each.doubtful), *self.lost_of(series)]

    def lost_of(self, series: str) -> list[Record]:
        """Those of a series that lost their metadata."""
        return [each for each in self.lost if each.series == series]

    # -- lines -----------------------------------------------------------------------------------------

    def last_line(self, series: str) -> Line:
        """The line of a series that was saved last, by what counts, and what is noted of others. Raises why notes
        cannot be read, if they may say of which line something doubted is.
        """
        for each in self.doubted(series) if self.unread_notes else ():
            if not each.noted and (error := self.unread_notes.get(each.name, self.unread_notes.get(""))) is not None:
                raise error
        return last_line([*self.of(series), *self.lost_of(series)])

    def newest(self, series: str) -> Record | None:
        """The newest checkpoint that can be read in the line that was saved last."""
        good = [each for each in self.of(series) if each.counts and not (each.damaged or each.abandoned)]
        return max(good, default=None, key=lambda each: each.order)

    def line_after(self, series: str, loaded: Record, written: When) -> tuple[Line, list[str]]:
        """The line of a job that has loaded one of these: the last, if that is its newest checkpoint, or a new one; and
        what was passed over, of which nobody knows the line. That must not come back when it can be read again.
        """
        last = self.last_line(series)
        others = [each for each in self.doubted(series) if each.name != loaded.name]
        left = [each for each in others if _reason(each, last) in ("", _NOT_KNOWN)]
        when = written(loaded.name) if left else 0.0  # what may be what training would have gone on from is passed over
        left = [each for each in left if len(each.lines) > 1 or each.order > loaded.order or written(each.name) > when]
        unknown = [each.name for each in left if not each.noted]
        known = [each for each in self.of(series) if each.counts and not each.damaged and not _reason(each, last)]
        passed = bool(left) or any(each.order > loaded.order for each in known if each.name != loaded.name)
        if loaded.counts and not passed and not _reason(loaded, last):
            return last, unknown
        if len(last) >= _MOST:
            raise UnsupportedError(
                f"training has gone back {_MOST:,} times in this run: save to another folder from now on"
            )
        number = max(len(last), *(len(line) for each in left for line in each.lines), 0)
        number += 0 if all(each.lines for each in left) else _UNKNOWN
        if not loaded.counts:  # of another run: what is here is no part of its history
            return (0,) * (number + 1) if known or last or left else (), unknown
        return (*loaded.line, loaded.step + 1, *(0,) * (number - len(loaded.line))), unknown

    # -- what to resume from -----------------------------------------------------------------------------

    def obstacle(
        self, record: Record, *, foreign: bool = False, abandoned: bool = False, ranked: bool = False
    ) -> str | Exception | None:
        """Why a checkpoint is passed over, or the error with which the search for one ends: it cannot be read for now,
        unless those to choose from are `ranked`, when nobody knows which it would be. None if nothing is known.
        """
        if record.abandoned and not abandoned:
            return f"{ABANDONED}{record.abandoned}"
        if not ranked and record.name in self.unread:
            return self.unread[record.name]
        if record.newer:
            return UnsupportedError(record.note)
        if not record.verified:
            return f"not verified: {record.note}"
        return f"{FOREIGN}{record.note}" if record.kind == "foreign" and not foreign else None

    def doubts(
        self, chosen: Record, written: When, passed: Collection[str], known: Collection[str] = ()
    ) -> Iterator[Doubt]:
        """What may have been saved later than the chosen one, and says nothing of itself; what the user has `passed`
        over decides nothing, and what is `known` is not said again. All stops where that may be the last of another
        line, so that nobody can tell from where training went on: if it was written later and has a lower step, or an
        abandoned checkpoint lies between the two. Raises as `last_line`.
        """
        for name in self.empty:
            if series_of(name) == chosen.series and order_of(name) > chosen.order and name not in passed:
                text = f"{chosen.name} is chosen, and {name} is empty: a save was killed there, or it is not mounted"
                yield Doubt(name, text)
        self.last_line(chosen.series)
        given_up = [each for each in self.of(chosen.series) if each.counts and not each.damaged and each.abandoned]
        newest = self.newest(chosen.series)
        for each in self.doubted(chosen.series):
            if each.abandoned not in ("", _NOT_KNOWN):
                continue
            ambiguous = any(self._newest_if(each, line) != newest for line in each.lines)
            # what nobody vouches for decides nothing
            decided = each.complete and not (each.damaged or each.unread or each.newer)
            if decided or each.name == chosen.name or each.name in passed:
                if ambiguous:
                    text = f"training may have gone back to before it when a save over {each.name} was killed"
                    yield Doubt(each.name, f"{chosen.name} is chosen, though {text}")
                continue
            others = [chosen] if each.order < chosen.order else []
            others += [one for one in given_up if chosen.order < one.order < each.order]
            # nobody knows when one that cannot be listed was; had training gone back before it, that would be noted
            late = bool(others) and not each.lines and (each.order > chosen.order or written(each.name) < math.inf)
            late = late and written(each.name) > max(written(chosen.name), written(others[0].name))
            if late or ambiguous:
                why = f"saved after {others[0].name}" if late else "replaced by a save that was killed"
                text = f"{'was' if late else 'may have been'} {why}, and cannot be read: {each.note}. Perhaps training"
                yield Doubt(each.name, f"{each.name} {text} had gone back to an earlier step before it", stops=True)
            elif each.order > chosen.order or not (each.noted or 0 < written(each.name) < written(chosen.name)):
                text = f"{chosen.name} is chosen, though {each.name} may have been saved later: {each.note}"
                yield from [Doubt(each.name, text)] if each.name not in known else ()

    def _newest_if(self, doubted: Record, line: Line) -> Record | None:
        """The `newest`, if this one is of that line."""
        part = self.of(doubted.series)
        last = last_line([*part, *self.lost_of(doubted.series), replace(doubted, lines=(line,), line=line)])
        return RunState(lined(part, last)).newest(doubted.series)

    # -- what stays --------------------------------------------------------------------------------------

    def rules_applied(
        self,
        series: str,
        keep: Retention,
        now: float,
        readers: Collection[str],
        newest: Callable[[Iterable[Record]], Record | None],
        *,
        line: Line | None = None,
        protected: Mapping[str, str] | None = None,
        coming: Record | None = None,
        late: bool = False,
        abandoned: bool = False,
    ) -> dict[str, tuple[str, ...]]:
        """Why each checkpoint of a series that counts stays; none if it may go, though not while it is among `readers`.
        If any would go, `newest` says which of those to which rules apply is the newest that verifies. Rules count
        within a `line`, by default the last; what it has `abandoned` stays unless that may go, and so does what is
        `protected`, for the reason that stands there. With `coming`, as if that had been saved already. A place that
        stores `late` keeps what may not be stored yet, and two from before. Raises as `last_line`.
        """
        self.last_line(series)
        counted = [each for each in self.of(series) if each.counts]
        counted = counted if line is None else lined(counted, line)
        reasons: dict[str, tuple[str, ...]] = {each.name: () for each in counted}
        given_up = [each for each in counted if each.abandoned and not each.damaged]
        reasons |= {each.name: (each.note,) for each in counted if each.damaged}
        own = [each for each in counted if not (each.abandoned or each.damaged)]
        ranked = own
        if coming is not None and coming.series == series:
            ranked = [*(each for each in own if each.name != coming.name), coming]
        decided = keep.decide(with_plausible_times(ranked, now))
        decided |= {each.name: () if abandoned else (f"{ABANDONED}{each.abandoned}",) for each in given_up}
        for why in (protected or {}, {name: f"link {link}" for name, link in self.linked.items()}):
            decided |= {name: (*decided[name], why[name]) for name in why.keys() & decided.keys()}
        for each in _unstored(own, now) if late else ():
            decided[each.name] = decided[each.name] or (_LATER,)
        reasons |= {each.name: decided[each.name] for each in (*own, *given_up)}
        keep_needed(self.records, reasons, readers)
        if doomed := [name for name, why in reasons.items() if not why and name not in readers]:
            good = newest(reversed(own))
            for name in doomed if good is None else [good.name]:
                reasons[name] = reasons[name] or (_UNVERIFIED if good is None else _NEWEST,)
        return reasons


def keep_needed(records: Iterable[Record], reasons: dict[str, tuple[str, ...]], stay: Collection[str]) -> None:
    """Give what would go a reason to stay, if a checkpoint needs it that has one, or is among those that `stay`."""
    for each in records:
        if each.complete and each.verified and (reasons.get(each.name) != () or each.name in stay):
            for base in each.needs:
                if reasons.get(base) == ():
                    reasons[base] = (f"{each.name} needs it",)


def runs_named(records: Iterable[Record], run_id: str | None) -> dict[str, str]:
    """Of each series the run that its newest checkpoint names, of those that count and may be of this run."""
    own = [each for each in records if each.kind == "own" and each.verified and not each.copy_of]
    fit = [each for each in own if run_id in (None, each.run)]
    return {each.series: str(each.run) for each in sorted(fit, key=lambda each: each.order)}


def seen_from(record: Record, run_id: str | None, noted: Callable[[str], SaveNote | None]) -> Record:
    """What a folder says of itself, seen from a run, with what is noted of its line if it says none."""
    if record.version is not None:
        text = f"version {record.version:,} of the published weights of {escaped(str(record.run))}"
        own = run_id == record.run
        return replace(record, kind="own" if own else "foreign", note=record.note or ("" if own else text))
    if record.doubtful or record.kind == "unclaimed":
        record = _with_note(record, noted(record.name), run_id)
    if record.kind == "unclaimed" and record.run:  # where a framework's save was begun
        return replace(record, kind="unfinished") if run_id in (None, record.run) else replace(record, run=None)
    if record.kind == "own" and record.copy_of:
        return replace(record, kind="foreign", note=f"a copy of {escaped(record.copy_of)}")
    if record.kind == "own" and run_id not in (None, record.run):
        return replace(record, kind="foreign", note=f"of the run {record.run}")
    return record


def _with_note(record: Record, note: SaveNote | None, run_id: str | None) -> Record:
    if note is None or run_id not in (None, note.run):
        return record
    lines = note.lines or ((),) * record.complete  # of another writer, which has none
    if lines and note.coming is not None:
        lines = tuple(dict.fromkeys((*lines, note.coming)))
    return replace(record, line=lines[0] if len(lines) == 1 else (), lines=lines, given_up=note.given_up)


def last_line(records: Iterable[Record]) -> Line:
    """That which was saved last, of the records of one series."""
    counted = [each for each in records if each.counts or each.noted]
    return max(counted, key=lambda each: (len(each.line), each.order)).line if counted else ()


def lined(records: Sequence[Record], line: Line) -> list[Record]:
    """The records of one series, `abandoned` if they are no part of a line."""
    return [replace(each, abandoned=_reason(each, line)) for each in records]


def _reason(record: Record, line: Line) -> str:
    if record.given_up is not None and len(line) >= len(record.given_up):
        return "it could not be read, and was passed over"
    number, known = len(record.line), record.counts or record.noted
    if not known or number == len(line) or (number < len(line) and record.step < line[number]):
        return ""
    if record.damaged and not record.noted:
        return _NOT_KNOWN
    end = line[number] if number < len(line) else 0
    return f"training went back to step {end - 1:,}" if end else "training went back, or began anew"


def _unstored(records: Sequence[Record], now: float) -> Sequence[Record]:
    """What stays where nothing tells when a write is stored: the newest, all that was saved just now, and two from
    before; the oldest first.
    """
    older = [each for each in records[:-1] if each.time is not None and now - each.time > _LONGEST_DELAY]
    gone = {each.name for each in older[:-_OLDER]}
    return [each for each in records if each.name not in gone]
