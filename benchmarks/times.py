"""The project's goals for time, each as a ratio within one run."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from benchmarks.data.gaussian import gaussian_layers
from benchmarks.dcp_sides import FULL, STOCK, STOCK_ZSTD, Run, State, empty_target, full_chain
from benchmarks.harness import Rounds, Settings, alternate
from benchmarks.kernels import OneThread, kernels_alone, zipnn_one_thread
from benchmarks.plots import bars
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.spread import Spread, ratios
from streamxf import FloatZip
from streamxf.engine import usable_cpus

CHAIN = "FloatZip + Checksum + Encrypt"
STOCK_SAVE_GOALS = {1: 0.50, 2: 0.80}
ZSTD_SAVE_GOAL = 0.45
LOAD_GOAL, ZSTD_LOAD_GOAL = 1.00, 0.25
ZIPNN_GOALS = {"compress": 2.0, "decompress": 1.5}
KERNELS_GOAL = 1.25


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(settings.mib, 2)
    state = gaussian_layers(mib, torch.bfloat16)
    folder = settings.folder / "times"
    large = _saves_and_loads(state, folder, settings.rounds)
    alone = _against_zipnn(gaussian_layers(settings.pick(min(mib, 256), 2), torch.bfloat16), settings.rounds)
    kernels = _against_kernels(state, folder, settings.rounds)
    del state
    shutil.rmtree(folder)

    goals = [
        *_large_rows(large),
        *(_zipnn_row(alone, phase) for phase in ZIPNN_GOALS),
        _kernels_row(kernels),
    ]
    note = (
        f"Ratios of seconds within each round, of {settings.rounds} rounds after one to warm up; of throughputs in the "
        f"rows against ZipNN. The large state has {mib} MiB of bf16 Gaussian weights in 8 tensors. Saves fsync their "
        "files, loads fill tensors that exist and find the files in the page cache. `thread_count` (t) is that of both "
        "sides. Where one thread is compared, both run from memory to memory on one thread, FloatZip in blocks of "
        "1 MiB and ZipNN a tensor at a time. *Kernels alone* are the steps of the same save, run in one thread without "
        "a writer: codecs, container CRC, `write` and fsync; their sum is divided by the "
        f"{usable_cpus()} usable CPUs, though no disk syncs faster for that."
    )
    tables = [
        Table(goals, "Goals"),
        Table(_second_rows(large, mib), "Seconds"),
        Table(_kernel_rows(kernels), "Kernels of the save alone, in one thread"),
    ]
    return Result("times", "Times", note, tables, {"times": _figure(large, mib)})


# -- measuring -------------------------------------------------------------------------------------------------------


def _saves_and_loads(state: State, folder: Path, rounds: int) -> Rounds:
    target = empty_target(state)
    sides = {}
    for threads in STOCK_SAVE_GOALS:
        for side in (STOCK, STOCK_ZSTD, FULL):
            sides[_name(side.name, threads)] = Run(side, state, target, folder, threads).save_and_load
    return alternate(sides, rounds, "times: saves and loads")


def _against_zipnn(state: State, rounds: int) -> Rounds:
    one_thread = OneThread(state, [FloatZip()])
    sides = {"FloatZip": one_thread.compress_and_decompress, "ZipNN": lambda: zipnn_one_thread(state)}
    return alternate(sides, rounds, "times: one thread")


def _against_kernels(state: State, folder: Path, rounds: int) -> Rounds:
    save = Run(FULL, state, {}, folder, 1, "-kernels")
    file = folder / "kernels"
    sides = {"save": save.save_only, "kernels": lambda: kernels_alone(state, full_chain(), file)}
    return alternate(sides, rounds, "times: kernels")


# -- tables ----------------------------------------------------------------------------------------------------------


def _name(side: str, threads: int) -> str:
    return f"{side}, t={threads}"


def _large_rows(rounds: Rounds) -> list[Row]:
    rows = []
    for phase in ("save", "load"):
        for threads, save_goal in STOCK_SAVE_GOALS.items():
            own = rounds[_name(FULL.name, threads)][phase]
            goals = (save_goal, ZSTD_SAVE_GOAL) if phase == "save" else (LOAD_GOAL, ZSTD_LOAD_GOAL)
            for side, goal in zip((STOCK, STOCK_ZSTD), goals, strict=True):
                other = rounds[_name(side.name, threads)][phase]
                rows.append(goal_row(f"{phase}, {CHAIN}, t={threads}", side.name, ratios(own, other), goal))
    return rows


def _zipnn_row(rounds: Rounds, phase: str) -> Row:
    # seconds the other way round are the ratio of throughputs
    measured = ratios(rounds["ZipNN"][phase], rounds["FloatZip"][phase])
    return goal_row(
        f"{phase}, FloatZip, throughput on one thread", "ZipNN", measured, ZIPNN_GOALS[phase], at_least=True
    )


def _kernels_row(rounds: Rounds) -> Row:
    sums = [sum(parts) / usable_cpus() for parts in zip(*rounds["kernels"].values(), strict=True)]
    measured = ratios(rounds["save"]["save"], sums)
    return goal_row(f"save, {CHAIN}, t=1", "its kernels alone / CPUs", measured, KERNELS_GOAL)


def _second_rows(rounds: Rounds, mib: int) -> list[Row]:
    return [
        {
            "side": name,
            "save, s": Spread.of(phases["save"]),
            "save, GB/s": mib * 2**20 / 1e9 / Spread.of(phases["save"]).median,
            "load, s": Spread.of(phases["load"]),
            "load, GB/s": mib * 2**20 / 1e9 / Spread.of(phases["load"]).median,
        }
        for name, phases in rounds.items()
    ]


def _kernel_rows(rounds: Rounds) -> list[Row]:
    rows = [{"kernel": name, "seconds": Spread.of(seconds)} for name, seconds in rounds["kernels"].items()]
    total = [sum(parts) for parts in zip(*rounds["kernels"].values(), strict=True)]
    rows.append({"kernel": "sum", "seconds": Spread.of(total)})
    rows.append({"kernel": "the save itself, all cores", "seconds": Spread.of(rounds["save"]["save"])})
    return rows


def _figure(rounds: Rounds, mib: int):
    groups = {
        f"{phase}, t={threads}": {
            side.name: Spread.of(rounds[_name(side.name, threads)][phase]) for side in (STOCK, STOCK_ZSTD, FULL)
        }
        for phase in ("save", "load")
        for threads in STOCK_SAVE_GOALS
    }
    return bars(f"Save and load of {mib} MiB of bf16 weights", "seconds", groups)
