"""The rows: calls that fail, calls that do less than asked, and processes that are killed."""

import errno
from collections.abc import Iterator
from functools import partial

from tests.faults import forks
from tests.faults.shim import ALL, TAKES_SPACE, Action, Fault, Kind, When
from tests.faults.trials import Bench, Tally, sample

KILLS = (Action.KILL_BEFORE, Action.KILL_MIDWAY, Action.KILL_AFTER)


def killed(bench: Bench, every: int = 1, next_every: int = 16, together: bool = False, near: int = 2) -> Tally:
    """SIGKILL before, half-way through and after each event; of one rank, or of all of them `together`."""
    kinds = bench.kinds()
    row = "SIGKILL" + (", all ranks" if together else "") + (", first save" if bench.first else "")
    tally = Tally(row, str(bench.subject))
    points = [
        (number, action)
        for number, kind in enumerate(kinds)
        for action in KILLS
        if action != Action.KILL_MIDWAY or kind == Kind.WRITE
    ]
    for place, (number, action) in enumerate(sample(kinds, points, every, lambda point: int(point[0]), near)):
        fault = Fault(action, number, kill_all=together)
        trial = bench.attempt(fault)
        if trial.hits:  # threads and ranks have their events in another order each time; this may be no write now
            bench.judge(tally, trial, f"{fault}, {trial.hit.name}")
            if place % next_every == 0:
                bench.judge_next(tally, fault)
    return tally


def failing(bench: Bench, every: int = 1, near: int = 1) -> Tally:
    """ENOSPC and EIO of each call, once and for good."""
    kinds = bench.kinds()
    tally = Tally("ENOSPC, EIO", str(bench.subject))
    faults = [
        Fault(Action.FAIL, number, when, later, error)
        for number in range(len(kinds))
        for error, later in ((errno.ENOSPC, TAKES_SPACE), (errno.EIO, ALL))
        for when in (When.ONCE, When.FOR_GOOD)
        if error == errno.EIO or kinds[number] & TAKES_SPACE
    ]
    return _tried(bench, tally, kinds, faults, every, near)


def interrupted(bench: Bench, every: int = 1, near: int = 1) -> Tally:
    """Short writes and reads, and EINTR, while saving: of each call, and of every second one from there on."""
    kinds = bench.kinds()
    tally = Tally("short, EINTR, saving", str(bench.subject))
    return _tried(bench, tally, kinds, list(_little(kinds)), every, near)


def interrupted_load(bench: Bench, every: int = 1) -> Tally:
    """Short reads, EINTR and EIO while loading: what loads is right, or the load raises."""
    subject, path, shim = bench.subject, bench.path, bench.shim
    bench.restore()
    verdict = partial(subject.verdict, path)
    with shim.armed(bench.root):
        assert forks.run_one(verdict).value == "old"
    kinds = shim.kinds
    tally = Tally("short, EINTR, EIO, loading", str(subject))
    broken = [
        Fault(Action.FAIL, number, when, error=errno.EIO)
        for number in range(len(kinds))
        for when in (When.ONCE, When.FOR_GOOD)
    ]
    for fault in [*_little(kinds), *broken][::every]:
        with shim.armed(bench.root, fault):
            outcome = forks.run_one(verdict)
        if not shim.hits:
            continue
        tally.points += 1
        if outcome.how == "returned":
            tally.count(outcome.value, fault)
        else:
            tally.count({"raised": "refused", "killed": "corrupt"}.get(outcome.how, outcome.how), fault, outcome.error)
    return tally


def _little(kinds: list[Kind]) -> Iterator[Fault]:
    for number, kind in enumerate(kinds):
        for when in (When.ONCE, When.EVERY_SECOND):
            if kind & (Kind.WRITE | Kind.READ):
                yield Fault(Action.CUT, number, When.FOR_GOOD if when else when)
            yield Fault(Action.FAIL, number, when, error=errno.EINTR)


def _tried(bench: Bench, tally: Tally, kinds: list[Kind], faults: list[Fault], every: int, near: int) -> Tally:
    for fault in sample(kinds, faults, every, lambda fault: int(fault.point), near):
        trial = bench.attempt(fault)
        if trial.hits:
            bench.judge(tally, trial, f"{fault}, {trial.hit.name}")
    return tally
