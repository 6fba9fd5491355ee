"""`CheckpointManager`: how long it blocks a step, and what runs with very many checkpoints take.

Servers and ranks are started as the tests start theirs, so ``tests`` must be on the path, as ``make bench`` has it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from dcp.s3_server import serving

from benchmarks.harness import Settings, progress
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.run_folders import LOST, MOST, STEADY, ManyCheckpoints, Place
from benchmarks.spread import Spread
from benchmarks.stepping import OURS, STEP, WAITING, blocked

RANKS = (1, 2, 4)
STEPS = 1000
MANY = (1000, 10_000)
BLOCKED_GOAL, SECONDS_GOAL, LINEAR_GOAL = 1.0, 2.0, 11.0

QUANTILES = {"median": 0.5, "99th percentile": 0.99, "longest": 1.0}


def run(settings: Settings) -> Result:
    """Measure."""
    rounds = min(settings.rounds, 5)
    goals: list[Row] = []
    steps = _steps(settings, rounds, goals)
    with TemporaryDirectory(dir=settings.folder) as folder, serving(Path(folder)) as server:
        places = [Place.local(settings.folder), Place.s3(server)]
        many = [row for place in places for row in _many(settings, place, rounds, goals)]
    count = settings.pick(MANY, (12, 24))[-1]
    note = (
        f"*Steps*: `should_save` with a schedule of steps, seconds, a signal and a notice, none of which comes, after "
        f"each of {settings.pick(STEPS, 10):,} steps: {STEP * 1000:g} ms without work for the CPU, as an accelerator "
        "computes, and then an all-reduce of 1 MB by all ranks, so that no rank is ahead of the others. Quantiles are "
        "of all ranks' steps in one round. Ranks have real-time priority where the system allows it: what other "
        "programs take of the CPUs is not counted. Beside it what a job's own flag would take, an all-reduce of a few "
        "numbers that waits for the result.\n\n"
        f"*Checkpoints*: runs with very many of them in one folder, each of one small tensor in two files, on the "
        "local disk and on SeaweedFS on the same machine, in a bucket with default settings. All are in the run's "
        "catalog, as a manager enters them; *the catalog lost* is the listing without it. *Dry run* and *forget one* "
        f"verify the newest checkpoint first. *Linear*: the fewest seconds with {count:,} checkpoints, divided by "
        "those with a tenth of them."
    )
    tables = [
        Table(goals, "Goals"),
        Table(steps, "Milliseconds of a step that it is blocked"),
        Table(many, "Seconds with many checkpoints"),
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


def _many(settings: Settings, place: Place, rounds: int, goals: list[Row]) -> list[Row]:
    counts = settings.pick(MANY, (12, 24))
    found = {
        count: {
            action: Spread.of(seconds)
            for action, seconds in ManyCheckpoints(place, count, settings.folder / "one").measure(rounds).items()
        }
        for count in counts
    }
    few, most = (found[count] for count in counts)
    for action in STEADY:
        goals.append(goal_row(f"seconds, {action}, {counts[-1]:,}, {place.name}", "", most[action], SECONDS_GOAL))
    for action in (*STEADY, MOST):
        growth = Spread.of([most[action].low / few[action].low])
        what = f"linear, {action}, {place.name}"
        goals.append(goal_row(what, f"{counts[0]:,}", growth, LINEAR_GOAL))
    return [
        {"place": place.name, "checkpoints": str(count)} | {action: of[action] for action in (LOST, *STEADY, MOST)}
        for count, of in found.items()
    ]
