"""The project's goals for time, each as a ratio within one run, at several sizes of tensors."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from benchmarks.data.gaussian import gaussian_matrices, tensor_sizes
from benchmarks.dcp_sides import FULL, STOCK, STOCK_ZSTD, DcpSide, Run, State, empty_target, full_chain
from benchmarks.harness import Rounds, Settings, alternate
from benchmarks.kernels import OneThread, kernels_alone, zipnn_one_thread
from benchmarks.result import Result, Row, Spread, Table, ratios, worst_row
from streamxf import FloatZip
from streamxf.engine import usable_cpus

CHAIN = "FloatZip + Checksum + Encrypt"
SAVE_GOALS = {1: 0.50, 2: 0.80}
LOAD_GOAL = 0.60
ZSTD_GOALS = {"save": 0.30, "load": 0.20}
ZIPNN_GOALS = {"compress": 5.0, "decompress": 4.0}
KERNELS_GOAL = 1.25
REALISTIC = 0  # place among the sizes of the one at which ZStandard is compared
WITHOUT_GOAL = 3  # and of the one whose saves and loads are shown only
KERNELS = "kernels"


@dataclass(frozen=True)
class Measured:
    """Everything that was measured with tensors of one size, each by its sides."""

    files: Rounds  # saves, loads, and the kernels of a save
    zipnn: Rounds  # FloatZip and ZipNN, from memory to memory


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(settings.mib, 1)
    part = min(mib, 256)
    folder = settings.folder / "times"
    measured: dict[str, Measured] = {}
    for number, size in enumerate(tensor_sizes(settings)):
        label = f"{size:g} MiB"
        state = gaussian_matrices(mib, size, torch.bfloat16)
        files = _files(state, folder, settings.rounds, label, zstd_threads=(1, 2) if number == REALISTIC else (1,))
        shutil.rmtree(folder)
        small = dict(islice(state.items(), max(1, round(part / size))))
        del state
        measured[label] = Measured(files, _in_memory(small, settings.rounds, label))

    note = (
        f"States of about {mib:,} MiB of bf16 Gaussian weights, in matrices of {', '.join(measured)} each. Ratios are "
        f"those of seconds within each of {settings.rounds} rounds; against ZipNN those of throughputs. A goal holds "
        f"for the worst of the sizes but {list(measured)[WITHOUT_GOAL]}; against ZStandard it is that of "
        f"{list(measured)[REALISTIC]}. Saves fsync their files; loads fill tensors that exist and find the files in "
        "the page cache. `thread_count` (t) is that of both sides; torch's reader does not know it. Against ZipNN, "
        f"with one thread each, {part} MiB go from memory to memory; FloatZip in blocks of 1 MiB, ZipNN a tensor at a "
        "time. *Kernels alone* are the steps of the same save, run in one thread without a writer; their sum is "
        f"divided by the {usable_cpus()} CPUs, though no disk syncs faster for that."
    )
    tables = [Table(_goals(measured), "Goals")]
    for phase in ("save", "load"):
        tables.append(Table(_ratio_rows(measured, phase), f"Ratios of {phase}s by size of a tensor"))
    for phase in ("save", "load"):
        tables.append(Table(_second_rows(measured, phase), f"Seconds of {phase}s by size of a tensor"))
    tables.append(Table(_memory_rows(measured), "From memory to memory, ratios of throughputs"))
    tables.append(Table(_kernel_rows(measured), "Seconds of the kernels of a save alone, in one thread"))
    return Result("times", "Times", note, tables)


# -- measuring -------------------------------------------------------------------------------------------------------


def _files(state: State, folder: Path, rounds: int, label: str, zstd_threads: tuple[int, ...]) -> Rounds:
    target = empty_target(state)
    sides = {}
    for threads in SAVE_GOALS:
        for side in (STOCK, FULL):
            sides[_name(side, threads)] = Run(side, state, target, folder, threads).save_and_load
    for threads in zstd_threads:
        zstd = Run(STOCK_ZSTD, state, target, folder, threads)
        sides[_name(STOCK_ZSTD, threads)] = zstd.save_and_load if threads == 1 else zstd.save_only
    sides[KERNELS] = lambda: kernels_alone(state, full_chain(), folder / KERNELS)
    folder.mkdir()
    return alternate(sides, rounds, f"times: {label}")


def _in_memory(state: State, rounds: int, label: str) -> Rounds:
    one_thread = OneThread(state, [FloatZip()])
    zipnn = {"FloatZip": one_thread.compress_and_decompress, "ZipNN": lambda: zipnn_one_thread(state)}
    return alternate(zipnn, rounds, f"times: ZipNN, {label}")


def _name(side: DcpSide, threads: int) -> str:
    return f"{side.name}, t={threads}"


# -- ratios ----------------------------------------------------------------------------------------------------------


def _against(files: Rounds, phase: str, threads: int, side: DcpSide) -> Spread | None:
    """streamxf's seconds divided by another's; None where that was not measured."""
    other = files.get(_name(side, threads), {}).get(phase)
    return None if other is None else ratios(files[_name(FULL, threads)][phase], other)


def _against_kernels(files: Rounds) -> Spread:
    sums = [sum(parts) / usable_cpus() for parts in zip(*files[KERNELS].values(), strict=True)]
    return ratios(files[_name(FULL, 1)]["save"], sums)


def _against_zipnn(each: Measured, phase: str) -> Spread:
    # seconds the other way round are the ratio of throughputs
    return ratios(each.zipnn["ZipNN"][phase], each.zipnn["FloatZip"][phase])


# -- tables ----------------------------------------------------------------------------------------------------------


def _goals(measured: dict[str, Measured]) -> list[Row]:
    with_goal = {size: each for place, (size, each) in enumerate(measured.items()) if place != WITHOUT_GOAL}
    realistic = list(measured)[REALISTIC]
    rows = []
    for phase in ("save", "load"):
        for threads, goal in SAVE_GOALS.items():
            by_size = {size: _against(each.files, phase, threads, STOCK) for size, each in with_goal.items()}
            rows.append(
                worst_row(f"{phase}, {CHAIN}, t={threads}", STOCK.name, by_size, goal if phase == "save" else LOAD_GOAL)
            )
    for phase, goal in ZSTD_GOALS.items():
        for threads in SAVE_GOALS:
            if (ratio := _against(measured[realistic].files, phase, threads, STOCK_ZSTD)) is not None:
                rows.append(worst_row(f"{phase}, {CHAIN}, t={threads}", STOCK_ZSTD.name, {realistic: ratio}, goal))
    by_size = {size: _against_kernels(each.files) for size, each in with_goal.items()}
    rows.append(worst_row(f"save, {CHAIN}, t=1", "its kernels alone / CPUs", by_size, KERNELS_GOAL))
    for phase, goal in ZIPNN_GOALS.items():
        by_size = {size: _against_zipnn(each, phase) for size, each in with_goal.items()}
        rows.append(worst_row(f"{phase}, FloatZip, throughput on one thread", "ZipNN", by_size, goal, at_least=True))
    return rows


def _ratio_rows(measured: dict[str, Measured], phase: str) -> list[Row]:
    rows = []
    for side in (STOCK, STOCK_ZSTD):
        for threads in SAVE_GOALS:
            cells = {size: _against(each.files, phase, threads, side) for size, each in measured.items()}
            if any(cells.values()):
                texts = {size: "" if cell is None else cell for size, cell in cells.items()}
                rows.append({"streamxf against": _name(side, threads), **texts})
    if phase == "save":
        by_size = {size: _against_kernels(each.files) for size, each in measured.items()}
        rows.append({"streamxf against": "its kernels alone / CPUs, t=1", **by_size})
    return rows


def _second_rows(measured: dict[str, Measured], phase: str) -> list[Row]:
    rows = []
    for side in (STOCK, STOCK_ZSTD, FULL):
        for threads in SAVE_GOALS:
            name = _name(side, threads)
            taken = {size: each.files.get(name, {}).get(phase) for size, each in measured.items()}
            if any(taken.values()):
                cells = {size: Spread.of(seconds) if seconds else "" for size, seconds in taken.items()}
                rows.append({"side": name, **cells})
    return rows


def _memory_rows(measured: dict[str, Measured]) -> list[Row]:
    return [
        {"what": f"{phase}, FloatZip against ZipNN, one thread"}
        | {size: _against_zipnn(each, phase) for size, each in measured.items()}
        for phase in ZIPNN_GOALS
    ]


def _kernel_rows(measured: dict[str, Measured]) -> list[Row]:
    kernels = {size: each.files[KERNELS] for size, each in measured.items()}
    rows: list[Row] = [
        {"kernel": name} | {size: Spread.of(seconds[name]) for size, seconds in kernels.items()}
        for name in next(iter(kernels.values()))
    ]
    sums = {size: [sum(parts) for parts in zip(*seconds.values(), strict=True)] for size, seconds in kernels.items()}
    rows.append({"kernel": "sum"} | {size: Spread.of(total) for size, total in sums.items()})
    return rows
