"""What an operation costs in CPU seconds, seconds and memory. Linux only."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from benchmarks.memory import peak_added

Costs = dict[str, list[float]]
"""``wall`` and ``cpu`` seconds of each round, and the ``added`` bytes of a first one."""


def once(action: Callable[[], Any]) -> tuple[Costs, Any]:
    gc.collect()
    gc.freeze()  # what other ranks hold would lie in other processes: it is nothing for the collector to look at
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        found = action()
        return {"wall": [time.perf_counter() - wall], "cpu": [time.process_time() - cpu]}, found
    finally:
        gc.unfreeze()


def measured(prepare: Callable[[], Callable[[], Any]], rounds: int) -> Costs:
    """What an action costs; `prepare`, which is not measured, makes one for each round."""
    costs: Costs = {"added": [peak_added(prepare())], "wall": [], "cpu": []}  # memory has its maximum at the first time
    for _ in range(rounds):
        for kind, values in once(prepare())[0].items():
            costs[kind] += values
    return costs
