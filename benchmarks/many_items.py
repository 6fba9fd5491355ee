"""Checkpoints of very many small items on many ranks: what publishing, verifying and reading metadata take. Linux only.

64 ranks are simulated in one process. Their items are so small that data hardly counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

import streamxf
from benchmarks import large_index, many_ranks
from benchmarks.child import in_child, in_fork
from benchmarks.costs import Costs, cells, measured, need_proc, once
from benchmarks.harness import Settings, progress
from benchmarks.result import Result, Row, Spread, Table, goal_row
from benchmarks.simulated import as_stock, plan, sent, states, write

RANKS, SMOKE_RANKS = 64, 4
ITEMS, SMOKE_ITEMS = (10_000, 100_000), (80, 240)
MAX_ROUNDS, MAX_LONG_ROUNDS = 3, 1  # all of it shall take minutes, and half of a round is verify
GOAL_EXPONENT = 1.15
KEY = streamxf.Key(bytes(range(32)))

PLAN, WRITE, FINISH, STOCK_FINISH = "plan", "write_data", "finish: check, pickle, publish", "finish, stock DCP"
READ, STOCK_READ, RECIPIENTS = "read_metadata", "read_metadata, stock DCP", "recipients"
VERIFY, VERIFY_WITHOUT = "verify, with the key", "verify, without a key"
CLEAN, CLEAN_LEFT = "clean, dry run", "clean: remove as many leftovers as items"
NOT_OURS = {PLAN, WRITE, STOCK_FINISH, STOCK_READ}
"""Operations that are shown, and have no goal: DCP's, and the encoding of data."""


@dataclass(frozen=True)
class Layout:
    """How the ranks save, and what is measured with the checkpoint."""

    collectives: bool  # one metadata file speaks of all ranks; else each rank publishes its own
    one_file: bool  # all items of a rank lie in one data file; else each has its own
    operations: tuple[str, ...]


LAYOUTS = {
    "one": Layout(True, True, (READ, STOCK_READ, VERIFY, VERIFY_WITHOUT, CLEAN, RECIPIENTS)),
    "one for each rank": Layout(False, True, (READ, VERIFY, CLEAN)),
    "one, a data file for each item": Layout(True, False, (READ, CLEAN, CLEAN_LEFT, RECIPIENTS)),
}


def run(settings: Settings) -> Result:
    """Measure."""
    need_proc()
    ranks = settings.pick(RANKS, SMOKE_RANKS)
    rows: list[Row] = []
    cpu: dict[tuple[str, str], dict[int, float]] = {}
    for label in LAYOUTS:
        for items in settings.pick(ITEMS, SMOKE_ITEMS):
            progress(f"many_items: metadata files: {label}; {items:,} items")
            for name, costs in _all_costs(settings, label, items, ranks).items():
                cpu.setdefault((label, name), {})[items] = Spread.of(costs["cpu"]).median
                rows.append({"metadata files": label, "items": items, "operation": name, **cells(costs)})
    goals = [
        goal_row(f"{name}; {label}", "CPU seconds", Spread.of([_exponent(costs)]), GOAL_EXPONENT)
        for (label, name), costs in cpu.items()
        if name not in NOT_OURS
    ]
    note = (
        f"A save by {ranks} ranks, simulated in one process, under `[FloatZip(), Encrypt(key)]`. An item is one shard "
        "of 4 x 8 bf16; three quarters belong to tensors that lie on all ranks, the others are tensors of one rank, "
        "and some objects. What every rank does is done one after the other, and its seconds are the sum. *Added* is "
        "the peak over the memory in use before. The exponent of growth is the slope of CPU seconds over items, both "
        "as logarithms: 1 is linear."
    )
    progress("many_items: many ranks")
    shares, each = many_ranks.tables(settings)
    progress("many_items: large indexes")
    reads, read = large_index.tables(settings)
    titled = {"Exponents of growth": goals, "Many ranks": shares, "All": rows, "Many ranks, all": each}
    tables = [Table(rows, title, digits=2) for title, rows in titled.items()]
    tables += [
        Table(rows, title) for title, rows in {"Large indexes": reads, "Large indexes, all": read}.items() if rows
    ]
    return Result("many_items", "Very many items", f"{note} {many_ranks.NOTE} {large_index.NOTE}", tables)


def _exponent(costs: dict[int, float]) -> float:
    return float(np.polyfit(np.log(list(costs)), np.log(list(costs.values())), 1)[0])


def _all_costs(settings: Settings, label: str, items: int, ranks: int) -> dict[str, Costs]:
    arguments = {"label": label, "items": items, "ranks": ranks, "rounds": min(settings.rounds, MAX_ROUNDS)}
    with TemporaryDirectory(dir=settings.folder) as folder:
        costs: dict[str, Costs] = in_child("benchmarks.many_items", "child", folder=folder, **arguments)
    return costs


