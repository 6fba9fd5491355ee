"""Seconds and sizes of saves and loads, beside everything else that stores tensors."""

from __future__ import annotations

import torch

from benchmarks.data.gaussian import gaussian_matrices, tensor_sizes
from benchmarks.dcp_sides import FLOATZIP, FULL, PHASES, STOCK, STOCK_ZSTD, compare
from benchmarks.harness import Settings
from benchmarks.peers import PEERS
from benchmarks.result import Result, Spread, Table, ratios_by

SIDES = (STOCK, STOCK_ZSTD, FLOATZIP, FULL, *PEERS)
DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
THREADS = 2


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(max(1, settings.mib // 2), 1)
    tables = []
    for dtype, short in DTYPES.items():
        found, shares = {}, []
        for size in tensor_sizes(settings):
            label = f"{size:g} MiB"
            state = gaussian_matrices(mib, size, dtype)
            found[label], stored = compare(SIDES, state, settings, THREADS, f"save_load: {short}, {label}")
            shares.append(stored)
        seconds = next(iter(found.values()))
        rows = [
            {"side": side, "size": share} | {f"{phase}, s": Spread.of(seconds[side][phase]) for phase in PHASES}
            for side, share in shares[0].items()
        ]
        tables.append(Table(rows, short))
        for phase in PHASES:
            rows = [{"side": side.name} | ratios_by(found, side.name, STOCK.name, phase) for side in SIDES[1:]]
            tables.append(Table(rows, f"{short}: {phase}s against stock DCP by size of a tensor"))
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
