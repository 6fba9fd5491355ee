"""`CheckpointManager`: how long it blocks a step, and what runs with very many checkpoints take.

Servers and ranks are started as the tests start theirs.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.harness import Settings, progress
from benchmarks.result import Result, Row, Spread, Table, goal_row
from benchmarks.run_folders import (
    ALONE,
    BEHIND,
    CACHE,
    CALL,
    LOST,
    MOST,
    STEADY,
    ManyCheckpoints,
    Place,
    save_run,
    saves,
)
from benchmarks.stepping import OURS, STEP, WAITING, blocked
from tests.dcp.s3_server import serving

RANKS = (1, 2, 4)
STEPS = 1000
MANY = (1000, 10_000)
BESIDE = (10, 1200)
SAVES = 30
BLOCKED_GOAL, SECONDS_GOAL, LINEAR_GOAL = 1.0, 2.0, 11.0
LOST_GOALS = {"local disk": 5.0, "S3": 60.0}
SAVE_GOAL = 10.0

QUANTILES = {"median": 0.5, "99th percentile": 0.99, "longest": 1.0}


def run(settings: Settings) -> Result:
    """Measure."""
    rounds = min(settings.rounds, 5)
    goals: list[Row] = []
    steps = _steps(settings, rounds, goals)
    saved = settings.folder / "saved"
    counts, beside = settings.pick((MANY, BESIDE), ((12, 24), (2, 4)))
    save_run(saved, counts[-1])
    with TemporaryDirectory(dir=settings.folder) as folder, serving(Path(folder)) as server:
        places = (Place.local(settings.folder), Place.s3(server))
        many = [row for place in places for row in _many(place, saved, counts, rounds, goals)]
    added = _saves(settings, saved, beside, goals)
    shutil.rmtree(saved)
    count = counts[-1]
    note = (
        f"*Steps*: `should_save` with a schedule of steps, seconds, and a signal, none of which comes, after "
        f"each of {settings.pick(STEPS, 10):,} steps: {STEP * 1000:g} ms without work for the CPU, as an accelerator "
        "computes, and then an all-reduce of 1 MB by all ranks, so that no rank is ahead of the others. Quantiles are "
        "of all ranks' steps in one round. Ranks have real-time priority where the system allows it: what other "
        "programs take of the CPUs is not counted. Beside it what a job's own flag would take, an all-reduce of a few "
        "numbers that waits for the result.\n\n"
        f"*Checkpoints*: runs with very many of them in one folder, each of one small tensor in two files, on the "
        "local disk and on SeaweedFS on the same machine, in a bucket with default settings. *The cache lost* is the "
        f"listing of checkpoints that were copied there without `{CACHE}`; before the rest, a manager has saved "
        "once. *Latest* is `CheckpointManager.latest`, with a manager made and closed around it. *Dry run* and *forget "
        f"one* verify the newest checkpoint first. *Linear*: the fewest seconds with {count:,} checkpoints, divided by "
        "those with a tenth of them.\n\n"
        f"*Saves*: of one small tensor on the local disk, {ALONE} into new folders and a manager's in runs with so "
        "many checkpoints, all of which its rules keep, in turn; *added* is what the manager's call takes longer."
    )
    tables = [
        Table(goals, "Goals"),
        Table(steps, "Milliseconds of a step that it is blocked"),
        Table(many, "Seconds with many checkpoints"),
        Table(added, "Milliseconds of a save"),
    ]
    return Result("manager", "The checkpoint manager", note, tables)


def _steps(settings: Settings, rounds: int, goals: list[Row]) -> list[Row]:
    rows: list[Row] = []
    for ranks in RANKS:
        found: list[dict[str, list[float]]] = []
        for number in range(rounds):
            progress(f"manager: {ranks} ranks, round {number + 1} of {rounds}")
            folder = settings.folder / f"steps-{ranks}-{number}"
            found.append(blocked(ranks, settings.pick(STEPS, 10), folder))
        for name in (OURS, WAITING) if ranks > 1 else (OURS,):
            cells = {
                title: Spread.of([1000 * float(np.quantile(of[name], part)) for of in found])
                for title, part in QUANTILES.items()
            }
            rows.append({"ranks": str(ranks), "": name, **cells})
            if name == OURS:
                what = f"ms that a step is blocked, {ranks} {'ranks' if ranks > 1 else 'rank'}"
                goals.extend(
                    goal_row(f"{what}, {title}", "", cells[title], BLOCKED_GOAL) for title in list(QUANTILES)[:2]
                )
    return rows


def _many(place: Place, saved: Path, counts: tuple[int, ...], rounds: int, goals: list[Row]) -> list[Row]:
    found: dict[int, dict[str, Spread]] = {}
    for count in counts:
        measured = ManyCheckpoints(place, count, saved).measure(rounds)
        found[count] = {action: Spread.of(seconds) for action, seconds in measured.items()}
    few, most = (found[count] for count in counts)
    for action in (LOST, *STEADY):
        limit = LOST_GOALS[place.name] if action == LOST else SECONDS_GOAL
        goals.append(goal_row(f"seconds, {action}, {counts[-1]:,}, {place.name}", "", most[action], limit))
    for action in (*STEADY, MOST):
        growth = Spread.of([most[action].low / few[action].low])
        what = f"linear, {action}, {place.name}"
        goals.append(goal_row(what, f"{counts[0]:,}", growth, LINEAR_GOAL))
    return [
        {"place": place.name, "checkpoints": str(count)} | {action: of[action] for action in (LOST, *STEADY, MOST)}
        for count, of in found.items()
    ]


def _saves(settings: Settings, saved: Path, counts: tuple[int, ...], goals: list[Row]) -> list[Row]:
    found = saves(settings.folder, saved, counts, settings.pick(SAVES, 1))
    rows: list[Row] = []
    for count in counts:
        own, alone = found[str(count)], found[ALONE][CALL]
        added = Spread.of([1000 * (one - other) for one, other in zip(own[CALL], alone, strict=True)])
        plain, behind = (Spread.of([1000 * each for each in seconds]) for seconds in (alone, own[BEHIND]))
        rows.append({"checkpoints": str(count), ALONE: plain, "added": added, BEHIND: behind})
    goals.append(goal_row(f"ms added to a save, {counts[-1]:,} checkpoints", ALONE, added, SAVE_GOAL))
    return rows
