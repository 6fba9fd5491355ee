"""An incremental save against a full one: bytes and seconds where nothing has changed, where half has, and all.

Saves go into memory if the folder lies there: ``python -m benchmarks.run incremental --folder /dev/shm``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.data.gaussian import gaussian_matrices
from benchmarks.dcp_sides import FULL, State
from benchmarks.harness import Phases, Settings, alternate, timed
from benchmarks.result import Result, Row, Spread, Table, goal_row, ratios
from streamxf.checkpoint.memory import SaveMemory

THREADS = 2
FULL_SAVE, REMEMBERED = "full", "full, remembered"
SHARES = {"nothing changed": 0.0, "half of the tensors changed": 0.5, "all changed": 1.0}
BYTES_GOAL, TIME_GOAL = 0.0005, 0.15


def run(settings: Settings) -> Result:
    """Measure."""
    goals: list[Row] = []
    tables: list[Table] = []
    for size in settings.pick((24.0, 4.0), (0.5,)):
        _measure(size, settings, goals, tables)
        shutil.rmtree(settings.folder / "incremental")
    note = (
        f"Ratios of seconds within each of {settings.rounds} rounds, after one to warm up; the whole chain, "
        f"`thread_count={THREADS}`. Where tensors have changed, it is in their last element alone."
    )
    return Result("incremental", "Incremental saves", note, [Table(goals), *tables])


def _measure(size: float, settings: Settings, goals: list[Row], tables: list[Table]) -> None:
    mib, folder, memory = settings.pick(settings.mib, 2), settings.folder / "incremental", SaveMemory(increments=False)
    state, numbers, stored = gaussian_matrices(mib, size, torch.bfloat16), count(), dict[str, float]()
    save(state, folder / "base", memory, None)

    def side(name: str, memory: SaveMemory | None, share: float | None) -> Callable[[], Phases]:
        def measure() -> Phases:
            path = folder / f"{next(numbers)}"
            changed = [tensor for at, tensor in enumerate(state.values()) if at < len(state) * (share or 0.0)]
            flip(changed)  # of which all blocks but the last are compared first
            taken = timed(lambda: save(state, path, memory, None if share is None else folder / "base"))
            flip(changed)
            stored[name] = sum(file.stat().st_size for file in path.iterdir() if file.stat().st_nlink == 1)
            shutil.rmtree(path)
            return {"save": taken}

        return measure

    # what is remembered of a full save would take the place of the base, so it has a memory of its own
    sides = {FULL_SAVE: side(FULL_SAVE, None, None), REMEMBERED: side(REMEMBERED, SaveMemory(), None)}
    sides |= {name: side(name, memory, share) for name, share in SHARES.items()}
    seconds = alternate(sides, settings.rounds, f"incremental: {size:g} MiB")
    raw = sum(tensor.nbytes for tensor in state.values())
    found = {name: ratios(seconds[name]["save"], seconds[FULL_SAVE]["save"]) for name in sides}
    frozen = next(iter(SHARES))
    what = f"{mib} MiB of bf16 in tensors of {size:g} MiB, {frozen}"
    goals.append(goal_row(f"{what}: bytes", "raw", Spread.of([stored[frozen] / raw]), BYTES_GOAL))
    goals.append(goal_row(f"{what}: seconds", "a full save", found[frozen], TIME_GOAL))
    rows: list[Row] = [
        {"save": name, "bytes of raw": f"{stored[name] / raw:.5f}", "seconds of a full save": found[name]}
        for name in sides
    ]
    tables.append(Table(rows, f"Tensors of {size:g} MiB"))


def flip(tensors: list[torch.Tensor]) -> None:
    """Change a bit of the last element of each, or change it back."""
    for tensor in tensors:
        tensor.view(torch.int16)[-1, -1] ^= 1


def save(state: State, path: Path, memory: SaveMemory | None, base: Path | None) -> None:
    how = {"thread_count": THREADS, "memory": memory, "base": base}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, chain=[*FULL.extensions()], **how), no_dist=True)  # type: ignore[arg-type]
