"""What DCP's steps take for one rank of many: to finish a save, with what is sent after it, and to plan a load."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

import streamxf
from benchmarks.child import in_child, in_fork
from benchmarks.costs import Costs, cells, measured
from benchmarks.harness import Settings
from benchmarks.result import Row, Spread, goal_row
from benchmarks.simulated import (
    COLUMNS,
    ROWS,
    Part,
    Planner,
    as_stock,
    load_plan,
    names_of,
    results_of_all,
    save_plan,
    sent,
)

RANKS, SMOKE_RANKS = 1024, 8
ITEMS, SMOKE_ITEMS = 1000, 20
MAX_ROUNDS = 3
GOAL_SECONDS, GOAL_SHARE = 0.5, 0.5

FINISH, STOCK_FINISH = "finish, and what is sent", "finish, and what is sent, stock DCP"
PLAN, TORCH_PLAN = "read_metadata and plan, LoadPlanner", "read_metadata and plan, torch's planner"
STOCK_PLAN = "read_metadata and plan, stock DCP"
NOTE = (
    f"*Many ranks* are {RANKS:,}, with a shard of {ITEMS:,} tensors each, without encryption; one rank's files and "
    "results stand for those of all others. What is sent is DCP's `Metadata`, pickled once; a plan is that of one "
    "rank, which loads what it saved."
)


def tables(settings: Settings) -> tuple[list[Row], list[Row]]:
    """Goals, and all measurements."""
    ranks, items = settings.pick(RANKS, SMOKE_RANKS), settings.pick(ITEMS, SMOKE_ITEMS)
    arguments = {"ranks": ranks, "items": items, "rounds": min(settings.rounds, MAX_ROUNDS)}
    with TemporaryDirectory(dir=settings.folder) as folder:
        costs: dict[str, Costs] = in_child("benchmarks.many_ranks", "child", folder=folder, **arguments)
    cpu = {name: Spread.of(each["cpu"]) for name, each in costs.items()}
    goals = [
        goal_row(FINISH, "stock's CPU time", _share(cpu[FINISH], cpu[STOCK_FINISH]), GOAL_SHARE),
        goal_row(TORCH_PLAN, "stock's CPU time", _share(cpu[TORCH_PLAN], cpu[STOCK_PLAN]), GOAL_SHARE),
        goal_row(PLAN, "CPU seconds", cpu[PLAN], GOAL_SECONDS),
    ]
    return goals, [{"ranks": ranks, "operation": name, **cells(each)} for name, each in costs.items()]


def _share(ours: Spread, stock: Spread) -> Spread:
    return Spread.of([one / stock.median for one in ours.values])


# -- in the child ----------------------------------------------------------------------------------------------------


def child(folder: str, ranks: int, items: int, rounds: int) -> dict[str, Costs]:
    """Measure each operation in a process of its own."""
    path = Path(folder)
    costs = {name: in_fork(finish, path, name, ranks, items, rounds) for name in (FINISH, STOCK_FINISH)}
    for name in (PLAN, TORCH_PLAN, STOCK_PLAN):
        costs[name] = in_fork(plan, path, name, ranks, items, rounds)
    return costs


def finish(folder: Path, name: str, ranks: int, items: int, rounds: int) -> Costs:
    """Publish what all ranks saved, and pickle what torch sends them then."""
    path = folder / ("stock" if name == STOCK_FINISH else "streamxf")
    path.mkdir()
    writer: Any = streamxf.FileSystemWriter(path, sync_files=False, chain=[streamxf.FloatZip()])
    planner = Planner()
    writer.set_up_storage_writer(True, rank=0, use_collectives=True)
    (planned,) = writer.prepare_global_plan([save_plan(writer, planner, 0, ranks, items)])
    results = [*results_of_all(path, writer.write_data(planned, planner).wait(), ranks)]
    finishing = writer
    if name == STOCK_FINISH:  # without the first writer, what it wrote would be removed
        finishing = dcp.FileSystemWriter(path, sync_files=False)
        results = [[*map(as_stock, each)] for each in results]
    size: list[float] = []

    def prepared() -> Callable[[], None]:
        metadata, reported = _metadata(ranks, items), sent(results)

        def act() -> None:
            finishing.finish(metadata, reported)
            size.append(len(pickle.dumps(metadata)))

        return act

    costs = measured(prepared, rounds)
    return {**costs, "sent": size[:1], "metadata": [(path / ".metadata").stat().st_size]}


def plan(folder: Path, name: str, ranks: int, items: int, rounds: int) -> Costs:
    """Plan a load of what one rank saved; AssertionError if it would read something else."""
    path = folder / ("stock" if name == STOCK_PLAN else "streamxf")
    state = {item: Part.of(ranks // 2, ranks) for item in names_of(items)}

    def act() -> None:
        reader: Any = (dcp if name == STOCK_PLAN else streamxf).FileSystemReader(path)
        made = load_plan(reader, streamxf.LoadPlanner() if name == PLAN else dcp.DefaultLoadPlanner(), state)
        found = {(request.storage_index.fqn, request.storage_index.offset[0]) for request in made.items}
        if found != {(item, ranks // 2 * ROWS) for item in state}:
            raise AssertionError(f"{name}: it would read {len(made.items)} shards, or others")

    return measured(lambda: act, rounds)


def _metadata(ranks: int, items: int) -> Metadata:
    """What the planner of the coordinator makes of all plans."""
    whole, part = torch.Size([ranks * ROWS, COLUMNS]), torch.Size([ROWS, COLUMNS])
    entries: dict[str, Any] = {}
    for name in names_of(items):
        chunks = [ChunkStorageMetadata(torch.Size([rank * ROWS, 0]), part) for rank in range(ranks)]
        entries[name] = TensorStorageMetadata(TensorProperties(torch.bfloat16), whole, chunks)
    return Metadata(entries, {name: (name,) for name in entries})
