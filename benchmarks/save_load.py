"""Seconds and sizes of saves and loads, beside everything else that stores tensors."""

from __future__ import annotations

import shutil

import torch

from benchmarks.data.gaussian import gaussian_matrices, tensor_sizes
from benchmarks.dcp_sides import FLOATZIP, FULL, STOCK, STOCK_ZSTD, Run, empty_target, raw_bytes
from benchmarks.harness import Rounds, Settings, alternate
from benchmarks.peers import PEERS
from benchmarks.result import Result, Row, Spread, Table, ratios

SIDES = (STOCK, STOCK_ZSTD, FLOATZIP, FULL, *PEERS)
DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
THREADS = 2
PHASES = ("save", "load")


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(max(1, settings.mib // 2), 1)
    tables = []
    for dtype, short in DTYPES.items():
        stored: dict[str, float] = {}
        rounds = {f"{size:g} MiB": _measure(settings, mib, size, dtype, stored) for size in tensor_sizes(settings)}
        tables.append(Table(_rows(next(iter(rounds.values())), stored), short))
        for phase in PHASES:
            tables.append(Table(_ratio_rows(rounds, phase), f"{short}: {phase}s against stock DCP by size of a tensor"))
    note = (
        f"About {mib} MiB of Gaussian weights in matrices of one size, seconds for those of "
        f"{tensor_sizes(settings)[0]:g} MiB; medians of {settings.rounds} rounds (lowest-highest). Ratios are those of "
        "each round, against stock DCP without an extension. *Size* is a share of the tensors' bytes. Every side "
        "fsyncs its files, and ends a load with the values in tensors that existed before; loads find the files in the "
        f"page cache. DCP sides have `thread_count={THREADS}`, ZipNN and blosc2 {THREADS} threads, and write one bare "
        "file without names, shapes or checksums; safetensors and `torch.save` use one thread, streamxf one for each "
        "usable CPU."
    )
    return Result("save_load", "Save and load, and the peers", note, tables)


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


def _rows(rounds: Rounds, stored: dict[str, float]) -> list[Row]:
    return [
        {"side": side, "size": share} | {f"{phase}, s": Spread.of(rounds[side][phase]) for phase in PHASES}
        for side, share in stored.items()
    ]


def _ratio_rows(rounds: dict[str, Rounds], phase: str) -> list[Row]:
    return [
        {"side": side.name} | {size: ratios(of[side.name][phase], of[STOCK.name][phase]) for size, of in rounds.items()}
        for side in SIDES
        if side is not STOCK
    ]
