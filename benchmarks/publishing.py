"""What publishing a save adds to it: seconds, fsyncs, and the removal of what earlier saves left."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from time import perf_counter
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.harness import MIB, Phases, Settings, alternate, timed
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.spread import Spread, ratios

GOAL = 1.03
LEFTOVERS = 10_000
TENSORS = 16
NEW, OVER = "into a new folder", "over a checkpoint"
PLAIN, PUBLISHED = "plain write of .metadata", "published"

State = dict[str, torch.Tensor]


class PlainWriter(streamxf.FileSystemWriter):
    """Writes and syncs the same data files, and then ``.metadata`` without any care; older files stay."""

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        return dcp.FileSystemWriter.prepare_local_plan(self, plan)

    def finish(self, metadata: dcp.Metadata, results: list[list[Any]]) -> None:
        metadata.storage_data = {result.index: result.storage_data for some in results for result in some}
        (Path(self.path) / ".metadata").write_bytes(pickle.dumps(metadata))

    def _sync_names(self) -> None:
        """The folder comes to the disk some time."""


class TimedWriter(streamxf.FileSystemWriter):
    """Measures the steps that are there for the sake of publishing; the plain writer has none of them.

    Attributes
    ----------
    seconds : float
        In all of them so far.
    """

    seconds = 0.0

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        return self._timed(partial(super().prepare_local_plan, plan))

    def finish(self, metadata: dcp.Metadata, results: list[list[Any]]) -> None:
        self._timed(partial(super().finish, metadata, results))

    def _sync_names(self) -> None:
        self._timed(super()._sync_names)

    def _timed(self, step: Callable[[], Any]) -> Any:
        begin = perf_counter()
        made = step()
        self.seconds += perf_counter() - begin
        return made


WRITERS = {PLAIN: PlainWriter, PUBLISHED: TimedWriter}


def run(settings: Settings) -> Result:
    """Measure."""
    folder = settings.folder / "publishing"
    mib = settings.pick(settings.mib, 1)
    generator = torch.Generator().manual_seed(6)
    state = {
        str(n): torch.empty(mib * MIB // 2 // TENSORS).normal_(0, 0.02, generator=generator).bfloat16()
        for n in range(TENSORS)
    }
    goals: list[Row] = []
    rows: list[Row] = []
    for case in (NEW, OVER):
        sides = {name: partial(_save, writer, state, folder, case == OVER) for name, writer in WRITERS.items()}
        phases = alternate(sides, settings.rounds, f"publishing: {case}")
        seconds = {name: of["save"] for name, of in phases.items()}
        steps = phases[PUBLISHED]["publishing"]
        if case == NEW:
            rest = [whole - step for whole, step in zip(seconds[PUBLISHED], steps, strict=True)]
            added = ratios(seconds[PUBLISHED], rest)
            goals.append(goal_row(f"save of {mib} MiB, {case}", "itself without the steps of publishing", added, GOAL))
            measured = ratios(seconds[PUBLISHED], seconds[PLAIN])
            goals.append(goal_row(f"save of {mib} MiB, {case}", PLAIN, measured, GOAL))
        for name, values in seconds.items():
            files, folders = _fsyncs(WRITERS[name], state, folder, case == OVER)
            rows.append(
                {
                    "save": case,
                    "metadata": name,
                    "seconds": Spread.of(values),
                    "in steps of publishing": Spread.of(steps) if name == PUBLISHED else "",
                    "fsyncs of files": files,
                    "fsyncs of folders": folders,
                }
            )
    count = settings.pick(LEFTOVERS, 10)
    small = {"w": torch.zeros(16)}
    sides = {str(number): partial(_save_beside, small, folder, number) for number in (0, count)}
    left = alternate(sides, settings.rounds, "publishing: leftovers")
    cleaned = [{"leftovers": int(name), "seconds": Spread.of(of["save"])} for name, of in left.items()]
    shutil.rmtree(folder)
    note = (
        f"A save of {mib} MiB of bf16 through FloatZip, one thread, as streamxf publishes it: unique names, drafts, "
        "fsyncs of files and folders, a look at all files before `.metadata` is replaced, and the removal of the "
        "checkpoint that was there. Beside it the same save, whose data files are synced, too, with a plain write of "
        "`.metadata` and nothing after it. A disk's fsync takes now this and now that, so the seconds that a save "
        "spends in steps of publishing are measured by themselves, too; all of planning and pickling of metadata "
        "counts among them, which the plain save has as well. *Leftovers*: a save of 64 bytes into a folder with empty "
        f"files of saves that failed, which it removes. To be kept: {GOAL - 1:.0%}."
    )
    tables = [Table(goals, "Goals"), Table(rows, "Saves"), Table(cleaned, "Leftovers")]
    return Result("publishing", "What publishing costs", note, tables)


def _save(writer: type[streamxf.FileSystemWriter], state: State, folder: Path, over: bool) -> Phases:
    """Seconds of a save, and of the steps of publishing where there are any."""
    _prepare(state, folder, over)
    made = writer(folder)
    taken = timed(lambda: dcp.save(state, storage_writer=made))
    return {"save": taken, "publishing": getattr(made, "seconds", 0.0)}


def _prepare(state: State, folder: Path, over: bool) -> None:
    """An empty place, or a checkpoint of the same state."""
    shutil.rmtree(folder, ignore_errors=True)
    if over:
        dcp.save(state, storage_writer=PlainWriter(folder))
    os.sync()  # or the disk would still be busy with what the other side left


def _save_beside(state: State, folder: Path, leftovers: int) -> Phases:
    """Seconds of a save into a folder with files that failed saves left.

    Raises
    ------
    AssertionError
        If they are still there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number in range(leftovers):
        (folder / f"__0_0_{number:032x}.distcp").touch()
    seconds = timed(lambda: dcp.save(state, storage_writer=streamxf.FileSystemWriter(folder)))
    if len(os.listdir(folder)) != 2:
        raise AssertionError("the save left files of others")
    return {"save": seconds}


def _fsyncs(writer: type[streamxf.FileSystemWriter], state: State, folder: Path, over: bool) -> tuple[int, int]:
    """How many fsyncs of files and of folders a save does."""
    _prepare(state, folder, over)
    with _counting() as kinds:
        dcp.save(state, storage_writer=writer(folder))
    return kinds.count(False), kinds.count(True)


@contextmanager
def _counting() -> Iterator[list[bool]]:
    """A list that gets, for each fsync, whether it was one of a folder."""
    kinds: list[bool] = []
    fsync = os.fsync

    def count(descriptor: int) -> None:
        kinds.append(S_ISDIR(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    with mock.patch.object(os, "fsync", count):
        yield kinds
