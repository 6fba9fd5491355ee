"""`dcp.async_save`: the time that it takes from a training loop, and the memory that it needs. Linux only."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from benchmarks.child import in_child
from benchmarks.data.gaussian import TENSOR_MIB, gaussian_matrices
from benchmarks.dcp_sides import FULL, STOCK, DcpSide, State, empty_target
from benchmarks.harness import MIB, Phases, Rounds, Settings, alternate
from benchmarks.memory import need_proc
from benchmarks.plots import bars
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.spread import Spread, ratios

GOAL = 1.1
KINDS = tuple(kind.value for kind in AsyncCheckpointerType)
WIDTH = 384


def run(settings: Settings) -> Result:
    """Measure.

    Raises
    ------
    OSError
        If the system has no /proc to read a process's memory from.
    """
    need_proc()
    mib = settings.pick(settings.mib, 1)
    rows: list[Row] = []
    goals: list[Row] = []
    blocked: dict[str, dict[str, Spread]] = {}
    for kind in KINDS:
        options = {"folder": str(settings.folder / "async"), "mib": mib, "rounds": settings.rounds, "kind": kind}
        options["alone"] = settings.pick(0.5, 0.02)
        found = in_child("benchmarks.async_saves", "child", **options)
        for side, phases in found.items():
            spreads = {what: Spread.of(values) for what, values in phases.items()}
            rows.append({"saved by": kind, "writer": side, **spreads})
            blocked.setdefault(f"by {kind}", {})[side] = spreads["blocked, s"]
        ratio = ratios(found[FULL.name]["blocked, s"], found[STOCK.name]["blocked, s"])
        goals.append(goal_row(f"time blocked, by {kind}", STOCK.name, ratio, GOAL))
    note = (
        f"`dcp.async_save` of {mib:,} MiB of bf16 Gaussian weights in CPU memory, in matrices of {_tensor_mib(mib):g} "
        "MiB, while one thread goes on training a small model on the CPU. *Call* is the call itself, in which torch "
        "copies the state; *save* is how long the rest takes in the background. *Slowdown* is the time that training "
        "lost meanwhile: what the steps made until the save was over took beyond what they take without one, measured "
        f"before and after each save. *Blocked* is call and slowdown together. {settings.rounds} rounds, after one to "
        "warm up, in which the process that saves is started. *Memory* is the peak of both processes together, what "
        "they share counted once, beyond what the training held before: the staged copy and, by process, the whole "
        "process that saves. It is measured in a save of its own."
    )
    figure = bars("Time that an async save blocks training", "s", blocked)
    tables = [Table(goals, "Goals"), Table(rows, "All")]
    return Result("async_saves", "Saves in the background", note, tables, {"async_saves": figure})


def _tensor_mib(mib: int) -> float:
    return min(TENSOR_MIB[0], mib / 4)


# -- in the child ----------------------------------------------------------------------------------------------------


def child(folder: str, mib: int, rounds: int, kind: str, alone: float) -> Rounds:
    """Time both sides in turn, then measure the memory of each.

    Parameters
    ----------
    alone : float
        Seconds of training before and after each save, to compare with.
    """
    torch.set_num_threads(1)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # where the process that saves meets this one
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = gaussian_matrices(mib, _tensor_mib(mib), torch.bfloat16)
    sides = {side.name: _Saving(side, state, path / "checkpoint", kind, alone) for side in (STOCK, FULL)}
    try:
        found = alternate({name: saving.timed for name, saving in sides.items()}, rounds, f"by {kind}")
        for name, saving in sides.items():
            found[name]["memory, GiB"] = [saving.memory_added() / 1024 / MIB]
    finally:
        dist.destroy_process_group()
        shutil.rmtree(path)
    return found


class _Saving:
    """One side, which saves while a model is trained."""

    def __init__(self, side: DcpSide, state: State, path: Path, kind: str, alone: float) -> None:
        self._side, self._state, self._path, self._alone = side, state, path, alone
        self._kind = AsyncCheckpointerType(kind)
        self._step = _training()

    def _begin(self) -> Any:
        shutil.rmtree(self._path, ignore_errors=True)
        writer = self._side.writer(self._path, 1)
        return partial(dcp.async_save, self._state, storage_writer=writer, async_checkpointer_type=self._kind)

    def timed(self) -> Phases:
        """Seconds of one save."""
        save = self._begin()
        before = self._seconds_of_a_step()
        begin = time.perf_counter()
        future = save()
        returned = time.perf_counter()
        steps = 0
        while not future.done():
            self._step()
            steps += 1
        end = time.perf_counter()
        future.result()
        lost = end - returned - steps * (before + self._seconds_of_a_step()) / 2
        return {
            "call, s": returned - begin,
            "save, s": end - returned,
            "slowdown, s": lost,
            "blocked, s": returned - begin + lost,
        }

    def _seconds_of_a_step(self) -> float:
        steps, begin = 0, time.perf_counter()
        while (taken := time.perf_counter() - begin) < self._alone or not steps:
            self._step()
            steps += 1
        return taken / steps

    def _check(self) -> None:
        target = empty_target(self._state)
        self._side.load(target, self._path, 1)
        if not all(torch.equal(target[name], tensor) for name, tensor in self._state.items()):
            raise AssertionError(f"{self._side.name}: the load did not give back what was saved")

    def memory_added(self) -> int:
        """Bytes that this process and the one that saves hold at most, beyond what this one held before.

        Raises
        ------
        AssertionError
            If what was saved is not the state.
        """
        save = self._begin()
        ctypes.CDLL(None).malloc_trim(0)  # what earlier saves have freed
        before = peak = _proportional("self")
        future = save()
        while not future.done():
            children = [process.pid for process in multiprocessing.active_children()]
            peak = max(peak, _proportional("self") + sum(map(_proportional, children)))
        future.result()
        self._check()
        return peak - before


def _training() -> Callable[[], None]:
    """A step of training, of a few milliseconds."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, WIDTH)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _proportional(process: Any) -> int:
    """A process's memory in bytes; of what it shares with others, its part."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{process}/smaps_rollup has no Pss")
