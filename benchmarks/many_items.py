"""Checkpoints of very many small items on many ranks: what publishing, verifying and reading metadata take. Linux only.

64 ranks are simulated in one process. Their items are so small that data hardly counts.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.child import in_child
from benchmarks.harness import MIB, Settings, progress
from benchmarks.memory import need_proc, peak_added
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.simulated import Planned, plan, sent, states, write
from benchmarks.spread import Spread

RANKS, SMOKE_RANKS = 64, 4
ITEMS, SMOKE_ITEMS = (10_000, 30_000, 100_000), (400, 1_200)
GOAL_EXPONENT = 1.15
KEY = streamxf.Key(bytes(range(32)))

FINISH, LOAD = "finish: check, pickle, publish", "read_metadata"
STOCK_FINISH, STOCK_LOAD = "finish, stock DCP", "read_metadata, stock DCP"
LOCAL_FINISH, LOCAL_LOAD = "finish on all ranks, one after the other", "read_metadata on all ranks, one after the other"
LINEAR = (FINISH, LOAD, "verify, with the key", "verify, without a key", "clean, dry run", "recipients")
Costs = dict[str, list[float]]
"""``wall`` and ``cpu`` seconds of each round, and the ``added`` bytes of a first one."""


def run(settings: Settings) -> Result:
    """Measure.

    Raises
    ------
    OSError
        If the system has no /proc to read a process's memory from.
    """
    need_proc()
    ranks = settings.pick(RANKS, SMOKE_RANKS)
    rows: list[Row] = []
    cpu: dict[str, dict[int, Spread]] = {}
    for items in settings.pick(ITEMS, SMOKE_ITEMS):
        for collectives in (True, False):
            folder = Path(mkdtemp(dir=settings.folder))
            try:
                for name, costs in _all_costs(folder, items, ranks, collectives, settings.rounds).items():
                    label = "for all ranks" if collectives else "for each rank"
                    spread = Spread.of(costs["cpu"])
                    cpu.setdefault(name, {})[items] = spread
                    size = costs["metadata"][0] / MIB if "metadata" in costs else ""
                    rows.append(
                        {
                            "metadata": label,
                            "items": items,
                            "operation": name,
                            "CPU seconds": spread,
                            "seconds": Spread.of(costs["wall"]),
                            "MiB added": costs["added"][0] / MIB if "added" in costs else "",
                            ".metadata, MiB": size,
                        }
                    )
            finally:
                shutil.rmtree(folder)
    largest = max(settings.pick(ITEMS, SMOKE_ITEMS))
    goals = [
        goal_row(f"{name}: exponent of growth", "CPU seconds", Spread.of([_exponent(cpu[name])]), GOAL_EXPONENT)
        for name in (*LINEAR, LOCAL_FINISH, LOCAL_LOAD)
    ]
    note = (
        f"A save by {ranks} ranks, simulated in one process, under `[FloatZip(), Encrypt(key)]`: each rank plans, "
        "writes its part through its own writer, and sends its results through pickle. An item is one shard of 4 x 8 "
        "bf16; three quarters belong to tensors that lie on all ranks, the others are tensors of one rank, and some "
        f"objects. Growth is the slope of CPU seconds over items, both as logarithms, up to {largest:,} items. *Added* "
        "is the peak over the memory in use before."
    )
    tables = [Table(goals, "Growth", digits=2), Table(rows, "All", digits=2)]
    return Result("many_items", "Very many items", note, tables)


def _exponent(costs: dict[int, Spread]) -> float:
    items = np.log(list(costs))
    seconds = np.log([spread.median for spread in costs.values()])
    return float(np.polyfit(items, seconds, 1)[0])


def _all_costs(folder: Path, items: int, ranks: int, collectives: bool, rounds: int) -> dict[str, Costs]:
    def child(function: str, **arguments: Any) -> Any:
        return in_child("benchmarks.many_items", function, folder=str(folder), rounds=rounds, **arguments)

    progress(f"many_items: {items:,}, {'one metadata' if collectives else 'metadata of each rank'}: save")
    costs: dict[str, Costs] = child("save", items=items, ranks=ranks, collectives=collectives)
    for name in OPERATIONS if collectives else LOCAL_OPERATIONS:
        progress(f"many_items: {items:,}: {name}")
        costs[name] = child("operation", name=name, ranks=ranks, items=items)
    return costs


# -- in children -----------------------------------------------------------------------------------------------------


def save(folder: str, rounds: int, items: int, ranks: int, collectives: bool) -> dict[str, Costs]:
    """Save into `folder`/streamxf, and have torch's writer publish the same into `folder`/stock."""
    path, stock_path = Path(folder) / "streamxf", Path(folder) / "stock"
    state = states(items, ranks)
    costs: dict[str, Costs] = {}

    def writer(path: Path) -> Any:
        return streamxf.FileSystemWriter(
            path, sync_files=False, _extensions=[streamxf.FloatZip(), streamxf.Encrypt(KEY)]
        )

    planned = _once(costs, "plan", lambda: plan(path, state, writer, collectives=collectives))
    results = _once(costs, "write_data on all ranks, one after the other", lambda: write(planned))

    def finish(planned: Planned) -> Callable[[], Callable[[], None]]:
        def prepared() -> Callable[[], None]:
            reported = [sent(results)] if collectives else [[own] for own in sent(results)]
            parts = list(zip(planned.writers, sent(planned.metadata), reported, strict=False))

            def finish_all() -> None:
                for writer, metadata, reports in parts:
                    writer.finish(metadata, reports)

            return finish_all

        return prepared

    costs[FINISH if collectives else LOCAL_FINISH] = found = _measured(finish(planned), rounds)
    found["metadata"] = [sum(file.stat().st_size for file in path.glob("*.metadata"))]
    if collectives:
        stock = dcp.FileSystemWriter(stock_path, sync_files=False)
        stock_path.mkdir()
        costs[STOCK_FINISH] = found = _measured(finish(Planned([stock], [], [], planned.metadata)), rounds)
        found["metadata"] = [(stock_path / ".metadata").stat().st_size]
    return costs


