"""An incremental save against a full one: bytes and seconds where nothing has changed, where some of the elements of
all tensors have, where half of the tensors has in one element, and all of them; and a load of differences.

Saves go into memory if the folder lies there: ``python -m benchmarks.run incremental --folder /dev/shm``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.data.gaussian import gaussian_matrices
from benchmarks.dcp_sides import FULL, KEY, State
from benchmarks.harness import Phases, Settings, alternate, timed
from benchmarks.result import Result, Row, Spread, Table, goal_row, ratios
from streamxf.checkpoint.memory import SaveMemory

THREADS = 2
FULL_SAVE, REMEMBERED = "full", "full, remembered"
FEW, COPIED = "2% of the elements changed", "the same, copies in memory"
SHARES = {"nothing changed": 0.0, "half of the tensors changed": 0.5, "all changed": 1.0}
BYTES_GOAL, TIME_GOAL = 0.0005, 0.15
LOAD_GOAL = 2.1
SAVE_GOALS = {FEW: 0.35, COPIED: 0.2}  # of a disk of 0.6 GB/s


def run(settings: Settings) -> Result:
    """Measure."""
    goals: list[Row] = []
    tables: list[Table] = []
    for size in settings.pick((24.0, 4.0), (0.5,)):
        _measure(size, settings, goals, tables)
        shutil.rmtree(settings.folder / "incremental")
    note = (
        f"Ratios of seconds within each of {settings.rounds} rounds, after one to warm up; the whole chain, "
        f"`thread_count={THREADS}`. Where it is not 2%, tensors have changed in their last element alone."
    )
    return Result("incremental", "Incremental saves", note, [Table(goals), *tables])


def _measure(size: float, settings: Settings, goals: list[Row], tables: list[Table]) -> None:
    mib, folder, memory = settings.pick(settings.mib, 2), settings.folder / "incremental", SaveMemory(increments=False)
    state, numbers, stored = gaussian_matrices(mib, size, torch.bfloat16), count(), dict[str, float]()
    copying, few = SaveMemory(increments=False, copies=None), {name: some_of(each) for name, each in state.items()}
    save(state, folder / "base", memory, None)
    save(state, folder / "copied", copying, None)

    def side(name: str, memory: SaveMemory | None, share: float | None) -> Callable[[], Phases]:
        def measure() -> Phases:
            path, base = folder / f"{next(numbers)}", folder / ("copied" if memory is copying else "base")
            changed = [name for at, name in enumerate(state) if at < len(state) * (share or 0.0)]
            where = few if name in (FEW, COPIED) else dict.fromkeys(changed, -1)  # all blocks but the last come first
            flip(state, where)
            taken = timed(lambda: save(state, path, memory, None if share is None else base))
            flip(state, where)
            stored[name] = sum(file.stat().st_size for file in path.iterdir() if file.stat().st_nlink == 1)
            shutil.rmtree(path)
            return {"save": taken}

        return measure

    # what is remembered of a full save would take the place of the base, so it has a memory of its own
    sides = {FULL_SAVE: side(FULL_SAVE, None, None), REMEMBERED: side(REMEMBERED, SaveMemory(), None)}
    sides |= {name: side(name, memory, share) for name, share in SHARES.items()}
    sides |= {FEW: side(FEW, memory, 0.0), COPIED: side(COPIED, copying, 0.0)}
    seconds = alternate(sides, settings.rounds, f"incremental: {size:g} MiB")
    raw = sum(tensor.nbytes for tensor in state.values())
    found = {name: ratios(seconds[name]["save"], seconds[FULL_SAVE]["save"]) for name in sides}
    frozen = next(iter(SHARES))
    what = f"{mib} MiB of bf16 in tensors of {size:g} MiB, {frozen}"
    goals.append(goal_row(f"{what}: bytes", "raw", Spread.of([stored[frozen] / raw]), BYTES_GOAL))
    goals.append(goal_row(f"{what}: seconds", "a full save", found[frozen], TIME_GOAL))
    what = f"{mib} MiB of bf16 in tensors of {size:g} MiB"
    goals += [goal_row(f"{what}, {name}: save", "a full one", found[name], most) for name, most in SAVE_GOALS.items()]
    flip(state, few)
    save(state, folder / "few", memory, folder / "base")
    flip(state, few)
    loads = {name: partial(_load, state, folder / name) for name in ("base", "few")}
    taken = alternate(loads, settings.rounds, f"incremental: {size:g} MiB, loads")
    loaded = ratios(taken["few"]["load"], taken["base"]["load"])
    goals.append(goal_row(f"{what}, {FEW}: load", "a full one", loaded, LOAD_GOAL))
    rows: list[Row] = [
        {"save": name, "bytes of raw": f"{stored[name] / raw:.5f}", "seconds of a full save": found[name]}
        for name in sides
    ]
    tables.append(Table(rows, f"Tensors of {size:g} MiB"))


def some_of(tensor: torch.Tensor) -> torch.Tensor:
    """The places of 2% of its elements."""
    return torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(1))[: tensor.numel() // 50]


def flip(state: State, where: Mapping[str, torch.Tensor | int]) -> None:
    """Change the lowest bit of some elements, or change it back."""
    for name, places in where.items():
        state[name].view(torch.int16).view(-1)[places] ^= 1


def _load(state: State, path: Path) -> Phases:
    into = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    reader = streamxf.FileSystemReader(path, keys=KEY)
    return {"load": timed(lambda: dcp.load(into, storage_reader=reader, no_dist=True))}


def save(state: State, path: Path, memory: SaveMemory | None, base: Path | None) -> None:
    how = {"thread_count": THREADS, "memory": memory, "base": base}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, chain=[*FULL.extensions()], **how), no_dist=True)  # type: ignore[arg-type]
