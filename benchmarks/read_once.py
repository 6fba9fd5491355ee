"""Replicas loaded by several ranks, each by itself or read once, from storage whose speed all share. Linux only.

Each rank has its part of the speed, through the library of the benchmark `throttled`: what all ranks read alike takes
as long as if they shared the whole.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.distributed as dist

from benchmarks.child import in_child
from benchmarks.data.gaussian import gaussian_matrices
from benchmarks.dcp_sides import FULL, STOCK, DcpSide, Run, empty_target
from benchmarks.harness import MIB, Phases, Rounds, Settings, alternate
from benchmarks.result import Result, Row, Spread, Table, goal_row, ratios
from benchmarks.throttled import CACHE_MIB, MEMORY, built, loaded
from tests.dcp.process_groups import join_group, start_ranks

SPEED = 0.2e9
RANKS = 4
TENSOR_MIB = 24


ONCE = DcpSide("streamxf, plain, read once", False, list, read="once")
ONCE_FULL = replace(FULL, name=f"{FULL.name}, read once", read="once")
SIDES = (STOCK, FULL, ONCE, ONCE_FULL)
GOALS = {ONCE: 0.28, ONCE_FULL: 0.20}  # of stock's time


def run(settings: Settings) -> Result:
    """Measure; OSError if there is no C compiler, or no folder in memory."""
    mib, library = settings.pick(settings.mib, 1), built(settings.folder)
    size = min(TENSOR_MIB, mib / 4)
    arguments = {"library": str(library), "mib": mib, "size": size, "rounds": min(settings.rounds, 3)}
    rounds: Rounds = in_child("benchmarks.read_once", "child", preload=library, **arguments)
    note = (
        f"{mib} MiB of bf16 Gaussian weights in matrices of {size:g} MiB, all of which {RANKS} ranks over gloo load "
        f"from storage of {SPEED / 1e6:.0f} MB/s in all, as in the benchmark of such storage. Seconds are rank 0's, "
        f"until all ranks are done; medians (lowest-highest) of {arguments['rounds']} rounds."
    )
    seconds = {side.name: rounds[side.name]["load"] for side in SIDES}
    shares = {name: ratios(of, seconds[STOCK.name]) for name, of in seconds.items()}
    goals = [goal_row(side.name, STOCK.name, shares[side.name], goal) for side, goal in GOALS.items()]
    rows: list[Row] = [
        {"side": name, "seconds": Spread.of(of), "of stock's": shares[name]} for name, of in seconds.items()
    ]
    return Result("read_once", "Replicas read once", note, [Table(goals, "Goals"), Table(rows, "Loads")])


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