def operation(folder: str, rounds: int, name: str, ranks: int, items: int) -> Costs:
    """Measure what is done with a checkpoint that is there.

    Raises
    ------
    AssertionError
        If it finds another one.
    """
    path = Path(folder)
    action = {**OPERATIONS, **LOCAL_OPERATIONS}[name]
    found: list[int] = []
    costs = _measured(lambda: lambda: found.append(action(path, ranks)), rounds)
    if not set(found) <= {items, 0}:
        raise AssertionError(f"{name}: not {items} items, but {sorted(set(found))}")
    return costs


def _read(path: Path, _: int) -> int:
    return len(streamxf.FileSystemReader(path / "streamxf", keys=KEY).read_metadata().storage_data)


def _read_stock(path: Path, _: int) -> int:
    return len(dcp.FileSystemReader(path / "stock").read_metadata().storage_data)


def _read_local(path: Path, ranks: int) -> int:
    return sum(
        len(streamxf.FileSystemReader(path / "streamxf", keys=KEY).read_metadata(rank=rank).storage_data)
        for rank in range(ranks)
    )


def _verify(keys: streamxf.Key | None) -> Callable[[Path, int], int]:
    def action(path: Path, _: int) -> int:
        report = streamxf.verify(path / "streamxf", keys)
        if not report.ok:
            raise AssertionError("verify finds damage")
        return report.items

    return action


def _clean(path: Path, _: int) -> int:
    streamxf.clean(path / "streamxf", keys=KEY, dry_run=True)
    return 0


def _recipients(path: Path, _: int) -> int:
    streamxf.recipients(path / "streamxf", KEY)
    return 0


OPERATIONS: dict[str, Callable[[Path, int], int]] = {
    LOAD: _read,
    STOCK_LOAD: _read_stock,
    "verify, with the key": _verify(KEY),
    "verify, without a key": _verify(None),
    "clean, dry run": _clean,
    "recipients": _recipients,
}
LOCAL_OPERATIONS: dict[str, Callable[[Path, int], int]] = {LOCAL_LOAD: _read_local}


def _once(costs: dict[str, Costs], name: str, action: Callable[[], Any]) -> Any:
    wall, cpu = time.perf_counter(), time.process_time()
    found = action()
    costs[name] = {"wall": [time.perf_counter() - wall], "cpu": [time.process_time() - cpu]}
    return found


def _measured(prepare: Callable[[], Callable[[], Any]], rounds: int) -> Costs:
    """What an action costs; `prepare`, which is not measured, makes one for each round."""
    costs: Costs = {"added": [peak_added(prepare())], "wall": [], "cpu": []}  # memory has its maximum at the first time
    for _ in range(rounds):
        action = prepare()
        round_costs: dict[str, Costs] = {}
        _once(round_costs, "", action)
        for kind, values in round_costs[""].items():
            costs[kind] += values
    return costs
