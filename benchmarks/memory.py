"""Peak memory that a save and a load add. Linux only.

Each measurement has a process of its own: the kernel's high-water mark (VmHWM) is reset once the state is there, so
what it shows afterwards above the memory in use before (VmRSS) is what the save or the load added.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import crc32c
import torch

from benchmarks.child import in_child
from benchmarks.costs import need_proc, peak_added
from benchmarks.dcp_sides import FULL, STOCK, DcpSide, State, full_chain
from benchmarks.harness import MIB, Settings, progress
from benchmarks.result import Result, Row, Spread, Table, goal_row

GOAL_MIB = 96
DEFAULT_BLOCK = MIB
MANY = 96  # workers
CASES = (
    ("one tensor", (0, DEFAULT_BLOCK, 8 * MIB)),
    ("64 tensors", (0, DEFAULT_BLOCK)),
    ("view with gaps", (0, DEFAULT_BLOCK)),
)
SMOKE_CASES = (("view with gaps", (0, DEFAULT_BLOCK)),)


def run(settings: Settings) -> Result:
    """Measure."""
    need_proc()
    mib = settings.pick(2 * settings.mib, 16)
    rows: list[Row] = []
    goals: list[Row] = []
    cases = [(layout, size, 0) for layout, sizes in settings.pick(CASES, SMOKE_CASES) for size in sizes]
    for layout, block_size, workers in [*cases, *((layout, size, MANY) for layout, size, _ in cases if size == MIB)]:
        writer = f"streamxf, blocks of {block_size // 1024} KiB" if block_size else STOCK.name
        row = {"state": layout, "writer": writer, "workers": workers or "one per CPU"}
        progress(f"memory: {', '.join(map(str, row.values()))}")
        with TemporaryDirectory(dir=settings.folder) as folder:
            given = {"folder": folder, "layout": layout, "mib": mib, "block_size": block_size, "workers": workers}
            added = {phase: in_child("benchmarks.memory", phase, **given) for phase in ("save", "load")}
        peaks = {phase: Spread.of([size / MIB]) for phase, size in added.items()}
        rows.append(row | {f"{phase}, MiB added": peak for phase, peak in peaks.items()})
        if block_size == DEFAULT_BLOCK:
            who = f", {workers} workers" if workers else ""
            for phase, peak in peaks.items():
                goals.append(goal_row(f"{phase}, {layout}{who}, MiB added", "size of the state", peak, GOAL_MIB))
    note = (
        f"A bf16 state of {mib:,} MiB: as one tensor, as 64, and as a view with gaps into a larger one; "
        "`thread_count=1`, and as many workers as CPUs or as a large machine has. *Added* is the peak over the memory "
        "in use before, which a load's target tensors belong to; each save and each load has a process of its own. To "
        f"be kept with blocks of 1 MiB: {GOAL_MIB} MiB, whatever the state's size."
    )
    tables = [Table(goals, "Goals", digits=1), Table(rows, "All", digits=1)]
    return Result("memory", "Memory that a save and a load add", note, tables)


# -- in the child ----------------------------------------------------------------------------------------------------


def save(folder: str, layout: str, mib: int, block_size: int, workers: int) -> int:
    """Save a state; the bytes that this added. A block size of 0 stands for stock DCP, 0 workers for the default."""
    side = _side(folder, block_size, workers)
    state = _state(layout, mib)
    return peak_added(lambda: side.save(state, Path(folder, "large"), 1))


def load(folder: str, layout: str, mib: int, block_size: int, workers: int) -> int:
    """Load what `save` saved into tensors that were emptied; the bytes that this added."""
    side = _side(folder, block_size, workers)
    state = _state(layout, mib)
    before = _digest(state)
    for tensor in state.values():
        tensor.zero_()
    added = peak_added(lambda: side.load(state, Path(folder, "large"), 1))
    if _digest(state) != before:
        raise AssertionError(f"{side.name}: the load did not give back what was saved")
    return added


def _side(folder: str, block_size: int, workers: int) -> DcpSide:
    """What saves and loads; it has done so once already, for the sake of what it imports."""
    if workers:
        os.environ["STREAMXF_WORKERS"] = str(workers)
    side = DcpSide(FULL.name, False, full_chain, keyed=True, block_size=block_size) if block_size else STOCK
    small, path = {"small": torch.zeros(8)}, Path(mkdtemp(dir=folder), "small")
    side.save(small, path, 1)
    side.load(small, path, 1)
    return side


def _state(layout: str, mib: int) -> State:
    """Rows of Gaussian bf16, 256 KiB each; as a view they lie 288 KiB apart."""
    torch.manual_seed(0)
    rows, columns = mib * 4, 131072
    base = torch.empty(rows, columns + (16384 if layout == "view with gaps" else 0), dtype=torch.bfloat16)
    pattern = torch.empty(base.shape[1]).normal_(0, 0.02).bfloat16()
    for number in range(rows):  # every row is another rotation: none compresses better than Gaussian weights do
        base[number] = pattern.roll(number * 97)
    pieces = 64 if layout == "64 tensors" else 1
    return {f"weight.{n}": piece[:, :columns] for n, piece in enumerate(base.chunk(pieces))}


def _digest(state: State) -> list[int]:
    return [crc32c.crc32c(row.view(torch.uint8).numpy()) for tensor in state.values() for row in tensor]
