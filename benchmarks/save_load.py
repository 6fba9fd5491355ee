"""Seconds and sizes of saves and loads, beside everything else that stores tensors."""

from __future__ import annotations

import shutil
from typing import Any

import torch

from benchmarks.data.gaussian import gaussian_layers
from benchmarks.dcp_sides import FLOATZIP, FULL, STOCK, STOCK_ZSTD, Run, empty_target, raw_bytes
from benchmarks.harness import Settings, alternate
from benchmarks.peers import PEERS
from benchmarks.plots import bars
from benchmarks.result import Result, Row, Table
from benchmarks.spread import Spread, ratios

SIDES = (STOCK, STOCK_ZSTD, FLOATZIP, FULL, *PEERS)
DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
THREADS = 2


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(max(1, settings.mib // 2), 2)
    tables, figures = [], {}
    for dtype, short in DTYPES.items():
        rows = _measure(settings, mib, dtype, short)
        tables.append(Table(rows, short))
        groups = {phase: {str(row["side"]): row[f"{phase}, s"] for row in rows} for phase in ("save", "load")}
        figures[f"save_load-{short}"] = bars(
            f"Save and load of {mib} MiB, {short}, {THREADS} threads", "seconds", groups
        )
    note = (
        f"{mib} MiB of Gaussian weights in 8 tensors; medians of {settings.rounds} rounds (lowest-highest). Ratios are "
        "those of each round, against stock DCP without an extension. Every side writes and fsyncs its files, and "
        "ends a load with the values in tensors that existed before; loads find the files in the page cache. DCP "
        f"sides have `thread_count={THREADS}`, ZipNN and blosc2 {THREADS} threads; safetensors and `torch.save` use "
        "one. streamxf decides by itself how many threads to use: one for each usable CPU. `torch.load` and "
        "`safetensors.load_file` give new tensors, which are copied into those that exist. ZipNN works on a copy, "
        "because it changes what it is given, and blosc2 decompresses straight into its target; both write one bare "
        "file without names, shapes or checksums."
    )
    return Result("save_load", "Save and load, and the peers", note, tables, figures)


def _measure(settings: Settings, mib: int, dtype: torch.dtype, short: str) -> list[Row]:
    state = gaussian_layers(mib, dtype)
    target = empty_target(state)
    folder = settings.folder / "save_load"
    runs = {side.name: Run(side, state, target, folder, THREADS) for side in SIDES}
    seconds = alternate({name: run.save_and_load for name, run in runs.items()}, settings.rounds, f"save_load: {short}")
    rows = [_row(name, run, raw_bytes(state), seconds[name], seconds[STOCK.name]) for name, run in runs.items()]
    shutil.rmtree(folder)
    return rows


def _row(name: str, run: Run, raw: int, own: dict[str, list[float]], stock: dict[str, list[float]]) -> Row:
    row: dict[str, Any] = {"side": name, "size": run.stored_bytes() / raw}
    for phase in ("save", "load"):
        row[f"{phase}, s"] = Spread.of(own[phase])
        row[f"{phase}, GB/s"] = raw / 1e9 / Spread.of(own[phase]).median
        row[f"{phase}, ratio"] = ratios(own[phase], stock[phase])
    return row
