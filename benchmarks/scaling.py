"""How the cost of the full chain grows: with size, workers, block size and number of items."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import torch

from benchmarks.child import in_child
from benchmarks.data.gaussian import gaussian_items, gaussian_matrices
from benchmarks.dcp_sides import FULL, STOCK, DcpSide, Run, State, empty_target, raw_bytes
from benchmarks.harness import MIB, Rounds, Settings, alternate
from benchmarks.plots import lines
from benchmarks.result import Result, Row, Table
from benchmarks.spread import Spread, ratios, throughputs
from streamxf.engine import usable_cpus

KIB = 1024
TENSOR_MIB = 24  # and the state is a multiple of it
SIZES = (1 / 16, 1 / 4, 1, 4)  # of the headline state
BLOCK_SIZES = (256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB)
WORKERS = (1, 2, 4, 8)
COUNTS = (10, 100, 1_000, 5_000, 20_000)
ITEM_BYTES = 4096
PHASES = ("save", "load")


def run(settings: Settings) -> Result:
    """Measure."""
    few = min(settings.rounds, 3)  # for what takes long
    part = _multiple(settings.pick(settings.mib // 4, 1))
    sizes = [_multiple(settings.pick(settings.mib, 1) * share) for share in settings.pick(SIZES, SIZES[:1])]
    by_size = {mib: _pair(_state(mib), settings, few, f"{mib} MiB") for mib in sizes}
    workers = [cpus for cpus in settings.pick(WORKERS, WORKERS[:1]) if cpus <= usable_cpus()]
    by_workers = {cpus: _workers(cpus, part, settings) for cpus in workers}
    by_block = _blocks(part, settings)
    counts = [settings.pick(count, max(1, count // 200)) for count in COUNTS]
    by_count = {count: _pair(gaussian_items(count, ITEM_BYTES), settings, few, f"{count:,} items") for count in counts}
    tables = [
        Table([{"MiB": mib, **_columns(rounds, mib * MIB)} for mib, rounds in by_size.items()], "Size of the state"),
        Table(
            [{"workers": cpus, **_columns(rounds, part * MIB)} for cpus, rounds in by_workers.items()],
            f"Workers, {part} MiB",
        ),
        Table(_block_rows(by_block, part), f"Block size, {part} MiB"),
        Table([_count_row(count, rounds) for count, rounds in by_count.items()], "Number of items, 4 KiB each"),
    ]
    figures = {
        "scaling-size": _throughput_figure("Throughput by size of the state", "MiB", by_size),
        "scaling-block": _block_figure(by_block, part),
        "scaling-count": _count_figure(by_count),
    }
    note = (
        "The chain is FloatZip + Checksum + Encrypt, against stock DCP without an extension in the same rounds; bf16 "
        f"Gaussian weights in matrices of {TENSOR_MIB} MiB, `thread_count=1`, medians (lowest-highest) of "
        f"{settings.rounds} rounds, of {few} where size or number of items vary. Workers are the CPUs that the process "
        "may use, set before it starts. A state of 4 KiB items is small: it measures what one item costs."
    )
    return Result("scaling", "How cost grows", note, tables, figures)


def _multiple(mib: float) -> int:
    return TENSOR_MIB * max(1, round(mib / TENSOR_MIB))


def _state(mib: int) -> State:
    return gaussian_matrices(mib, TENSOR_MIB, torch.bfloat16)


# -- measuring -------------------------------------------------------------------------------------------------------


def _pair(state: State, settings: Settings, rounds: int, label: str) -> Rounds:
    folder = settings.folder / "scaling"
    target = empty_target(state)
    sides = {side.name: Run(side, state, target, folder, 1).save_and_load for side in (STOCK, FULL)}
    seconds = alternate(sides, rounds, f"scaling: {label}")
    shutil.rmtree(folder)
    return seconds


def _workers(cpus: int, mib: int, settings: Settings) -> Rounds:
    return in_child(
        "benchmarks.scaling", "child", cpus=cpus, folder=str(settings.folder), mib=mib, rounds=settings.rounds
    )


def child(folder: str, mib: int, rounds: int) -> Rounds:
    """The pair of sides, in a process whose CPUs were limited before it started any thread."""
    path = Path(mkdtemp(dir=folder))
    torch.set_num_threads(usable_cpus())
    try:
        settings = Settings(False, rounds, mib, path, path)
        return _pair(_state(mib), settings, rounds, f"{usable_cpus()} workers")
    finally:
        shutil.rmtree(path)


def _blocks(mib: int, settings: Settings) -> dict[DcpSide, tuple[Rounds, float]]:
    """All block sizes and stock in the same rounds; beside each side's rounds its size as a share of the raw one."""
    state = _state(mib)
    folder = settings.folder / "scaling"
    target = empty_target(state)
    sides = [STOCK, *(replace(FULL, name=f"{FULL.name}, {size // KIB} KiB", block_size=size) for size in BLOCK_SIZES)]
    runs = {side.name: Run(side, state, target, folder, 1) for side in sides}
    seconds = alternate({name: run.save_and_load for name, run in runs.items()}, settings.rounds, "scaling: block size")
    result = {
        side: ({side.name: seconds[side.name]}, runs[side.name].stored_bytes() / raw_bytes(state)) for side in sides
    }
    shutil.rmtree(folder)
    return result


