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

import streamxf
from benchmarks.harness import Phases, Settings, alternate, progress, timed
from benchmarks.result import Result, Row, Spread, Table, goal_row
from streamxf.manager.agreement import Agreement
from tests.dcp.process_groups import join_group, start_ranks
from tests.dcp.s3_server import serving, storage

RANKS = (1, 2, 4)
STEPS, WARM = 1000, 50
STEP = 0.003  # seconds without work for the CPU
QUANTILES = {"median": 0.5, "99th percentile": 0.99, "longest": 1.0}
OURS, WAITING = "should_save", "an all-reduce that waits"
BLOCKED_GOAL = 1.0  # ms of all quantiles but the longest

MANY = (1000, 10_000)
LOST, MOST = "list, the cache lost", "forget all but ten"
LIST, LATEST, DRY, ONE = STEADY = ("list", "latest", "forget, dry run", "forget one")
LEFT = 10
LOST_GOALS = {"local disk": 5.0, "S3": 60.0}
SECONDS_GOAL, LINEAR_GOAL = 2.0, 11.0

BESIDE = (10, 1200)
SAVES = 30
ALONE, CALL, BEHIND = "dcp.save", "manager.save", "in the background"
SAVE_GOAL = 10.0

CHAIN = "floatzip+checksum"
CACHE = ".streamxf"

_APART = 60.0  # seconds
_PART = 250
_SETTLED = 3.0  # seconds after which a local folder's times show its next change, so that what is in it is remembered


def run(settings: Settings) -> Result:
    """Measure."""
    rounds = min(settings.rounds, 5)
    goals: list[Row] = []
    steps = [row for ranks in RANKS for row in _steps(settings, ranks, rounds, goals)]
    saved = settings.folder / "saved"
    counts, beside = settings.pick((MANY, BESIDE), ((12, 24), (2, 4)))
    save_run(saved, counts[-1])
    local = Place("local disk", str(settings.folder))
    with TemporaryDirectory(dir=settings.folder) as folder, serving(Path(folder)) as server:
        places = (local, Place("S3", "s3://checkpoints", storage(server)))
        many = [row for place in places for row in _many(place, saved, counts, rounds, goals)]
    added = _saves(local, saved, beside, settings.pick(SAVES, 1), goals)
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


def _steps(settings: Settings, ranks: int, rounds: int, goals: list[Row]) -> list[Row]:
    found = []
    for number in range(rounds):
        progress(f"manager: {ranks} ranks, round {number + 1} of {rounds}")
        found.append(blocked(ranks, settings.pick(STEPS, 10), settings.folder / f"steps-{ranks}-{number}"))
    rows: list[Row] = []
    for name in found[0]:
        of_rounds = np.quantile([steps[name] for steps in found], [*QUANTILES.values()], axis=1)
        cells = {title: Spread.of(1000 * values) for title, values in zip(QUANTILES, of_rounds, strict=True)}
        rows.append({"ranks": str(ranks), "": name, **cells})
    what = f"ms that a step is blocked, {ranks} {'ranks' if ranks > 1 else 'rank'}"
    goals += [goal_row(f"{what}, {title}", "", rows[0][title], BLOCKED_GOAL) for title in list(QUANTILES)[:2]]
    return rows


def blocked(ranks: int, steps: int, folder: Path) -> dict[str, list[float]]:
    """Run a loop with each way to ask: the seconds that it took in each step, of all ranks together."""
    folder.mkdir()
    context = start_ranks(_rank, (ranks, str(folder), steps), ranks)
    while not context.join():
        """A rank that fails ends the others, and is raised here."""
    found = [json.loads((folder / f"rank {rank}").read_text()) for rank in range(ranks)]
    return {name: [seconds for each in found for seconds in each[name]] for name in found[0]}


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
    if ranks > 1:
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


@dataclass(frozen=True)
class Place:
    """Where runs lie: a folder or a bucket, with fsspec's options."""

    name: str
    base: str
    options: dict[str, Any] | None = None

    @property
    def files(self) -> Any:
        return url_to_fs(self.base, **({"auto_mkdir": True} if self.options is None else self.options))[0]

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

    def manager(self, run: str, **options: Any) -> streamxf.CheckpointManager:
        return streamxf.CheckpointManager(f"{self.base}/{run}", CHAIN, storage_options=self.options, **options)

    def warm(self, run: str, newest: int) -> None:
        """Save the newest one once more, as a job does that goes on with the run: its manager has looked at all."""
        with self.manager(run) as manager:
            manager.latest()
            save(manager, newest)


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


def save(manager: streamxf.CheckpointManager, step: int) -> None:
    """Save a small checkpoint with a metric."""
    manager.save(step, {"w0": torch.zeros(1000)}, metrics={"loss": 1 / (step + 1)})


