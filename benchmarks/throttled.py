"""Saves and loads on storage of a given speed, which pace.c imitates for all sides alike. Linux only."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import torch

from benchmarks.child import in_child
from benchmarks.data.gaussian import gaussian_matrices, tensor_sizes
from benchmarks.dcp_sides import FULL, PHASES, STOCK, STOCK_ZSTD, Run, empty_target, raw_bytes
from benchmarks.harness import MIB, Phases, Rounds, Settings, alternate
from benchmarks.result import WITH_GOAL, Result, Row, Table, ratios_by, seconds_by, worst_row

SPEEDS = {"200 MB/s": 0.2e9, "1 GB/s": 1e9, "3 GB/s": 3e9}
SIDES = (STOCK, STOCK_ZSTD, FULL)
THREADS = 2
CACHE_MIB = 32
SIZE = 0.663  # of bf16 under the whole chain, as a share of stock's
GOAL = round(1.05 * SIZE, 3)
MEMORY = Path("/dev/shm")

BySpeed = dict[str, dict[str, Rounds]]
"""By speed, then by size of a tensor; phases are ``save`` and ``load``, and the device's share of each."""
SHARE = "of the device's time"


def run(settings: Settings) -> Result:
    """Measure; OSError if there is no C compiler, or no folder in memory."""
    mib = settings.pick(max(1, settings.mib // 2), 1)
    rounds = min(settings.rounds, 3)
    library = built(settings.folder)
    arguments = {"library": str(library), "mib": mib, "sizes": tensor_sizes(settings), "rounds": rounds}
    measured: BySpeed = in_child("benchmarks.throttled", "child", preload=library, **arguments)
    note = (
        f"About {mib} MiB of bf16 Gaussian weights in matrices of one size, `thread_count={THREADS}`, medians "
        f"(lowest-highest) of {rounds} rounds. Files are in memory, and a library in front of libc makes every side's "
        "calls wait as long as a device of the given speed would: writes go to a cache of "
        f"{CACHE_MIB} MiB, which the device empties while the process works, and fsync waits until it is empty; reads "
        f"are fetched ahead by at most {CACHE_MIB} MiB. *Of the device's time* are seconds divided by the stored bytes "
        "over the speed: near 1 storage alone is the limit, and the ratio is that of the sizes, "
        f"{SIZE} for bf16; far above 1, the CPUs are. The goal is 5% above the ratio of the sizes, for the worst of "
        f"the tensors but those of {list(measured['1 GB/s'])[WITH_GOAL]}."
    )
    tables = [Table(_goals(measured), "Goals")]
    tables += [Table(_rows(measured, phase), f"Seconds of {phase}s by size of a tensor") for phase in PHASES]
    for phase in PHASES:
        tables.append(Table(_side_rows(measured, f"{phase}, {SHARE}"), f"{phase.capitalize()}s, {SHARE}"))
    return Result("throttled", "Where storage is the limit", note, tables)


def built(folder: Path) -> Path:
    """The library that paces, compiled into `folder`."""
    library = folder / "pace.so"
    source = Path(__file__).with_name("pace.c")
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return library


# -- in the child ----------------------------------------------------------------------------------------------------


def child(library: str, mib: int, sizes: list[float], rounds: int) -> BySpeed:
    """All sides at each speed, with tensors of each size, and the library between them and libc."""
    device, measured = loaded(library), dict[str, dict[str, Rounds]]()
    for size in sizes:
        for speed, seconds in _of_size(device, mib, size, rounds).items():
            measured.setdefault(speed, {})[f"{size:g} MiB"] = seconds
    return measured


def _of_size(device: ctypes.CDLL, mib: int, size: float, rounds: int) -> dict[str, Rounds]:
    state = gaussian_matrices(mib, size, torch.bfloat16)
    target = empty_target(state)
    folder = Path(mkdtemp(dir=MEMORY))
    try:
        runs = {side.name: Run(side, state, target, folder, THREADS) for side in SIDES}
        found = {}
        for speed, rate in SPEEDS.items():
            idle = partial(device.pace, bytes(folder), rate, CACHE_MIB * MIB)
            sides = {name: partial(_paced, run, device, idle, rate) for name, run in runs.items()}
            found[speed] = alternate(sides, rounds, f"throttled: {speed}, {size:g} MiB")
        return found
    finally:
        device.pace(bytes(folder), 0, 0)
        shutil.rmtree(folder)


def loaded(library: str) -> ctypes.CDLL:
    """The functions of the library that stands between this process and libc."""
    device = ctypes.CDLL(library)
    device.pace.argtypes = ctypes.c_char_p, ctypes.c_double, ctypes.c_double
    device.paced_written.restype = device.paced_read.restype = ctypes.c_int64
    return device


def _paced(run: Run, device: ctypes.CDLL, idle: partial[None], rate: float) -> Phases:
    """Seconds of a save and a load, each with a device that has nothing to do when it begins, and both as multiples of
    what the device takes for the stored bytes. AssertionError if bytes passed the device by.
    """
    idle()
    seconds = {"save": run.save()}
    if device.paced_written() < run.stored_bytes():
        raise AssertionError(f"{run.side.name} wrote {run.stored_bytes()} bytes, and {device.paced_written()} slowly")
    idle()
    seconds["load"] = run.load()
    if device.paced_read() < 0.5 * raw_bytes(run.state):
        raise AssertionError(f"{run.side.name} read {device.paced_read()} bytes slowly, which is not all of them")
    shares = {f"{phase}, {SHARE}": taken * rate / run.stored_bytes() for phase, taken in seconds.items()}
    return {**seconds, **shares}


# -- tables ---------------------------------------------------------------------------------------------------------


def _goals(measured: BySpeed) -> list[Row]:
    return [
        worst_row(
            f"{phase}, FloatZip + Checksum + Encrypt, {speed}",
            STOCK.name,
            ratios_by(by_size, FULL.name, STOCK.name, phase),
            GOAL,
        )
        for phase in PHASES
        for speed, by_size in measured.items()
    ]


def _side_rows(measured: BySpeed, phase: str) -> list[Row]:
    return [
        {"storage": speed, "side": side.name} | seconds_by(by_size, side.name, phase)
        for speed, by_size in measured.items()
        for side in SIDES
    ]


def _rows(measured: BySpeed, phase: str) -> list[Row]:
    """Of each speed the sides, and their ratio."""
    rows: list[Row] = []
    for speed, by_size in measured.items():
        rows += _side_rows({speed: by_size}, phase)
        ratio = ratios_by(by_size, FULL.name, STOCK.name, phase)
        rows.append({"storage": speed, "side": f"{FULL.name}, against {STOCK.name}", **ratio})
    return rows