# -- tables and figures ----------------------------------------------------------------------------------------------


def _columns(rounds: Rounds, size: int) -> Row:
    row: Row = {}
    for phase in PHASES:
        own, stock = rounds[FULL.name][phase], rounds[STOCK.name][phase]
        row[f"{phase}, s"] = Spread.of(own)
        row[f"{phase}, GB/s"] = throughputs(size, own).median
        row[f"{phase}, ratio to stock"] = ratios(own, stock)
    return row


def _block_rows(sides: dict[DcpSide, tuple[Rounds, float]], mib: int) -> list[Row]:
    (stock, _), *rest = sides.values()
    rows = []
    for side, (rounds, stored) in list(sides.items())[1:]:
        merged = {STOCK.name: stock[STOCK.name], FULL.name: rounds[side.name]}
        rows.append({"block, KiB": side.block_size // KIB, "size": stored, **_columns(merged, mib * MIB)})
    assert len(rows) == len(rest)
    return rows


def _count_row(count: int, rounds: Rounds) -> Row:
    row: Row = {"items": count}
    for phase in PHASES:
        own, stock = rounds[FULL.name][phase], rounds[STOCK.name][phase]
        row[f"{phase}, us per item"] = round(Spread.of(own).median / count * 1e6)
        row[f"{phase} by stock, us per item"] = round(Spread.of(stock).median / count * 1e6)
        row[f"{phase}, ratio to stock"] = ratios(own, stock)
    return row


def _throughput_figure(title: str, axis: str, by_size: dict[int, Rounds]):
    series = {
        f"{name}: {phase}": [throughputs(mib * MIB, rounds[name][phase]) for mib, rounds in by_size.items()]
        for name in (STOCK.name, FULL.name)
        for phase in PHASES
    }
    return lines(title, axis, "GB/s of raw data", list(by_size), series)


def _block_figure(sides: dict[DcpSide, tuple[Rounds, float]], mib: int):
    measured = {side: rounds[side.name] for side, (rounds, _) in sides.items() if side is not STOCK}
    series = {phase: [throughputs(mib * MIB, rounds[phase]) for rounds in measured.values()] for phase in PHASES}
    places = [side.block_size // KIB for side in measured]
    return lines(f"Throughput by block size, {FULL.name}", "block, KiB", "GB/s of raw data", places, series)


def _count_figure(by_count: dict[int, Rounds]):
    series = {
        f"{name}: {phase}": [
            Spread.of([each / count * 1e6 for each in rounds[name][phase]]) for count, rounds in by_count.items()
        ]
        for name in (STOCK.name, FULL.name)
        for phase in PHASES
    }
    return lines("Cost of an item of 4 KiB by their number", "items", "microseconds per item", list(by_count), series)
