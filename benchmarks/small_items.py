"""What very small items cost: many small objects, many tensors of 4 KiB, and metadata of very many items."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.data.gaussian import gaussian_items
from benchmarks.dcp_sides import FLOATZIP, FULL, KEY, STOCK, Run, empty_target
from benchmarks.harness import Phases, Rounds, Settings, alternate
from benchmarks.kernels import encoded_bytes
from benchmarks.result import Result, Row, Spread, Table, goal_row, ratios

OBJECTS, TENSORS, ITEM_BYTES, ITEMS = 6_600, 5_000, 4096, 100_000
OBJECTS_GOAL, SAVE_GOAL, LOAD_GOAL, METADATA_GOAL = 1.0, 0.8, 0.8, 1.0
SHAPES = {(2048,): 220, (2, 4, 16, 16): 236}
"""Of a tensor of 4 KiB, with the most bytes that its container may add."""
STOCK_READER = "torch's reader"
SAME = "streamxf's reader, the same checkpoint"
OWN = "streamxf's reader, streamxf's checkpoint"
CHAIN = "FloatZip + Checksum + Encrypt"
CPU, WALL = "CPU", "wall"


def run(settings: Settings) -> Result:
    """Measure."""
    objects = _objects(settings)
    tensors = _tensors(settings)
    metadata = _metadata(settings)
    count = settings.pick(TENSORS, 50)
    what = f"{count:,} tensors of 4 KiB, {CHAIN}"
    compared = (
        (objects, "load", STOCK_READER, SAME, f"load of objects, {SAME}", OBJECTS_GOAL),
        (objects, "load", STOCK_READER, OWN, f"load of objects, {OWN}", OBJECTS_GOAL),
        (tensors, "save", STOCK.name, FULL.name, f"save, {what}", SAVE_GOAL),
        (tensors, "load", STOCK.name, FULL.name, f"load, {what}", LOAD_GOAL),
        # torch's own metadata is a pickle for streamxf's reader, too
        (metadata, "read_metadata", STOCK_READER, OWN, f"read_metadata, {OWN}", METADATA_GOAL),
    )
    goals: list[Row] = []
    for kind in (CPU, WALL):
        for rounds, phase, against, side, name, goal in compared:
            ratio = ratios(rounds[side][f"{phase}, {kind}"], rounds[against][f"{phase}, {kind}"])
            goals.append(goal_row(f"{name}, {kind} time", against, ratio, goal))
    for shape, limit in SHAPES.items():
        what = f"bytes in a data file, 4 KiB of bf16 in {len(shape)} dimension{'s'[: len(shape) > 1]}"
        goals.append(goal_row(what, "what FloatZip makes of them", Spread.of([_added(settings, shape)]), limit))
    rows = [
        {"side": side, "phase": phase, "seconds": Spread.of(seconds)}
        for rounds in (objects, tensors, metadata)
        for side, phases in rounds.items()
        for phase, seconds in phases.items()
    ]
    note = (
        f"Objects: {settings.pick(OBJECTS, 40):,} numbers, pairs of numbers and short lists, as a flattened optimizer "
        "state has them. Tensors: `thread_count` 1, all files synced; stock DCP without an extension. Metadata: "
        f"{settings.pick(ITEMS, 400):,} tensors of one element each. CPU time is that of all threads, and hardly "
        "depends on what else the machine does. Bytes are those of a container under `[FloatZip(), Encrypt(key)]`, of "
        "an item whose name has 16, beyond its elements as FloatZip compresses them; the metadata is not counted."
    )
    return Result("small_items", "Small items", note, [Table(goals, "Goals"), Table(rows, "All")])


def _measured(phase: str, action: Callable[[], Any]) -> Phases:
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return {f"{phase}, {CPU}": time.process_time() - cpu, f"{phase}, {WALL}": time.perf_counter() - wall}


# -- objects -----------------------------------------------------------------------------------------


def _objects(settings: Settings) -> Rounds:
    state = made_up(settings.pick(OBJECTS, 40))

    def load(reader: Any) -> Phases:
        target = dict.fromkeys(state)
        taken = _measured("load", lambda: dcp.load(target, storage_reader=reader))
        if target != state:
            raise AssertionError("the load did not give back what was saved")
        return taken

    return _readers(settings, "objects", state, load)


def _readers(settings: Settings, label: str, state: dict[str, Any], measure: Callable[[Any], Phases]) -> Rounds:
    """What torch's reader and streamxf's do with stock's checkpoint, and the latter with its own."""
    with TemporaryDirectory(dir=settings.folder) as folder:
        stock, own = Path(folder, "stock"), Path(folder, "own")
        STOCK.save(state, stock, 1)
        FLOATZIP.save(state, own, 1)
        sides: dict[str, Callable[[], Phases]] = {
            STOCK_READER: lambda: measure(dcp.FileSystemReader(stock)),
            SAME: lambda: measure(streamxf.FileSystemReader(stock)),
            OWN: lambda: measure(streamxf.FileSystemReader(own)),
        }
        return alternate(sides, settings.rounds, f"small items: {label}")


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


# -- tensors -----------------------------------------------------------------------------------------


def _tensors(settings: Settings) -> Rounds:
    state = gaussian_items(settings.pick(TENSORS, 50), ITEM_BYTES, torch.bfloat16)
    target = empty_target(state)

    def save_and_load(each: Run) -> Phases:
        return {**_measured("save", each.save), **_measured("load", each.load)}

    with TemporaryDirectory(dir=settings.folder) as folder:
        runs = {side.name: Run(side, state, target, Path(folder), 1) for side in (STOCK, FULL)}
        sides = {name: partial(save_and_load, each) for name, each in runs.items()}
        return alternate(sides, settings.rounds, "small items: tensors")


def _added(settings: Settings, shape: tuple[int, ...]) -> float:
    """Bytes of a tensor's container beyond its compressed elements."""
    state = gaussian_items(settings.pick(TENSORS, 50), ITEM_BYTES, torch.bfloat16)
    state = {f"{name:>16}": tensor.reshape(shape) for name, tensor in state.items()}
    with TemporaryDirectory(dir=settings.folder) as folder:
        chain = [streamxf.FloatZip(), streamxf.Encrypt(KEY)]
        dcp.save(state, storage_writer=streamxf.FileSystemWriter(folder, chain=chain))
        stored = sum(file.stat().st_size for file in Path(folder).glob("*.distcp"))
    return (stored - encoded_bytes(state, [streamxf.FloatZip()])) / len(state)


# -- metadata ----------------------------------------------------------------------------------------


def _metadata(settings: Settings) -> Rounds:
    state = {f"layers.{number}.weight": torch.zeros(1) for number in range(settings.pick(ITEMS, 400))}

    def read(reader: Any) -> Phases:
        gc.collect()
        found: list[Any] = []
        # and what planners are given, which streamxf's readers make when it is asked for
        taken = _measured("read_metadata", lambda: found.append(reader.read_metadata().state_dict_metadata))
        if len(found[0]) != len(state):
            raise AssertionError("the metadata has another number of items")
        return taken

    return _readers(settings, "metadata", state, read)
