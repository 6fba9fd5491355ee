"""What an operation costs in CPU seconds, seconds and memory. Linux only."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import MIB
from benchmarks.result import Row, Spread

Costs = dict[str, list[float]]
"""``wall`` and ``cpu`` seconds of each round, and the ``added`` bytes of a first one."""


def need_proc() -> None:
    """Raise OSError if the system has no /proc to read a process's memory from."""
    if not Path("/proc/self/clear_refs").exists():
        raise OSError("this benchmark reads the memory of a process from /proc, which this system does not have")


def peak_added(action: Callable[[], Any]) -> int:
    """Bytes that the peak of an action is above the memory in use before."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = _status("VmRSS")
    action()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def once(action: Callable[[], Any]) -> tuple[Costs, Any]:
    gc.collect()
    gc.freeze()  # what other ranks hold would lie in other processes: it is nothing for the collector to look at
    wall, cpu = time.perf_counter(), time.process_time()
    found = action()
    return {"wall": [time.perf_counter() - wall], "cpu": [time.process_time() - cpu]}, found


def measured(prepare: Callable[[], Callable[[], Any]], rounds: int) -> Costs:
    """What an action costs; `prepare`, which is not measured, makes one for each round."""
    costs: Costs = {"added": [peak_added(prepare())], "wall": [], "cpu": []}  # memory has its maximum at the first time
    for _ in range(rounds):
        for kind, values in once(prepare())[0].items():
            costs[kind] += values
    return costs


def cells(costs: Costs) -> Row:
    """The columns of a table; sizes, which not every operation has, are bytes."""
    sizes = {"MiB added": "added", "metadata, MiB": "metadata", "sent, MiB": "sent"}
    return {
        "CPU seconds": Spread.of(costs["cpu"]),
        "seconds": Spread.of(costs["wall"]),
        **{column: costs[kind][0] / MIB if kind in costs else "" for column, kind in sizes.items()},
    }
