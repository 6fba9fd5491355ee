"""Random histories of a run as a value: what its folders and notes say, and what `RunState` decides from that, beside
the model and beside what is true. No file is written, so there are thousands of them.

An event is a name and three numbers between 0 and 1, which choose among what is there; so any part of a history is a
history, and what fails is made shorter by leaving events out.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from streamxf.errors import add_note
from streamxf.manager.record import Record
from streamxf.manager.retention import Retention
from streamxf.manager.saves import SaveNote
from streamxf.manager.state import RunState, runs_named
from tests.manager.model import DAY, Folder, Line, Model, Saved, believed, keep

T = TypeVar("T")
NOON = 1_700_000_000
EVERY_CHECK = {"none", "sample", "whole"}
OWN_ID, OTHER_ID = "1" * 32, "f" * 32
SERIES = "step-{}"
# of another experiment in the same folder, which decides nothing here
OTHERS = [Record(f"exp-7-step-{step}", NOON, 9, {}, "own", "o", OTHER_ID, line=(1, 1, 1)) for step in (1, 99)]
JUMPS = (-400 * DAY, -DAY, -3600, 60, 3600, DAY, 40 * DAY)
LOSSES = ({}, {"loss": float("nan")}, {"loss": 0.25}, {"loss": 0.5}, {"loss": 0.5}, {"loss": 1.0})


class Event(NamedTuple):
    kind: str
    one: float
    two: float
    three: float


def pick(values: Collection[T], number: float) -> T:
    return [*values][int(number * len(values))]


def rules_of(one: float, two: float) -> dict[str, Any]:
    count = pick((1, 1, 2, 3, -1), two)
    return pick(
        [
            *({name: count} for name in ("last", "last", "hourly", "daily", "weekly", "monthly", "yearly")),
            {"best": count, "metric": "loss", "mode": pick(("min", "max"), one * 7 % 1)},
            {"best": count, "metric": "loss", "last": 1, "max_bytes": 40},
            {"every": 2 + int(two * 9)},
            {"max_age": pick((600.0, 3600.0, 1e6), two)},
            {"steps": [1 + int(two * 40)]},
            {"max_bytes": 1 + int(two * 60)},
        ],
        one,
    )


class Stopped(Exception):
    """Nobody can tell from where training went on, or something cannot be read for now."""


class RunOfValues:
    """One run, with what is true of it. A method whose name is that of an event does it."""

    def __init__(self, seed: int) -> None:
        self.strict, self.named, self.timed = bool(seed & 1), bool(seed & 2), bool(seed & 4)
        self.model = Model(bare=self.bare, written=self.when)
        self.written: dict[str, float] = {}  # when their data was, by a clock that does not jump
        self.true: dict[str, Line] = {}  # the line of what is there, which may be unreadable or lost
        self.sane: dict[str, Folder] = {}  # what cannot be read for now, as it was before
        self.lost: set[str] = set()  # data without metadata
        self.begun: dict[str, bool] = {}  # where a save is marked as under way; whether a framework's
        self.read: set[str] = set()  # names that somebody holds
        self.now = float(NOON)
        self.ticks = 0
        self.noting = True  # whether there is room for notes
        self.unnoted: set[str] = set()  # of which a note was lost
        self.guessed = False  # whether a job that loaded nothing has gone on, on a line that nobody knew
        self.start_job(rules_of(seed / 97 % 1, seed / 89 % 1) if seed & 8 else {}, "sample")

    def start_job(self, rules: dict[str, Any], check: str) -> None:
        self.rules, self.check = rules, check
        self.line: Line | None = None
        self.loaded: Record | None = None
        self.passed: list[str] = []
        self.tidy = False

    # -- what is there -----------------------------------------------------------------------------------

    def when(self, name: str) -> float:
        """Nobody knows it of a folder that cannot be listed."""
        if self.timed and name in self.sane and self.sane[name].size % 3 == 0:
            return math.inf
        return self.written.get(name, 0.0) if self.timed else 0.0

    def data(self) -> set[str]:
        lines = {name for name, note in self.model.noted.items() if note.lines}
        return {name for name in self.lost if name not in self.begun or (name in lines and not self.begun[name])}

    def bare(self) -> set[str]:
        noted = self.model.noted
        up = {name for name in self.data() if name not in noted or noted[name].given_up is not None}
        return up | {name for name in self.data() if self.model.lines(name)}

    def unsure(self) -> set[str]:
        """What may be of one line or another."""
        return {name for name in self.model.doubtful() if len(self.model.lines(name)) != 1}

    def there(self) -> set[str]:
        return self.model.folders.keys() | self.lost | self.begun.keys()

    def says(self, name: str) -> Record:
        """What its folder says, as `Folder.record` has it."""
        each = self.model.folders[name]
        if name in self.sane:
            trouble: dict[str, Any] = {"newer": True, "kind": "foreign"} if each.muddled else {"unread": True}
            return Record(name, note="trouble", verified=False, **trouble)
        if each.unread:
            return Record(name, each.time, each.size, damaged=True, verified=not self.strict, note="cut")
        if not each.told:
            return Record(name, each.time, each.size, verified=not each.doubted)
        run, copy_of = OWN_ID if each.ours or self.strict else OTHER_ID, each.told if each.told != name else ""
        save_id, known = f"{name}@{each.time}", not each.doubted
        told = (name, each.time, each.size, each.metrics, "own", save_id, run, known, copy_of)
        return Record(*told, line=each.line, other_notes=each.muddled)

    def state(self) -> RunState:
        model = self.model
        found = [*map(self.says, model.folders), *OTHERS]
        found += [Record(name, kind="unfinished", run=OWN_ID) for name in self.begun.keys() - model.folders.keys()]
        evident = any(each.ours and each.told == name for name, each in model.folders.items())
        run_id = None if evident and not self.named else OWN_ID
        runs, data, notes = runs_named(found, run_id), dict.fromkeys(self.data(), "save"), model.noted.get
        state = RunState.read_from(found, data, notes, lambda series: run_id or runs.get(series))
        unread = {name: OSError(5, "trouble") for name in self.sane if not model.folders[name].muddled}
        return replace(state, linked={name: link for link, name in model.links.items()}, unread=unread)

    def truth(self) -> int | None:
        """The newest checkpoint that is intact, in the line that was saved last, of what is there at all."""
        there = (self.model.folders.keys() | self.lost) & self.true.keys()
        line = self.true[max(there, key=self.written.__getitem__)] if there else ()
        fit = {step for step, each in self.model.counted.items() if self.check not in each.broken}
        own = {step: self.true.get(f"step-{step}", ()) for step in fit}
        ends = {step: [*line, *[99] * 99][len(own[step])] for step in fit}
        return max((step for step in fit if len(own[step]) <= len(line) and step < ends[step]), default=None)

    # -- what holds at any time --------------------------------------------------------------------------

    def check_all(self, event: Event) -> None:
        state, model = self.state(), self.model
        counted = {each.step: each for each in state.of(SERIES) if each.counts}
        assert counted.keys() == model.counted.keys()
        in_line = model.in_line()
        assert {step for step, each in counted.items() if not each.abandoned} == in_line.keys()
        assert state.last_line(SERIES) == model.last_line()
        assert {each.name for each in state.lost} == self.bare()
        for name in self.true.keys() & model.noted.keys() - self.unnoted:
            assert self.true[name] in (*model.noted[name].lines, model.noted[name].coming)
        for step in counted and [pick(counted, event.three)]:
            line, unknown = state.line_after(SERIES, counted[step], self.when)
            assert (line, {*unknown}) == model.after(step, model.line_of(step))
        if event.one < 0.3:  # since it takes longer than all else
            self.check_rules(state, event)
        with suppress(Stopped):
            self.choose(state, self.check)

    def check_rules(self, state: RunState, event: Event) -> None:
        """With what comes, as if it were there; where what is written is stored late, more stays."""
        rules, coming = rules_of(event.two, event.three), Record("step-77", self.now, 30, {})
        counted = {step: each for step, each in self.model.in_line().items() if not each.unread}
        saved = [Saved(step, each.time, each.size, each.metrics, each.muddled) for step, each in counted.items()]
        stay = keep(believed([*saved, Saved(77, self.now, 30, {})], self.now), rules)
        linked = {step for step in counted if f"step-{step}" in self.model.links.values()}
        stay |= linked | {max(counted, default=0)}
        assert self.doomed(state, rules, coming=coming) == {f"step-{step}" for step in counted.keys() - stay}
        own = [each for each in state.of(SERIES) if each.counts and not (each.damaged or each.abandoned)]
        settled = [each.name for each in own[:-1] if each.time is not None and self.now - each.time > 600]
        assert self.doomed(state, rules, late=True) == self.doomed(state, rules) & {*settled[:-2]}

    def doomed(self, state: RunState, rules: dict[str, Any], **how: Any) -> set[str]:
        """Those without a reason to stay, if the newest verifies."""
        found = state.rules_applied(
            SERIES, Retention(**rules), self.now, (), lambda records: next(iter(records), None), **how
        )
        return {name for name, reasons in found.items() if not reasons}

    def choose(self, state: RunState, check: str) -> Record | None:
        """What is resumed from, if anybody can tell; never something else than what is true without a word."""
        model, chosen = self.model, None
        expected, self.check = model.newest_good(check), check
        troubled = [int(name[5:]) for name in self.sane if not model.is_known_out(name, model.last_line())]
        stops = max(troubled, default=0) > (expected or 0)
        for each in reversed([each for each in state.of(SERIES) if each.complete]):
            obstacle = state.obstacle(each)
            if isinstance(obstacle, Exception):
                assert stops, f"{each.name} stops, and is not in the way of {expected}"
                raise Stopped
            if obstacle is None and check not in model.folders[each.name].broken:
                chosen = each
                break
        assert not stops
        assert (chosen and chosen.step) == expected
        if chosen is None:
            return None
        doubts = [*state.doubts(chosen, self.when, ())]
        true = self.truth()
        stopping = {each.name for each in doubts if each.stops}
        assert stopping <= self.unsure()
        asked = {name for name in self.unsure() if not model.is_known_out(name, model.last_line())}
        asked &= self.sane.keys() | self.lost | {name for name, each in model.folders.items() if each.unread}
        asked = {name for name in asked if name != chosen.name and model.may_be_later(name)}
        assert stopping == asked or (self.timed and stopping > asked)
        assert chosen.step == true or doubts or self.guessed, f"{chosen.name} is chosen without a word, not {true}"
        if stopping:
            raise Stopped
        assert chosen.step == true or self.unnoted or self.guessed, f"{chosen.name} is chosen, not {true}"
        return chosen

    # -- the job, as its housekeeper is -------------------------------------------------------------------

    def note(self, name: str, note: SaveNote | None) -> None:
        if note is None or not self.noting:  # no older one counts for it
            self.model.noted.pop(name, None)
            self.unnoted |= {name} if note is not None else set()
        else:
            self.model.noted[name] = note

    def begin(self, name: str, framework: bool) -> None:
        model, state = self.model, self.state()
        if not self.tidy:
            for each in model.noted.keys() - self.there():
                self.note(each, None)
            data = self.data()
            self.lost -= self.begun.keys() - data - model.folders.keys()
            self.begun = {each: by for each, by in self.begun.items() if each in {*data, *model.folders}}
        if self.line is None:
            self.line = state.last_line(SERIES)
            self.guessed |= self.loaded is None and bool(self.unsure())
            if self.loaded is not None:
                self.line, self.passed = state.line_after(SERIES, self.loaded, self.when)
        if not self.tidy:
            self.apply(self.rules, self.check, self.line, self.loaded)
            self.tidy = True
        old = {each.name: each for each in self.state().records}.get(name)
        known = old is not None and old.counts and not old.damaged
        before = (old.line,) if old is not None and known else None if name in self.there() else ()
        noted = model.noted.get(name) or SaveNote(OWN_ID)
        if before is None and not noted.lines:  # what was killed twice, once it had published
            self.unnoted.add(name)
        self.note(name, noted.begin(before, self.line))
        if framework:
            self.dropped(name)
            self.lost.discard(name)
        self.begun[name] = framework

    def save(self, ahead: float, end: float, how: float) -> None:
        """A step ahead of the newest, or any, by a framework or not; some fail, and some are killed, before or after
        they have published.
        """
        model = self.model
        newest = max(model.in_line(self.line), default=0)
        step = min(newest + 1 + int(ahead * 6), 60) if ahead < 0.5 else 1 + int(ahead * 1000) % 40
        if ahead > 0.7 and (over := [*model.doubtful().values()] or [*model.counted]):
            step = pick(over, ahead * 100 % 1)
        name, framework = f"step-{step}", how > 0.85
        if name in model.links:
            return
        self.begin(name, framework)
        self.now += 60
        if end > 0.85:
            self.start_job(self.rules, self.check)
            return
        if end > 0.75:
            self.note(name, model.noted[name].fail() if name in model.noted else None)
            assert name not in model.noted or model.noted[name].coming is None
            del self.begun[name]
            return
        self.ticks += 1
        line, metrics = self.line or (), dict(pick(LOSSES, how * 97 % 1))
        self.put(name, Folder(name, True, self.now, metrics, 10 + int(how * 10), line=line))
        self.true[name], self.written[name] = line, self.ticks
        if end > 0.65:
            self.start_job(self.rules, self.check)
            return
        del self.begun[name]
        self.note(name, (model.noted.get(name) or SaveNote(OWN_ID)).publish(line))
        if self.noting:
            self.unnoted.discard(name)
        assert model.noted.get(name) in (None, SaveNote(OWN_ID, (line,)))
        for each in self.passed:
            if each != name:
                self.note(each, (model.noted.get(each) or SaveNote(OWN_ID)).give_up(line))
        assert all(model.is_known_out(each, line) for each in {*self.passed} & model.noted.keys() - {name})
        self.passed, self.loaded = [], None
        self.apply(self.rules, self.check, line, Record(name))

    def put(self, name: str, folder: Folder) -> None:
        self.dropped(name)
        self.lost.discard(name)
        self.model.folders[name] = folder

    def dropped(self, name: str) -> None:
        self.model.folders.pop(name, None)
        self.sane.pop(name, None)
        self.true.pop(name, None)

    def apply(
        self, rules: dict[str, Any], check: str, line: Line | None, stays: Record | None, abandoned: bool = False
    ) -> None:
        """What the rules do not keep goes, as `forget` has it."""
        state, model = self.state(), self.model
        how: dict[str, Any] = {"line": line, "abandoned": abandoned, "protected": {stays.name: "-"} if stays else {}}
        last = state.newest(SERIES)
        if line is None and last is not None and any(each.stops for each in state.doubts(last, self.when, ())):
            return

        def verified(records: Iterable[Record]) -> Record | None:
            return next((each for each in records if check not in model.folders[each.name].broken), None)

        ruling = state.rules_applied(SERIES, Retention(**rules), self.now, self.read, verified, **how)
        gone = {name for name, reasons in ruling.items() if not reasons}
        step = None if stays is None else stays.step
        going, in_use = model.to_go(rules, check, self.now, self.read, step, line, abandoned)
        assert gone - self.read == {f"step-{step}" for step in going}
        assert gone & self.read == {f"step-{step}" for step in in_use}
        for name in gone - self.read:
            self.dropped(name)
            self.note(name, None)

    def restart(self, one: float, two: float, three: float) -> None:
        self.start_job(rules_of(one, two) if three > 0.3 else {}, pick(("sample", "whole", "none"), three))

    def resume(self, one: float, two: float, three: float) -> None:
        """A new job goes on from the newest; where it stops, somebody says from where."""
        self.start_job(self.rules, pick(("sample", "whole", "none"), one))
        try:
            self.loaded = self.choose(self.state(), self.check) or Record("0", kind="foreign")
        except Stopped:
            self.go_back(one, two, three)

    def go_back(self, one: float, two: float, three: float) -> None:
        """The job loads some step, perhaps what was given up before."""
        good = [each for each in self.state().of(SERIES) if each.counts and not self.model.folders[each.name].broken]
        if good:
            self.start_job(self.rules, self.check)
            self.loaded = pick(good, two)

    # -- others ------------------------------------------------------------------------------------------

    def forget(self, one: float, two: float, three: float) -> None:
        self.apply(rules_of(one, two), pick(("sample", "whole", "none"), three), None, None, three * 7 % 1 > 0.8)

    def hold(self, one: float, two: float, three: float) -> None:
        self.read ^= {pick(self.model.folders, one)} if self.model.folders else set()

    def link(self, one: float, two: float, three: float) -> None:
        link = pick(("best", "current"), one)
        self.model.links.pop(link, None)
        if two > 0.3 and self.model.folders:
            self.model.links[link] = pick(self.model.folders, three)

    def likely(self, names: list[str], number: float) -> str:
        """One of these, and often one that a save was killed over."""
        killed = [name for name in names if name in self.begun]
        return pick(killed if killed and number < 0.5 else names, number * 2 % 1)

    def damage(self, one: float, two: float, three: float) -> None:
        """A bit flips, a file is cut, metadata cannot be parsed, or is gone."""
        sound = [name for name, each in self.model.folders.items() if not each.broken and name not in self.sane]
        if not sound:
            return
        folder = self.model.folders[name := self.likely(sound, two)]
        if one < 0.4:
            folder.broken = {"sample", "whole"} if one < 0.2 else set(EVERY_CHECK)
        elif one < 0.7:
            garbled = Folder("", not self.strict, folder.time, None, 10, set(EVERY_CHECK), unread=True)
            self.model.folders[name] = garbled
        else:
            true = self.true.get(name)
            self.dropped(name)
            self.lost.add(name)
            # beside the mark of a save, and with no note, it is as if that had never published
            self.true |= {name: true} if true is not None and name in self.data() else {}

    def trouble(self, one: float, two: float, three: float) -> None:
        """What can be read again, or cannot for now: its disk fails, or a newer version has saved it."""
        if self.sane and one < 0.5:
            name = pick(self.sane, two)
            self.model.folders[name] = self.sane.pop(name)
        elif own := [name for name, each in self.model.folders.items() if each.told == name and not each.doubted]:
            name = self.likely(own, two)
            self.sane.setdefault(name, self.model.folders[name])
            unread = Folder(name, False, None, None, 0, set(EVERY_CHECK), doubted=True, muddled=three > 0.5)
            self.model.folders[name] = unread

    def strangers(self, one: float, two: float, three: float) -> None:
        """Somebody saves by hand, plants what looks like a checkpoint, copies or renames one."""
        name, model = f"step-{1 + int(one * 60)}", self.model
        own = [each for each, folder in model.folders.items() if folder.told and each not in self.sane]
        if name in self.there():
            return
        if two < 0.3:
            self.put(name, Folder("", True, self.now, None, 10))
        elif two < 0.6 and (self.strict or self.named):  # else nobody knows which run is meant
            self.put(name, Folder(name, False, self.now * 2, {"loss": -1e9}, 9, doubted=self.strict, line=(1, 1, 1, 1)))
        elif two > 0.6 and own:
            source = pick(own, three)
            folder = copy.deepcopy(model.folders[source])
            self.put(name, folder)
            if folder.told == name and folder.ours:  # it was renamed before, and is back in its place
                self.true[name], self.written[name] = folder.line, self.written[name]
            if two > 0.8 and source not in {*model.links.values()}:
                self.dropped(source)

    def late_metric(self, one: float, two: float, three: float) -> None:
        own = [each for name, each in self.model.folders.items() if each.told and name not in self.sane]
        for folder in own and [pick(own, one)]:
            folder.metrics = {**(folder.metrics or {}), **pick(LOSSES, two)}
            folder.muddled ^= three > 0.7

    def notes_are_lost(self, one: float, two: float, three: float) -> None:
        for name in [*self.model.noted] if one < 0.3 else sorted(self.model.noted)[:1]:
            del self.model.noted[name]
            self.unnoted.add(name)

    def disk_fills(self, one: float, two: float, three: float) -> None:
        self.noting = not self.noting

    def clock_jumps(self, one: float, two: float, three: float) -> None:
        self.now = max(self.now + pick(JUMPS, one), 10**9)


KINDS = {
    **{"save": 12, "restart": 2, "resume": 3, "go_back": 3, "forget": 2, "hold": 2, "link": 1, "damage": 3},
    **{"trouble": 2, "strangers": 2, "late_metric": 1, "notes_are_lost": 0.3, "disk_fills": 0.2, "clock_jumps": 1},
}


def history_of(seed: int) -> list[Event]:
    numbers = random.Random(seed)
    kinds = numbers.choices([*KINDS], [*KINDS.values()], k=20)
    return [Event(kind, numbers.random(), numbers.random(), numbers.random()) for kind in kinds]


def failure_of(seed: int, history: Sequence[Event]) -> tuple[Exception, list[Event]] | None:
    """Why it fails, and the events up to there; None if it does not."""
    run = RunOfValues(seed)
    for number, event in enumerate(history, 1):
        try:
            getattr(run, event.kind)(*event[1:])
            run.check_all(event)
        except Exception as error:
            return error, [*history[:number]]
    return None


def play(seed: int) -> None:
    """Raise what a history fails by, with the shortest part of it that fails."""
    failure = failure_of(seed, history_of(seed))
    for number in reversed(range(len(failure[1]) if failure is not None else 0)):
        assert failure is not None
        fewer = failure[1][:number] + failure[1][number + 1 :]
        failure = failure_of(seed, fewer) or failure
    if failure is not None:
        add_note(failure[0], f"by failure_of({seed}, {failure[1]})")
        raise failure[0]
