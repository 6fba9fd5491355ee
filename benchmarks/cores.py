"""How saves and loads scale with the workers of one process and with the ranks of one host, in memory.

On a machine with two CPUs this shows what several ranks cost each other; the rest needs one with many.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.child import in_child
from benchmarks.data.gaussian import gaussian_matrices
from benchmarks.dcp_sides import FULL, PHASES, STOCK, Run, State, empty_target
from benchmarks.harness import Phases, Rounds, Settings, alternate, timed
from benchmarks.result import Result, Row, Spread, Table, ratios
from benchmarks.throttled import MEMORY
from streamxf.engine import usable_cpus
from tests.dcp.process_groups import join_group, start_ranks

RANKS = (1, 2, 4, 8)
TENSOR_MIB = 24
COPY = "copy"


def run(settings: Settings) -> Result:
    """Measure."""
    cpus, mib = usable_cpus(), settings.pick(settings.mib, 2)
    counts = settings.pick(sorted({cpus, *(1 << power for power in range(cpus.bit_length()))}), [1])
    arguments = {"mib": mib, "size": min(TENSOR_MIB, mib / 8), "rounds": settings.rounds}
    with _folder(settings) as folder:
        by_workers = {
            count: in_child("benchmarks.cores", "one_process", folder=folder, workers=count, **arguments)
            for count in counts
        }
        by_ranks = {
            count: in_child("benchmarks.cores", "one_host", folder=folder, ranks=count, **arguments)
            for count in settings.pick(RANKS, (2,))
        }
    note = (
        f"{mib:,} MiB of bf16 Gaussian weights in matrices of {arguments['size']:g} MiB, saved to memory and loaded "
        f"from it by {cpus} CPUs; medians (lowest-highest) of {settings.rounds} rounds. Of several ranks over gloo "
        "each has its part, and its share of the CPUs as workers; seconds are rank 0's, until all are done. A *copy* "
        "in memory, by as many threads as there are workers, reads and writes each byte once. The chain is that of "
        f"{FULL.name}."
    )
    tables = [Table(_worker_rows(by_workers), "Workers of one process"), Table(_rank_rows(by_ranks), "Ranks of a host")]
    return Result("cores", "Workers and ranks", note, tables)


@contextmanager
def _folder(settings: Settings) -> Iterator[str]:
    folder = mkdtemp(prefix="streamxf-bench-", dir=MEMORY if os.access(MEMORY, os.W_OK) else settings.folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _worker_rows(found: dict[int, Rounds]) -> list[Row]:
    rows: list[Row] = []
    for count, rounds in found.items():
        row: Row = {"workers": count}
        for phase in PHASES:
            row[f"{phase}, s"] = Spread.of(rounds[FULL.name][phase])
            row[f"{phase}, of stock's"] = ratios(rounds[FULL.name][phase], rounds[STOCK.name][phase])
        rows.append({**row, "copy, s": Spread.of(rounds[COPY][COPY])})
    return rows


def _rank_rows(found: dict[int, Rounds]) -> list[Row]:
    rows: list[Row] = []
    for count, rounds in found.items():
        for name, phases in rounds.items():
            row: Row = {"ranks": count, "side": name}
            for phase in PHASES:
                row[f"{phase}, s"] = Spread.of(phases[phase])
                row[f"{phase}, of stock's"] = ratios(phases[phase], rounds[STOCK.name][phase])
            rows.append(row)
    return rows


# -- in a child ------------------------------------------------------------------------------------------------------


def one_process(folder: str, workers: int, mib: int, size: float, rounds: int) -> Rounds:
    """Saves and loads of one process, and copies in memory."""
    os.environ["STREAMXF_WORKERS"] = str(workers)
    state = gaussian_matrices(mib, size, torch.bfloat16)
    target = empty_target(state)
    sides = {side.name: Run(side, state, target, Path(folder), 1).save_and_load for side in (STOCK, FULL)}
    return alternate(sides | {COPY: lambda: {COPY: _copied(state, target, workers)}}, rounds, f"cores: {workers}")


def _copied(state: State, target: State, threads: int) -> float:
    def copy(name: str) -> None:
        np.copyto(target[name].view(torch.int16).numpy(), state[name].view(torch.int16).numpy())

    with ThreadPoolExecutor(threads) as pool:
        return timed(lambda: list(pool.map(copy, state)))


def one_host(folder: str, ranks: int, mib: int, size: float, rounds: int) -> Rounds:
    """What rank 0 measured."""
    start_ranks(_rank, (folder, ranks, mib / ranks, min(size, mib / ranks), rounds), ranks).join()
    found: Rounds = json.loads(Path(folder, "rounds.json").read_text())
    return found


def _rank(rank: int, folder: str, ranks: int, mib: float, size: float, rounds: int) -> None:
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
    join_group(rank, ranks, f"{folder}/meeting of {ranks}")
    state = {f"{rank}.{name}": tensor for name, tensor in gaussian_matrices(mib, size, torch.bfloat16).items()}
    target = empty_target(state)
    runs = {side.name: Run(side, state, target, Path(folder), 1) for side in (STOCK, FULL)}
    sides = {name: partial(_together, each, rank) for name, each in runs.items()}
    found = alternate(sides, rounds, f"cores: rank {rank} of {ranks}")
    if rank == 0:
        Path(folder, "rounds.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _together(run: Run, rank: int) -> Phases:
    """Save and load with all ranks."""
    if rank == 0:
        shutil.rmtree(run.path, ignore_errors=True)
    dist.barrier()
    save = timed(partial(run.side.save, run.state, run.path, run.threads))
    dist.barrier()
    return {"save": save, "load": run.load()}