def _many(place: Place, saved: Path, counts: tuple[int, ...], rounds: int, goals: list[Row]) -> list[Row]:
    found = {count: many_checkpoints(place, count, saved, rounds) for count in counts}
    few, most = (found[count] for count in counts)
    for action in (LOST, *STEADY):
        limit = LOST_GOALS[place.name] if action == LOST else SECONDS_GOAL
        goals.append(goal_row(f"seconds, {action}, {counts[-1]:,}, {place.name}", "", most[action], limit))
    for action in (*STEADY, MOST):
        growth = Spread.of([most[action].low / few[action].low])
        goals.append(goal_row(f"linear, {action}, {place.name}", f"{counts[0]:,}", growth, LINEAR_GOAL))
    return [{"place": place.name, "checkpoints": str(count), **seconds} for count, seconds in found.items()]


def many_checkpoints(place: Place, count: int, saved: Path, rounds: int) -> dict[str, Spread]:
    """Seconds of each action on a run of so many checkpoints, one fewer in each round; AssertionError if one failed."""
    progress(f"manager: {count} checkpoints, {place.name}")
    name, newest = "many-checkpoints", count - 1
    run = f"{place.base}/{name}"
    seconds: dict[str, list[float]] = {}

    def listed() -> int:
        return sum(record.complete for record in streamxf.list_checkpoints(run, storage_options=place.options))

    def latest() -> str | None:
        with place.manager(name) as manager:
            return manager.latest()

    def forget(last: int, dry_run: bool = False) -> int:
        keep = streamxf.Retention(last=last)
        return len(streamxf.forget(run, keep, dry_run=dry_run, storage_options=place.options).removed)

    def take(action: str, call: Callable[[], object], wanted: object) -> None:
        found: list[object] = []
        seconds.setdefault(action, []).append(timed(lambda: found.append(call())))
        if found != [wanted]:
            raise AssertionError(f"{action}: {found[0]}, and not {wanted}")

    place.fill(name, saved, count)
    for _ in range(min(rounds, 2)):
        place.remove(f"{name}/{CACHE}")
        take(LOST, listed, count)
    place.warm(name, newest)
    for there in range(count, count - rounds, -1):
        take(LIST, listed, there)
        take(LATEST, latest, f"{run}/step-{newest}")
        take(DRY, partial(forget, LEFT, dry_run=True), there - LEFT)
        take(ONE, partial(forget, there - 1), 1)
    take(MOST, partial(forget, LEFT), count - rounds - LEFT)
    place.remove(name)
    return {action: Spread.of(seconds[action]) for action in (LOST, *STEADY, MOST)}


# -- saves -------------------------------------------------------------------------------------------------------------


def _saves(place: Place, saved: Path, counts: tuple[int, ...], rounds: int, goals: list[Row]) -> list[Row]:
    """Saves of one small tensor: DCP's alone, and a manager's in runs with so many checkpoints, all of which its rules
    keep.
    """
    keep = streamxf.Retention(last=10**6, best=10**6, metric="loss")
    managers: dict[int, streamxf.CheckpointManager] = {}
    for count in counts:
        place.fill(f"beside-{count}", saved, count)
        place.warm(f"beside-{count}", count - 1)
        managers[count] = place.manager(f"beside-{count}", keep=keep)
    steps = dict(zip(counts, counts, strict=True))

    def alone() -> Phases:
        path, state = Path(place.base, "alone", f"step-{time.monotonic_ns()}"), {"w0": torch.zeros(1000)}
        writer = streamxf.FileSystemWriter(path, CHAIN)
        return {CALL: timed(lambda: dcp.save(state, storage_writer=writer, no_dist=True))}

    def managed(count: int) -> Phases:
        steps[count] += 1
        return {CALL: timed(lambda: save(managers[count], steps[count])), BEHIND: timed(managers[count].wait)}

    sides = {ALONE: alone} | {str(count): partial(managed, count) for count in counts}
    found = alternate(sides, rounds, "manager: saves beside many")
    plain, rows = np.array(found[ALONE][CALL]), []
    for count, manager in managers.items():
        manager.close()
        place.remove(f"beside-{count}")
        own = found[str(count)]
        added = Spread.of(1000 * (own[CALL] - plain))
        behind = Spread.of(1000 * np.array(own[BEHIND]))
        rows.append({"checkpoints": str(count), ALONE: Spread.of(1000 * plain), "added": added, BEHIND: behind})
    place.remove("alone")
    goals.append(goal_row(f"ms added to a save, {counts[-1]:,} checkpoints", ALONE, added, SAVE_GOAL))
    return rows
