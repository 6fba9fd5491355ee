"""What a save and a load by very many ranks cost the coordinator, and one rank. Linux only.

All ranks are simulated in one process. What they send goes through a file, as pickles; one rank's files and results
stand for those of all others.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan

import streamxf
from benchmarks.child import in_child, in_fork
from benchmarks.costs import need_proc, peak_added
from benchmarks.harness import MIB, Settings, progress
from benchmarks.result import Result, Row, Table
from benchmarks.simulated import ROWS, Part, Planner, load_plan, moved, names_of, results_of_all, save_plan, sent
from streamxf.dcp.columns import PlannedItems

STOCK, TORCHS, OURS = "stock DCP", "torch's planners", "streamxf's planners"
SIZES = {STOCK: (256, 1024), TORCHS: (256, 1024), OURS: (1024, 16_384)}
ITEMS = 1000
FEWER = 64  # bytes, at most, that an item of another rank takes
MOST_DIFFERENT = 64  # plans of a load, which nobody compares; others are the same ones again
SMOKE_SIZES, SMOKE_ITEMS = (4, 8), 10

Phases = dict[str, Row]  # costs by step


def run(settings: Settings) -> Result:
    """Measure."""
    need_proc()
    tables = []
    for side, sizes in SIZES.items():
        rows: list[Row] = []
        for ranks in settings.pick(sizes, SMOKE_SIZES):
            progress(f"scaling: {side}; {ranks:,} ranks")
            arguments = {"side": side, "ranks": ranks, "items": settings.pick(ITEMS, SMOKE_ITEMS)}
            with TemporaryDirectory(dir=settings.folder) as folder:
                found: Phases = in_child("benchmarks.scaling", "child", folder=folder, **arguments)
            rows += [{"ranks": ranks, "step": step, **costs} for step, costs in found.items()]
        tables.append(Table(rows, side, digits=2))
    note = (
        f"Each rank has a shard of {ITEMS:,} tensors, and the chain is `[FloatZip()]`. Steps of rank 0 are those that "
        "it does for all ranks. To receive is to unpickle, and to send is to pickle; MB are of these pickles, or of "
        "`.metadata`. *Added* is the peak over what was in use before the step, and *held* over that before the first."
    )
    return Result("scaling", "Scaling", note, tables)


# -- in the child ----------------------------------------------------------------------------------------------------


def child(folder: str, side: str, ranks: int, items: int) -> Phases:
    """Save, and load what was saved; each in a process of its own."""
    path = Path(folder) / "checkpoint"
    path.mkdir()
    return {
        **{f"save, {step}": costs for step, costs in in_fork(save, path, side, ranks, items).items()},
        **{f"load, {step}": costs for step, costs in in_fork(load, path, side, ranks, items).items()},
    }


class ColumnPlanner(streamxf.SavePlanner):
    """Looks into `Shard`, too."""

    lookup_object = Planner.lookup_object


class _Meter:
    """Takes the costs of steps, one after the other."""

    def __init__(self) -> None:
        self.phases: Phases = {}
        self._before = _resident()

    def step(self, name: str, action: Callable[[], Any], size: Callable[[Any], Any] = lambda _: "") -> Any:
        """Do a step; `size` gives the MB that it was about, by its outcome."""
        found: list[Any] = []
        begin, before = time.process_time(), _resident()
        added = peak_added(lambda: found.append(action()))
        cpu, held = time.process_time() - begin, before + added - self._before
        costs: Row = {"CPU seconds": cpu, "MiB added": added / MIB, "MiB held": held / MIB}
        self.phases[name] = {**costs, "MB": size(found[0]), "requests": ""}
        return found[0]

    def receive(self, name: str, file: Path, ranks: int) -> list[Any]:
        with file.open("rb") as raw:
            received = partial(self.step, name, lambda: [pickle.load(raw) for _ in range(ranks)])
            return list(received(lambda _: file.stat().st_size / 1e6))

    def send(self, name: str, values: list[Any]) -> None:
        """Pickle values, all of them before the first is sent, as torch does."""
        self.step(name, lambda: [pickle.dumps(value) for value in values], lambda found: sum(map(len, found)) / 1e6)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _dump(file: Path, values: Iterable[Any]) -> None:
    with file.open("wb") as raw:
        for value in values:
            raw.write(pickle.dumps(value))


def save(path: Path, side: str, ranks: int, items: int) -> Phases:
    """What DCP does for a save at rank 0."""
    module: Any = dcp if side == STOCK else streamxf
    writer, file = module.FileSystemWriter(path, sync_files=False), path.parent / "pickles"

    def planned(rank: int) -> tuple[Any, Any]:
        planner: Any = ColumnPlanner() if side == OURS else Planner()
        return planner, save_plan(writer, planner, rank, ranks, items)

    meter = _Meter()
    writer.set_up_storage_writer(True, rank=0, use_collectives=True)
    planner, first = meter.step("one rank: its plan", lambda: planned(0))
    columns = isinstance(first.items, PlannedItems)  # others take long to make for all ranks
    others = (replace(first, items=moved(first.items, rank)) if columns else planned(rank)[1] for rank in range(ranks))
    _dump(file, others)
    plans = meter.receive("rank 0: plans received", file, ranks)
    plans, metadata = meter.step("rank 0: planner's global plan", partial(planner.create_global_plan, plans))
    plans = meter.step("rank 0: writer's global plan", partial(writer.prepare_global_plan, plans))
    meter.send("rank 0: plans sent", plans)
    final = planner.finish_plan(sent(plans[0]))
    del plans
    own = meter.step("one rank: written, and its results", lambda: writer.write_data(final, planner).wait())
    _dump(file, results_of_all(path, own, ranks, FEWER))
    results = meter.receive("rank 0: results received", file, ranks)
    finish = partial(writer.finish, metadata, results)
    meter.step("rank 0: finish", finish, lambda _: (path / ".metadata").stat().st_size / 1e6)
    meter.send("rank 0: metadata sent", [metadata])
    return meter.phases


def load(path: Path, side: str, ranks: int, items: int) -> Phases:
    """What DCP does for a load at one rank, and for all at rank 0."""
    requests, real = count(), os.preadv
    os.preadv = lambda *arguments: (real(*arguments), next(requests))[0]
    reader: Any = (dcp if side == STOCK else streamxf).FileSystemReader(path)
    planner: Any = streamxf.LoadPlanner() if side == OURS else dcp.DefaultLoadPlanner()
    state = {name: Part.of(ranks // 2, ranks) for name in names_of(items)}
    meter, file = _Meter(), path.parent / "pickles"
    plan = meter.step("one rank: metadata and plan", partial(load_plan, reader, planner, state))
    if side != STOCK:
        meter.phases["one rank: metadata and plan"] |= {"requests": next(requests)}
    some = [_moved(plan, rank) for rank in range(min(ranks, MOST_DIFFERENT))]
    _dump(file, (some[rank % len(some)] for rank in range(ranks)))
    plans = meter.receive("rank 0: plans received", file, ranks)
    plans = meter.step("rank 0: global plan", lambda: reader.prepare_global_plan(planner.create_global_plan(plans)))
    meter.send("rank 0: plans sent", plans)
    return meter.phases


def _moved(plan: LoadPlan, rank: int) -> LoadPlan:
    """The plan of another rank."""
    offset, made = torch.Size([rank * ROWS, 0]), []
    for item in plan.items:
        one, two = (MetadataIndex(index.fqn, offset, index.index) for index in (item.dest_index, item.storage_index))
        made.append(replace(item, dest_index=one, storage_index=two))
    return replace(plan, items=made if isinstance(plan.items, list) else type(plan.items)(made))
