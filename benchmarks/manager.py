"""`CheckpointManager`: how long it blocks a step, and what runs with very many checkpoints take.

Servers and ranks are started as the tests start theirs. What managers saved is copied, so nothing here knows what a
run's folder holds beside its checkpoints.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

import streamxf
from benchmarks.harness import Phases, Rounds, Settings, alternate, progress, timed
from benchmarks.result import Result, Row, Spread, Table, goal_row
from streamxf.manager.agreement import Agreement
from tests.dcp.process_groups import join_group, start_ranks
from tests.dcp.s3_server import serving, storage

RANKS = (1, 2, 4)
STEPS = 1000
MANY = (1000, 10_000)
BESIDE = (10, 1200)
SAVES = 30
BLOCKED_GOAL, SECONDS_GOAL, LINEAR_GOAL = 1.0, 2.0, 11.0
LOST_GOALS = {"local disk": 5.0, "S3": 60.0}
SAVE_GOAL = 10.0

QUANTILES = {"median": 0.5, "99th percentile": 0.99, "longest": 1.0}

STEP = 0.003
WARM = 50
OURS, WAITING = "should_save", "an all-reduce that waits"

LIST, LATEST, DRY, ONE = "list", "latest", "forget, dry run", "forget one"
STEADY = (LIST, LATEST, DRY, ONE)
LOST, MOST = "list, the cache lost", "forget all but ten"
LEFT = 10
ALONE, CALL, BEHIND = "dcp.save", "manager.save", "in the background"
BUCKET = "checkpoints"
CHAIN = "floatzip+checksum"

CACHE = ".streamxf"

_APART = 60.0  # seconds
_PART = 250
_SETTLED = 3.0  # seconds after which a local folder's times show its next change, so that what is in it is remembered


def run(settings: Settings) -> Result:
    """Measure."""
    rounds = min(settings.rounds, 5)
    goals: list[Row] = []
    steps = _steps(settings, rounds, goals)
    saved = settings.folder / "saved"
    counts, beside = settings.pick((MANY, BESIDE), ((12, 24), (2, 4)))
    save_run(saved, counts[-1])
    with TemporaryDirectory(dir=settings.folder) as folder, serving(Path(folder)) as server:
        places = (
            Place("local disk", str(settings.folder)),
            Place("S3", f"s3://{BUCKET}", storage(server)),
        )
        many = [row for place in places for row in _many(place, saved, counts, rounds, goals)]
    added = _saves(settings, saved, beside, goals)
    shutil.rmtree(saved)
    count = counts[-1]
    note = (
        f"*Steps*: `should_save` with a schedule of steps, seconds, and a signal, none of which comes, after "
        f"each of {settings.pick(STEPS, 10):,} steps: {STEP * 1000:g} ms without work for the CPU, and then an "
        "all-reduce of 1 MB by all ranks. Quantiles are of all ranks' steps in one round. Ranks have real-time "
        "priority where the system allows it. Beside it what a job's own flag would take, an all-reduce of a few "
        "numbers that waits for the result.\n\n"
        f"*Checkpoints*: runs with very many of them in one folder, each of one small tensor in two files, on the "
        "local disk and on SeaweedFS on the same machine. *The cache lost* is the listing of checkpoints that were "
        f"copied there without `{CACHE}`; before the rest, a manager has saved once. *Latest* is "
        "`CheckpointManager.latest`, with a manager made and closed around it. *Dry run* and *forget one* verify the "
        f"newest checkpoint first. *Linear*: the fewest seconds with {count:,} checkpoints, divided by those with a "
        "tenth of them.\n\n"
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


# -- steps -------------------------------------------------------------------------------------------------------------


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


def blocked(ranks: int, steps: int, folder: Path) -> dict[str, list[float]]:
    """Run a loop with each way to ask: the seconds that it took in each step, of all ranks together."""
    folder.mkdir()
    context = start_ranks(_rank, (ranks, str(folder), steps), ranks)
    while not context.join():
        """A rank that fails ends the others, and is raised here."""
    found = [json.loads((folder / f"rank {rank}").read_text()) for rank in range(ranks)]
    return {name: [seconds for each in found for seconds in each[name]] for name in (OURS, WAITING)}


def _rank(rank: int, ranks: int, folder: str, steps: int) -> None:
    with suppress(PermissionError):  # threads that are made later inherit it
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    join_group(rank, ranks, f"{folder}/meeting")
    gradient = torch.rand(250_000)

    def train() -> None:
        """Waits for an accelerator, and averages a gradient: no rank is ahead of the others by a step."""
        time.sleep(STEP)
        dist.all_reduce(gradient.clone())

    found = {}
    # everything that a step can be asked for, and nothing that comes
    schedule = streamxf.Schedule(steps=10**9, seconds=1e9)
    with streamxf.CheckpointManager(f"{folder}/run", save=schedule) as manager:
        found[OURS] = _measured(train, manager.should_save, steps)
    agreement = Agreement()
    found[WAITING] = _measured(train, lambda step: agreement.exchange(step, wait=True), steps)
    agreement.close()
    Path(folder, f"rank {rank}").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _measured(train: Callable[[], None], ask: Callable[[int], object], steps: int) -> list[float]:
    found = []
    for step in range(1, WARM + steps + 1):
        train()
        begin = time.perf_counter()
        ask(step)
        found.append(time.perf_counter() - begin)
    return found[WARM:]


# -- many checkpoints --------------------------------------------------------------------------------------------------


def _many(place: Place, saved: Path, counts: tuple[int, ...], rounds: int, goals: list[Row]) -> list[Row]:
    found = {count: many_checkpoints(place, count, saved, rounds) for count in counts}
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


@dataclass(frozen=True)
class Place:
    """Where runs lie: a folder or a bucket, with fsspec's options."""

    name: str
    base: str
    options: dict[str, Any] | None = None

    @property
    def files(self) -> Any:
        if self.options is None:
            return LocalFileSystem(auto_mkdir=True)
        return url_to_fs(self.base, **self.options)[0]

    def fill(self, run: str, saved: Path, count: int) -> None:
        """Copy the first checkpoints that were saved into a run."""
        for first in range(0, count, _PART):
            steps = (saved / f"step-{step}" for step in range(first, min(first + _PART, count)))
            found = [file for step in steps for file in step.iterdir()]
            self.files.pipe({f"{self.base}/{run}/{file.relative_to(saved)}": file.read_bytes() for file in found})
        os.sync()  # or the disk would be busy with them
        time.sleep(_SETTLED)

    def remove(self, run: str) -> None:
        """Remove all that is below a path, if anything is."""
        if self.files.exists(f"{self.base}/{run}"):
            self.files.rm(f"{self.base}/{run}", recursive=True)


