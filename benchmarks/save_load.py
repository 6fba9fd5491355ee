"""Seconds and sizes of saves and loads, beside everything else that stores tensors."""

from __future__ import annotations

import torch

from benchmarks.data.gaussian import gaussian_matrices, tensor_sizes
from benchmarks.dcp_sides import FLOATZIP, FULL, STOCK, STOCK_ZSTD, compare
from benchmarks.harness import Rounds, Settings
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
        found = {}
        for size in tensor_sizes(settings):
            state, label = gaussian_matrices(mib, size, dtype), f"save_load: {dtype}, {size:g} MiB"
            found[f"{size:g} MiB"] = compare(
                SIDES, state, settings.folder / "save_load", THREADS, settings.rounds, label
            )
        tables.append(Table(_rows(*next(iter(found.values()))), short))
        rounds = {size: of for size, (of, _) in found.items()}
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
