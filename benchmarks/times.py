"""The project's goals for time, each as a ratio within one run, at several sizes of tensors."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

import torch

from benchmarks.data.gaussian import gaussian_matrices, tensor_sizes
from benchmarks.dcp_sides import FULL, PHASES, STOCK, STOCK_ZSTD, DcpSide, Run, State, empty_target, full_chain
from benchmarks.harness import Phases, Rounds, Settings, alternate
from benchmarks.kernels import OneThread, kernels_alone, zipnn_one_thread
from benchmarks.result import WITH_GOAL, Result, Row, Spread, Table, ratios_by, seconds_by, worst_row
from streamxf import FloatZip
from streamxf.engine import usable_cpus

CHAIN = "FloatZip + Checksum + Encrypt"
SAVE_GOALS = {1: 0.50, 2: 0.80}  # by threads
LOAD_GOAL = 0.60
ZSTD_GOALS = {"save": 0.30, "load": 0.20}
ZIPNN_GOALS = {"compress": 5.0, "decompress": 4.0}
KERNELS_GOAL = 1.25
KERNELS, SUM = "kernels", "sum"
AGAINST_KERNELS = "its kernels alone / CPUs"

BySize = dict[str, Rounds]
"""What was measured, by the size of the tensors, of which ZStandard's goals are for the first."""


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(settings.mib, 1)
    part = min(mib, 256)
    files: BySize = {}  # saves, loads, and the kernels of a save
    memory: BySize = {}  # FloatZip and ZipNN, from memory to memory
    for size in tensor_sizes(settings):
        label = f"{size:g} MiB"
        state = gaussian_matrices(mib, size, torch.bfloat16)
        files[label] = _files(state, settings, label, zstd_threads=(1,) if files else (1, 2))
        small = dict(islice(state.items(), max(1, round(part / size))))
        del state
        memory[label] = _in_memory(small, settings, label)

    sizes = list(files)
    note = (
        f"States of about {mib:,} MiB of bf16 Gaussian weights, in matrices of {', '.join(sizes)} each. Ratios are "
        f"those of seconds within each of {settings.rounds} rounds; against ZipNN those of throughputs. A goal holds "
        f"for the worst of the sizes but {sizes[WITH_GOAL]}; against ZStandard it is that of {sizes[0]}. Saves fsync "
        "their files; loads fill tensors that exist and find the files in the page cache. `thread_count` (t) is that "
        "of both sides; torch's reader does not know it. Against ZipNN, with one thread each, "
        f"{part} MiB go from memory to memory; FloatZip in blocks of 1 MiB, ZipNN a tensor at a time. *Kernels alone* "
        "are the steps of the same save, run in one thread without a writer; their sum is divided by the "
        f"{usable_cpus()} CPUs, though no disk syncs faster for that."
    )
    tables = [Table(_goals(files, memory), "Goals")]
    tables += [Table(_ratio_rows(files, phase), f"Ratios of {phase}s by size of a tensor") for phase in PHASES]
    tables += [Table(_second_rows(files, phase), f"Seconds of {phase}s by size of a tensor") for phase in PHASES]
    tables.append(Table(_memory_rows(memory), "From memory to memory, ratios of throughputs"))
    tables.append(Table(_kernel_rows(files), "Seconds of the kernels of a save alone, in one thread"))
    return Result("times", "Times", note, tables)


# -- measuring -------------------------------------------------------------------------------------------------------


def _files(state: State, settings: Settings, label: str, zstd_threads: tuple[int, ...]) -> Rounds:
    folder, target = settings.folder / "times", empty_target(state)
    sides = {}
    for threads in SAVE_GOALS:
        for side in (STOCK, FULL):
            sides[_name(side, threads)] = Run(side, state, target, folder, threads).save_and_load
    for threads in zstd_threads:
        zstd = Run(STOCK_ZSTD, state, target, folder, threads)
        sides[_name(STOCK_ZSTD, threads)] = zstd.save_and_load if threads == 1 else zstd.save_only
    sides[KERNELS] = lambda: _kernels(state, folder / KERNELS)
    folder.mkdir()
    found = alternate(sides, settings.rounds, f"times: {label}")
    shutil.rmtree(folder)
    return found