def save_run(saved: Path, count: int) -> None:
    """Have a manager save the small checkpoints of a run into `saved`, a minute apart, the last one now."""
    progress(f"manager: {count} checkpoints are saved")
    begun = time.time() - _APART * count
    with (
        mock.patch.object(os, "fsync"),
        mock.patch.object(time, "time", return_value=begun) as now,
        streamxf.CheckpointManager(saved, CHAIN) as manager,
    ):
        for step in range(count):
            manager.wait()
            now.return_value = begun + _APART * step
            save(manager, step)


def save(manager: streamxf.CheckpointManager, step: int, items: int = 1) -> None:
    """Save a small checkpoint, or one of many items, with a metric."""
    manager.save(step, {f"w{item}": torch.zeros(1000) for item in range(items)}, metrics={"loss": 1 / (step + 1)})


def warmed(run: str, newest: int, options: dict[str, Any] | None) -> None:
    """Save the newest one once more, as a job does that goes on with the run: its manager has looked at them all."""
    with streamxf.CheckpointManager(run, CHAIN, storage_options=options) as manager:
        manager.latest()
        save(manager, newest)


def many_checkpoints(place: Place, count: int, saved: Path, rounds: int) -> dict[str, Spread]:
    """Seconds of each action on a run of so many checkpoints, a few fewer in each round; AssertionError if one
    failed.
    """
    progress(f"manager: {count} checkpoints, {place.name}")
    name = "many-checkpoints"
    run, newest, there = f"{place.base}/{name}", count - 1, count
    seconds: dict[str, list[float]] = {}

    def check(what: str, found: object, wanted: object) -> None:
        if found != wanted:
            raise AssertionError(f"{what}: {found}, and not {wanted}")

    def listed() -> None:
        found = streamxf.list_checkpoints(run, storage_options=place.options)
        check("complete", sum(record.complete for record in found), there)

    def latest() -> None:
        with streamxf.CheckpointManager(run, CHAIN, storage_options=place.options) as manager:
            check("latest", manager.latest(), f"{run}/step-{newest}")

    def forgotten(last: int, dry_run: bool = False) -> None:
        nonlocal there
        keep = streamxf.Retention(last=last)
        report = streamxf.forget(run, keep, dry_run=dry_run, storage_options=place.options)
        check("removed", len(report.removed), there - last)
        there = there if dry_run else last

    def take(action: str, call: Callable[[], None]) -> None:
        seconds.setdefault(action, []).append(timed(call))

    place.fill(name, saved, count)
    for _ in range(min(rounds, 2)):
        place.remove(f"{name}/{CACHE}")
        take(LOST, listed)
    warmed(run, newest, place.options)
    for _ in range(rounds):
        take(LIST, listed)
        take(LATEST, latest)
        take(DRY, lambda: forgotten(LEFT, dry_run=True))
        take(ONE, lambda: forgotten(there - 1))
    take(MOST, lambda: forgotten(LEFT))
    place.remove(name)
    return {action: Spread.of(taken) for action, taken in seconds.items()}


def saves(folder: Path, saved: Path, counts: tuple[int, ...], rounds: int) -> Rounds:
    """Seconds of saves of one small tensor: DCP's alone, and a manager's in runs with so many checkpoints, all of which
    its rules keep. Sides are named by the numbers.
    """
    place = Place("local disk", str(folder))
    keep = streamxf.Retention(last=10**6, best=10**6, metric="loss")
    managers: dict[int, streamxf.CheckpointManager] = {}
    steps = {count: count for count in counts}
    for count in counts:
        run = str(folder / f"beside-{count}")
        place.fill(f"beside-{count}", saved, count)
        warmed(run, count - 1, None)
        managers[count] = streamxf.CheckpointManager(run, CHAIN, keep=keep)

    def alone() -> Phases:
        path, state = folder / "alone" / f"step-{time.monotonic_ns()}", {"w0": torch.zeros(1000)}
        return {
            CALL: timed(lambda: dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, CHAIN), no_dist=True))
        }

    def managed(count: int) -> Phases:
        steps[count] += 1
        return {
            CALL: timed(lambda: save(managers[count], steps[count])),
            BEHIND: timed(managers[count].wait),
        }

    sides = {ALONE: alone} | {str(count): partial(managed, count) for count in counts}
    found = alternate(sides, rounds, "manager: saves beside many")
    for count, manager in managers.items():
        manager.close()
        place.remove(f"beside-{count}")
    place.remove("alone")
    return found
