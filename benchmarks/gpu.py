"""Tensors of a GPU, through a checkpoint and back, and the host's memory that this takes.

Without a GPU it says so, and only ``--smoke`` runs, on the CPU. ``--mib`` is the size of the state of each size of
tensors: a third of the whole.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch

from benchmarks.child import in_child
from benchmarks.costs import peak_added
from benchmarks.data.gaussian import gaussian_matrices
from benchmarks.dcp_sides import FLOATZIP, FULL, PHASES, STOCK, DcpSide, Run, State, empty_target
from benchmarks.harness import MIB, Settings, alternate, progress
from benchmarks.result import Result, Row, Spread, Table, ratios
from streamxf.engine import usable_cpus

SIDES = (STOCK, FULL, FLOATZIP)
SIZES = (128, 24, 4)  # MiB of a tensor
THREADS = 8
MEMORY = Path("/dev/shm")
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def run(settings: Settings) -> Result | None:
    """Measure; None where there is nothing to measure."""
    if not CUDA and not settings.smoke:
        progress("gpu: there is no GPU here, so nothing was measured")
        return None
    folders = {"disk": settings.folder / "gpu"}
    if os.access(MEMORY, os.W_OK):
        folders["memory"] = Path(tempfile.mkdtemp(prefix="streamxf-bench-", dir=MEMORY))
    sizes, mib = settings.pick(SIZES, (1,)), settings.pick(settings.mib, 2)
    quick = folders.get("memory", folders["disk"])
    try:
        _warm(quick, mib)
        tables = [Table(_times(settings.rounds, mib, sizes, folders), "Seconds, and ratios to stock DCP")]
        tables.append(Table(_memory(quick, mib), "MiB that a save and a load add to the host", digits=0))
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
    where = torch.cuda.get_device_name(0) if CUDA else "the CPU in its place"
    note = (
        f"{where}; {usable_cpus()} usable CPUs. {len(sizes)} states of {mib:,} MiB of bf16 Gaussian weights in "
        f"tensors of {', '.join(map(str, sizes))} MiB, on the device before a save and after a load; {settings.rounds} "
        f"rounds. `thread_count={THREADS}`. Saves fsync; loads find files in page cache."
    )
    return Result("gpu", "GPU to checkpoint to GPU", note, tables)


# -- sides -----------------------------------------------------------------------------------------------------------


def _sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def _run(side: DcpSide, state: State, folder: Path) -> Run:
    """A side whose times include all that it has left to the device."""
    return Run(side, state, empty_target(state), folder, THREADS, wait=_sync)


def _state(mib: int, size: int) -> State:
    state = gaussian_matrices(mib, size, torch.bfloat16)
    return {name: tensor.to(DEVICE) for name, tensor in state.items()}


def _warm(folder: Path, mib: int) -> None:
    """What the first save and load pay for the process: imports, threads, torch's cache of pinned memory."""
    state = _state(min(mib, 256), min(mib, 8))
    for side in SIDES:
        _run(side, state, folder).save_and_load()


# -- tables ----------------------------------------------------------------------------------------------------------


def _times(rounds: int, mib: int, sizes: tuple[int, ...], folders: dict[str, Path]) -> list[Row]:
    rows: list[Row] = []
    for size in sizes:
        state = _state(mib, size)
        for place, folder in folders.items():
            sides = {side.name: _run(side, state, folder).save_and_load for side in SIDES}
            found = alternate(sides, rounds, f"gpu: {size} MiB, {place}", warm=False)
            for name, phases in found.items():
                row: Row = {"tensors": f"{size} MiB", "on": place, "side": name}
                for phase in PHASES:
                    row[f"{phase}, s"] = Spread.of(phases[phase])
                    row[f"{phase}, of stock"] = ratios(phases[phase], found[STOCK.name][phase])
                rows.append(row)
            shutil.rmtree(folder)
            folder.mkdir()
    return rows


def _memory(folder: Path, mib: int) -> list[Row]:
    rows: list[Row] = []
    for side in (STOCK, FULL):
        added = in_child("benchmarks.gpu", "memory", folder=str(folder), mib=mib, full=side is FULL)
        progress(f"gpu: memory: {side.name}: {added}")
        rows.append({"side": side.name} | {name: size / MIB for name, size in added.items()})
    return rows


def memory(folder: str, mib: int, full: bool) -> dict[str, float]:
    """Bytes that one save and one load add to this process, and of these those that are pinned at once; in a child."""
    side = FULL if full else STOCK
    small = {"small": torch.zeros(8, device=DEVICE)}
    _run(side, small, Path(folder, "small")).save_and_load()
    state = _state(mib, min(mib, 24))
    run = _run(side, state, Path(folder, "large"))
    added: dict[str, float] = {}
    for phase, action in (("save", run.save), ("load", run.load)):
        if CUDA:
            torch.cuda.reset_peak_host_memory_stats()
        added[f"{phase}, peak RSS"] = peak_added(action)
        stats = torch.cuda.host_memory_stats() if CUDA else {}
        added[f"{phase}, pinned"] = stats.get("active_bytes.peak", stats.get("allocated_bytes.peak", 0))
    return added