# -- in the child ----------------------------------------------------------------------------------------------------


def child(folder: str, label: str, items: int, ranks: int, rounds: int) -> dict[str, Costs]:
    """Save, and measure what is done with the checkpoint; each in a process of its own."""
    layout = LAYOUTS[label]
    costs: dict[str, Costs] = in_fork(save, Path(folder), layout, items, ranks, rounds)
    for name in layout.operations:
        count = min(rounds, MAX_LONG_ROUNDS) if name in (VERIFY, VERIFY_WITHOUT) else rounds
        costs[name] = in_fork(operation, Path(folder), name, layout, items, ranks, count)
    if not costs[READ]["added"][0]:
        raise AssertionError(f"{READ}: it took no memory")
    return costs


def save(folder: Path, layout: Layout, items: int, ranks: int, rounds: int) -> dict[str, Costs]:
    """Save into `folder`/streamxf, and have torch's writer publish the same into `folder`/stock."""
    path, stock_path = folder / "streamxf", folder / "stock"
    state = states(items, ranks)
    costs: dict[str, Costs] = {}

    def writer(path: Path) -> Any:
        extensions = [streamxf.FloatZip(), streamxf.Encrypt(KEY)]
        return streamxf.FileSystemWriter(path, layout.one_file, sync_files=False, _extensions=extensions)

    costs[PLAN], planned = once(lambda: plan(path, state, writer, collectives=layout.collectives))
    costs[WRITE], results = once(lambda: write(planned))

    def prepared(writers: list[Any], results: list[list[WriteResult]]) -> Callable[[], None]:
        reported = [sent(results)] if layout.collectives else [[own] for own in sent(results)]
        return partial(_finish, list(zip(writers, sent(planned.metadata), reported, strict=False)))

    costs[FINISH] = measured(partial(prepared, planned.writers, results), rounds)
    costs[FINISH]["metadata"] = [sum(file.stat().st_size for file in path.glob("*.metadata"))]
    if STOCK_READ in layout.operations:
        stock = dcp.FileSystemWriter(stock_path, sync_files=False)
        stock_path.mkdir()
        of_stock = [[as_stock(result) for result in own] for own in results]
        costs[STOCK_FINISH] = measured(partial(prepared, [stock], of_stock), rounds)
        costs[STOCK_FINISH]["metadata"] = [(stock_path / ".metadata").stat().st_size]
    return costs


def _finish(parts: list[tuple[Any, Metadata, list[list[WriteResult]]]]) -> None:
    for writer, metadata, reports in parts:
        writer.finish(metadata, reports)


def operation(folder: Path, name: str, layout: Layout, items: int, ranks: int, rounds: int) -> Costs:
    """Measure what is done with a checkpoint that is there; AssertionError if it finds another one."""
    path = folder / ("stock" if name == STOCK_READ else "streamxf")

    def prepared() -> Callable[[], None]:
        if name == CLEAN_LEFT:
            _leave(path, items, ranks)
        return act

    def act() -> None:
        found = OPERATIONS[name](path, None if layout.collectives else ranks)
        if found != (wanted := COUNTS.get(name, items)):
            raise AssertionError(f"{name}: not {wanted}, but {found}")

    return measured(prepared, rounds)


def _leave(path: Path, count: int, ranks: int) -> None:
    """What a save leaves that was killed before it was published."""
    writers = [os.urandom(16).hex() for _ in range(ranks)]
    for number in range(count):
        (path / f"__{number % ranks}_{number // ranks}_{writers[number % ranks]}.distcp").touch()


def _read(path: Path, ranks: int | None) -> int:
    readers = [
        (streamxf.FileSystemReader(path, keys=KEY), rank) for rank in ([None] if ranks is None else range(ranks))
    ]
    return sum(len(reader.read_metadata(rank=rank).storage_data) for reader, rank in readers)


def _verify(path: Path, keys: streamxf.Key | None) -> int:
    report = streamxf.verify(path, keys=keys)
    if not report.ok:
        raise AssertionError(str(report))
    return report.items


OPERATIONS: dict[str, Callable[[Path, int | None], int]] = {
    READ: _read,
    STOCK_READ: lambda path, _: len(dcp.FileSystemReader(path).read_metadata().storage_data),
    VERIFY: lambda path, _: _verify(path, KEY),
    VERIFY_WITHOUT: lambda path, _: _verify(path, None),
    CLEAN: lambda path, _: len(streamxf.clean(path, keys=KEY, dry_run=True).removed),
    CLEAN_LEFT: lambda path, _: len(streamxf.clean(path, keys=KEY, dry_run=False).removed),
    RECIPIENTS: lambda path, _: len(streamxf.recipients(path, keys=KEY).whole),
}
"""From the folder and, where each has metadata of its own, the number of ranks, to what was found."""
COUNTS = {CLEAN: 0, RECIPIENTS: 1}
"""What is found where that is not the items."""
