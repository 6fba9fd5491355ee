"""Many small objects that are no tensors, as a flattened optimizer state has them: seconds of a load."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.dcp_sides import FLOATZIP, STOCK
from benchmarks.harness import Phases, Settings, alternate, timed
from benchmarks.result import Result, Table, goal_row
from benchmarks.spread import Spread, ratios

COUNT = 6600
GOAL = 1.3
STOCK_READER = "torch's reader"
SAME = "streamxf's reader, the same checkpoint"
OWN = "streamxf's reader, streamxf's checkpoint"


def run(settings: Settings) -> Result:
    """Measure."""
    state = made_up(settings.pick(COUNT, 40))
    stock, own = settings.folder / "objects-stock", settings.folder / "objects-own"
    STOCK.save(state, stock, 1)
    FLOATZIP.save(state, own, 1)
    sides = {
        STOCK_READER: _load(state, stock, dcp.FileSystemReader),
        SAME: _load(state, stock, streamxf.FileSystemReader),
        OWN: _load(state, own, streamxf.FileSystemReader),
    }
    seconds = {name: phases["load"] for name, phases in alternate(sides, settings.rounds, "objects").items()}
    shutil.rmtree(stock)
    shutil.rmtree(own)
    goals = [
        goal_row(f"load, {name}", STOCK_READER, ratios(seconds[name], seconds[STOCK_READER]), GOAL)
        for name in (SAME, OWN)
    ]
    rows = [{"side": name, "load, s": Spread.of(taken)} for name, taken in seconds.items()]
    note = (
        f"{len(state):,} objects: numbers, pairs of numbers, short lists. Torch's reader unpickles whatever is stored; "
        "streamxf's lets no class through that is not allowed, and its own checkpoint has a container with checks for "
        "each object."
    )
    return Result("objects", "Small objects", note, [Table(goals, "Goals"), Table(rows, "All")])


def made_up(count: int) -> dict[str, Any]:
    """An optimizer's numbers, no two of them alike."""
    draw = random.Random(5)
    kinds: list[Callable[[], Any]] = [
        draw.random,
        lambda: draw.randrange(10**6),
        lambda: (draw.random(), draw.random()),
        lambda: [draw.randrange(1000) for _ in range(3)],
    ]
    return {f"optimizer.param_groups.{number}": kinds[number % len(kinds)]() for number in range(count)}


def _load(state: dict[str, Any], path: Path, reader: Callable[[Path], Any]) -> Callable[[], Phases]:
    def load() -> Phases:
        target = dict.fromkeys(state)
        seconds = timed(lambda: dcp.load(target, storage_reader=reader(path)))
        if target != state:
            raise AssertionError("the load did not give back what was saved")
        return {"load": seconds}

    return load