def _kernels(state: State, file: Path) -> Phases:
    seconds = kernels_alone(state, full_chain(), file)
    return {**seconds, SUM: sum(seconds.values())}


def _in_memory(state: State, settings: Settings, label: str) -> Rounds:
    one_thread = OneThread(state, [FloatZip()])
    sides = {"FloatZip": one_thread.compress_and_decompress, "ZipNN": lambda: zipnn_one_thread(state)}
    return alternate(sides, settings.rounds, f"times: ZipNN, {label}")


def _name(side: DcpSide, threads: int) -> str:
    return f"{side.name}, t={threads}"


# -- ratios, by size ---------------------------------------------------------------------------------------------------


def _against(files: BySize, phase: str, threads: int, side: DcpSide) -> Row:
    return ratios_by(files, _name(FULL, threads), _name(side, threads), phase)


def _against_kernels(files: BySize) -> dict[str, Spread]:
    found = {}
    for size, rounds in files.items():
        pairs = zip(rounds[_name(FULL, 1)]["save"], rounds[KERNELS][SUM], strict=True)
        found[size] = Spread.of([seconds * usable_cpus() / kernels for seconds, kernels in pairs])
    return found


def _against_zipnn(memory: BySize, phase: str) -> Row:
    return ratios_by(memory, "ZipNN", "FloatZip", phase)  # seconds the other way round are the ratio of throughputs


# -- tables ----------------------------------------------------------------------------------------------------------


def _goals(files: BySize, memory: BySize) -> list[Row]:
    rows = []
    for phase in PHASES:
        for threads, goal in SAVE_GOALS.items():
            by_size = _against(files, phase, threads, STOCK)
            limit = goal if phase == "save" else LOAD_GOAL
            rows.append(worst_row(f"{phase}, {CHAIN}, t={threads}", STOCK.name, by_size, limit))
    for phase, goal in ZSTD_GOALS.items():
        for threads in SAVE_GOALS:
            size, ratio = next(iter(_against(files, phase, threads, STOCK_ZSTD).items()))
            if ratio:
                rows.append(worst_row(f"{phase}, {CHAIN}, t={threads}", STOCK_ZSTD.name, {size: ratio}, goal))
    rows.append(worst_row(f"save, {CHAIN}, t=1", AGAINST_KERNELS, _against_kernels(files), KERNELS_GOAL))
    for phase, goal in ZIPNN_GOALS.items():
        by_size = _against_zipnn(memory, phase)
        rows.append(worst_row(f"{phase}, FloatZip, throughput on one thread", "ZipNN", by_size, goal, at_least=True))
    return rows


def _ratio_rows(files: BySize, phase: str) -> list[Row]:
    found = {
        _name(side, threads): _against(files, phase, threads, side)
        for side in (STOCK, STOCK_ZSTD)
        for threads in SAVE_GOALS
    }
    if phase == "save":
        found[f"{AGAINST_KERNELS}, t=1"] = _against_kernels(files)
    return [{"streamxf against": name, **cells} for name, cells in found.items() if any(cells.values())]


def _second_rows(files: BySize, phase: str) -> list[Row]:
    names = [_name(side, threads) for side in (STOCK, STOCK_ZSTD, FULL) for threads in SAVE_GOALS]
    found = {name: seconds_by(files, name, phase) for name in names}
    return [{"side": name, **cells} for name, cells in found.items() if any(cells.values())]


def _memory_rows(memory: BySize) -> list[Row]:
    return [
        {"what": f"{phase}, FloatZip against ZipNN, one thread"} | _against_zipnn(memory, phase)
        for phase in ZIPNN_GOALS
    ]


def _kernel_rows(files: BySize) -> list[Row]:
    kernels = next(iter(files.values()))[KERNELS]
    return [{"kernel": name} | seconds_by(files, KERNELS, name) for name in kernels]
