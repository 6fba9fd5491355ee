"""Seconds and sizes of saves and loads, beside everything else that stores tensors."""

from __future__ import annotations

import shutil

import torch

from benchmarks.data.gaussian import gaussian_matrices, tensor_sizes
from benchmarks.dcp_sides import FLOATZIP, FULL, STOCK, STOCK_ZSTD, Run, empty_target, raw_bytes
from benchmarks.harness import Rounds, Settings, alternate
from benchmarks.peers import PEERS
from benchmarks.plots import bars
from benchmarks.result import Result, Row, Table
from benchmarks.spread import Spread, ratios

SIDES = (STOCK, STOCK_ZSTD, FLOATZIP, FULL, *PEERS)
DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
THREADS = 2
PHASES = ("save", "load")


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(max(1, settings.mib // 4), 1)
    tables, figures = [], {}
    for dtype, short in DTYPES.items():
        stored: dict[str, float] = {}
        rounds = {f"{size:g} MiB": _measure(settings, mib, size, dtype, stored) for size in tensor_sizes(settings)}
        for phase in PHASES:
            tables.append(Table(_rows(rounds, phase, stored), f"{short}: seconds of {phase}s by size of a tensor"))
        for phase in PHASES:
            tables.append(Table(_ratio_rows(rounds, phase), f"{short}: {phase}s against stock DCP by size of a tensor"))
        size = next(iter(rounds))
        groups = {phase: {side: Spread.of(phases[phase]) for side, phases in rounds[size].items()} for phase in PHASES}
        title = f"Save and load of {mib} MiB in tensors of {size}, {short}, {THREADS} threads"
        figures[f"save_load-{short}"] = bars(title, "seconds", groups)
    note = (
        f"About {mib} MiB of Gaussian weights in matrices of one size; medians of {settings.rounds} rounds "
        "(lowest-highest). Ratios are those of each round, against stock DCP without an extension. *Stored* is a share "
        "of the tensors' bytes. Every side writes and fsyncs its files, and "
        "ends a load with the values in tensors that existed before; loads find the files in the page cache. DCP "
        f"sides have `thread_count={THREADS}`, ZipNN and blosc2 {THREADS} threads; safetensors and `torch.save` use "
        "one. streamxf decides by itself how many threads to use: one for each usable CPU. `torch.load` and "
        "`safetensors.load_file` give new tensors, which are copied into those that exist. ZipNN works on a copy, "
        "because it changes what it is given, and blosc2 decompresses straight into its target; both write one bare "
        "file without names, shapes or checksums."
    )
    return Result("save_load", "Save and load, and the peers", note, tables, figures)


def _measure(settings: Settings, mib: int, tensor_mib: float, dtype: torch.dtype, stored: dict[str, float]) -> Rounds:
    """Rounds of all sides; `stored` gets what share of its size each side stores of the first state."""
    state = gaussian_matrices(mib, tensor_mib, dtype)
    target = empty_target(state)
    folder = settings.folder / "save_load"
    runs = {side.name: Run(side, state, target, folder, THREADS) for side in SIDES}
    sides = {name: run.save_and_load for name, run in runs.items()}
    rounds = alternate(sides, settings.rounds, f"save_load: {dtype}, {tensor_mib:g} MiB")
    for name, run in runs.items():
        stored.setdefault(name, run.stored_bytes() / raw_bytes(state))
    shutil.rmtree(folder)
    return rounds


def _rows(rounds: dict[str, Rounds], phase: str, stored: dict[str, float]) -> list[Row]:
    return [
        {"side": side, "stored": share} | {size: Spread.of(of[side][phase]) for size, of in rounds.items()}
        for side, share in stored.items()
    ]


def _ratio_rows(rounds: dict[str, Rounds], phase: str) -> list[Row]:
    return [
        {"side": side.name} | {size: ratios(of[side.name][phase], of[STOCK.name][phase]) for size, of in rounds.items()}
        for side in SIDES
        if side is not STOCK
    ]
