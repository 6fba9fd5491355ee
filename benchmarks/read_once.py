"""Replicas loaded by several ranks, each by itself or read once, from storage whose speed all share. Linux only.

Each rank has its part of the speed, through the library of the benchmark `throttled`: what all ranks read alike takes
as long as if they shared the whole.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import torch.distributed as dist

import streamxf
from benchmarks.child import in_child
from benchmarks.data.gaussian import gaussian_matrices
from benchmarks.dcp_sides import FULL, KEY, STOCK, DcpSide, Run, empty_target
from benchmarks.harness import MIB, Phases, Rounds, Settings, alternate
from benchmarks.result import Result, Row, Spread, Table, goal_row, ratios
from benchmarks.throttled import CACHE_MIB, MEMORY, built, loaded
from tests.dcp.process_groups import join_group, start_ranks

SPEED = 0.2e9
RANKS = 4
TENSOR_MIB = 24


@dataclass(frozen=True)
class OnceSide(DcpSide):
    """DCP with a reader that reads once."""

    def reader(self, path: Path) -> Any:
        """The reader, for one load."""
        return streamxf.FileSystemReader(path, keys=KEY if self.keyed else None, read="once")


ONCE = OnceSide("streamxf, plain, read once", False, list)
ONCE_FULL = OnceSide(f"{FULL.name}, read once", False, FULL.extensions, keyed=True)
SIDES = (STOCK, FULL, ONCE, ONCE_FULL)
GOALS = {ONCE: 0.28, ONCE_FULL: 0.20}  # of stock's time


def run(settings: Settings) -> Result:
    """Measure; OSError if there is no C compiler, or no folder in memory."""
    if not MEMORY.is_dir():
        raise OSError(f"this benchmark writes to {MEMORY}, a file system in memory, which this system does not have")
    mib, library = settings.pick(settings.mib, 1), built(settings.folder)
    size = min(TENSOR_MIB, mib / 4)
    arguments = {"library": str(library), "mib": mib, "size": size, "rounds": min(settings.rounds, 3)}
    rounds: Rounds = in_child("benchmarks.read_once", "child", preload=library, **arguments)
    note = (
        f"{mib} MiB of bf16 Gaussian weights in matrices of {size:g} MiB, all of which {RANKS} ranks over gloo load "
        f"from storage of {SPEED / 1e6:.0f} MB/s in all, as in the benchmark of such storage. Seconds are rank 0's, "
        f"until all ranks are done; medians (lowest-highest) of {arguments['rounds']} rounds."
    )
    goals: list[Row] = []
    for side, goal in GOALS.items():
        goals.append(goal_row(side.name, STOCK.name, _ratio(rounds, side.name), goal))
    rows: list[Row] = [
        {"side": side.name, "seconds": Spread.of(rounds[side.name]["load"]), "of stock's": _ratio(rounds, side.name)}
        for side in SIDES
    ]
    return Result("read_once", "Replicas read once", note, [Table(goals, "Goals"), Table(rows, "Loads")])


def _ratio(rounds: Rounds, side: str) -> Spread:
    return ratios(rounds[side]["load"], rounds[STOCK.name]["load"])


# -- in the child, and in the ranks, which have the library between them and libc --------------------------------


def child(library: str, mib: int, size: float, rounds: int) -> Rounds:
    """What rank 0 measured."""
    folder = Path(mkdtemp(dir=MEMORY))
    try:
        start_ranks(_rank, (library, str(folder), mib, size, rounds), RANKS).join()
        found: Rounds = json.loads((folder / "rounds.json").read_text())
        return found
    finally:
        shutil.rmtree(folder)


def _rank(rank: int, library: str, folder: str, mib: int, size: float, rounds: int) -> None:
    join_group(rank, RANKS, f"{folder}/meeting")
    device, state = loaded(library), gaussian_matrices(mib, size, torch.bfloat16)
    target = empty_target(state)
    idle = partial(device.pace, folder.encode(), SPEED / RANKS, CACHE_MIB * MIB / RANKS)
    runs = {side.name: Run(side, state, target, Path(folder), 2) for side in SIDES}
    for each in runs.values():
        each.side.save(state, each.path, each.threads)
    found = alternate({name: partial(_load, each, idle) for name, each in runs.items()}, rounds, "read once")
    if rank == 0:
        Path(folder, "rounds.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _load(run: Run, idle: partial[None]) -> Phases:
    dist.barrier()
    idle()
    return {"load": run.load()}
