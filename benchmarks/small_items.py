"""Ten thousand tensors of 4 KiB: what one item costs."""

from __future__ import annotations

import shutil
from functools import partial

import torch

from benchmarks.harness import Result, Settings, Spread, alternate, ratio
from benchmarks.states import CHECKSUM, FULL, STOCK, STOCK_ZSTD, save_and_load, stored_bytes

SIDES = (STOCK, STOCK_ZSTD, CHECKSUM, FULL)
ITEM_BYTES = 4096


def run(settings: Settings) -> Result:
    """Measure."""
    count = 50 if settings.smoke else 10_000
    generator = torch.Generator().manual_seed(1)
    elements = ITEM_BYTES // torch.bfloat16.itemsize
    values = torch.empty(count, elements).normal_(0, 0.02, generator=generator).to(torch.bfloat16)
    state = {f"layers.{number}.bias": row.clone() for number, row in enumerate(values)}
    folder = settings.folder / "small_items"
    seconds = alternate({side.name: partial(save_and_load, side, state, folder, 1) for side in SIDES}, settings.rounds)
    rows = []
    for side in SIDES:
        row: dict[str, object] = {"writer": side.name, "size": stored_bytes(side, folder) / (count * ITEM_BYTES)}
        for phase in ("save", "load"):
            own = seconds[side.name][phase]
            row[f"{phase}, s"] = Spread.of(own)
            row[f"{phase}, us per item"] = round(Spread.of(own).median / count * 1e6)
            row[f"{phase}, ratio"] = ratio(own, seconds[STOCK.name][phase])
        rows.append(row)
    shutil.rmtree(folder)
    note = (
        f"{count:,} bf16 tensors of 4 KiB, `thread_count=1`; medians of {settings.rounds} rounds (lowest-highest), "
        "ratios against stock DCP without an extension."
    )
    return Result("small_items", "Many small items", note, rows)
