"""Seconds to save and load by chain, thread count and dtype, against stock DCP."""

from __future__ import annotations

import shutil
from functools import partial

import torch

from benchmarks.harness import Result, Settings, Spread, alternate, ratio
from benchmarks.states import (
    CHECKSUM,
    ENCRYPT,
    FULL,
    MIB,
    STOCK,
    STOCK_ZSTD,
    ZSTD,
    gaussian_layers,
    save_and_load,
    stored_bytes,
)

SIDES = (STOCK, STOCK_ZSTD, ZSTD, FULL, CHECKSUM, ENCRYPT)


def run(settings: Settings) -> Result:
    """Measure."""
    mib = 2 if settings.smoke else settings.mib
    rows = [
        row
        for dtype in (torch.bfloat16, torch.float32)
        for threads in (1, 2)
        for row in _measure(settings, mib, dtype, threads)
    ]
    note = (
        f"{mib} MiB of Gaussian weights in 8 tensors. "
        f"Seconds are medians of {settings.rounds} rounds (lowest-highest); "
        "ratios are medians over the rounds, against stock DCP without an extension, same `thread_count`. "
        "GB/s counts raw bytes."
    )
    return Result("save_load", "Save and load", note, rows)


def _measure(settings: Settings, mib: int, dtype: torch.dtype, threads: int) -> list[dict[str, object]]:
    state = gaussian_layers(mib, dtype)
    folder = settings.folder / "save_load"
    seconds = alternate(
        {side.name: partial(save_and_load, side, state, folder, threads) for side in SIDES}, settings.rounds
    )
    raw = mib * MIB
    rows: list[dict[str, object]] = []
    for side in SIDES:
        row: dict[str, object] = {
            "dtype": str(dtype).removeprefix("torch."),
            "threads": threads,
            "writer": side.name,
            "size": stored_bytes(side, folder) / raw,
        }
        for phase in ("save", "load"):
            own = seconds[side.name][phase]
            row[f"{phase}, s"] = Spread.of(own)
            row[f"{phase}, GB/s"] = raw / Spread.of(own).median / 1e9
            row[f"{phase}, ratio"] = ratio(own, seconds[STOCK.name][phase])
        rows.append(row)
    shutil.rmtree(folder)
    return rows
