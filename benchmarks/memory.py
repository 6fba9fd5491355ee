"""Peak memory that a save and a load add. Linux only.

Each measurement has a process of its own: the kernel's high-water mark (VmHWM) is reset once the state is there, so
what it shows afterwards above the memory in use before (VmRSS) is what the save or the load added.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import crc32c
import torch

from benchmarks.child import in_child
from benchmarks.dcp_sides import FULL, STOCK, DcpSide, State, full_chain
from benchmarks.harness import MIB, Settings, progress
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.spread import Spread

KIB = 1024
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
    """Measure.

    Raises
    ------
    OSError
        If the system has no /proc to read a process's memory from.
    """
    need_proc()
    mib = settings.pick(2 * settings.mib, 16)
    rows: list[Row] = []
    goals: list[Row] = []
    row: Row
    cases = [(layout, size, 0) for layout, sizes in settings.pick(CASES, SMOKE_CASES) for size in sizes]
    for layout, block_size, workers in [*cases, *((layout, size, MANY) for layout, size, _ in cases if size == MIB)]:
        row = {"state": layout, "writer": STOCK.name, "workers": workers or "one per CPU"}
        if block_size:
            row["writer"] = f"streamxf, blocks of {block_size // KIB} KiB"
        progress(f"memory: {', '.join(map(str, row.values()))}")
        folder = Path(mkdtemp(dir=settings.folder))
        try:
            given = {"folder": str(folder), "layout": layout, "mib": mib, "block_size": block_size, "workers": workers}
            added = {phase: in_child("benchmarks.memory", phase, **given) for phase in ("save", "load")}
        finally:
            shutil.rmtree(folder)
        peaks = {phase: Spread.of([size / MIB]) for phase, size in added.items()}
        rows.append({**row, **{f"{phase}, MiB added": peak for phase, peak in peaks.items()}})
        if block_size == DEFAULT_BLOCK:
            who = f", {workers} workers" if workers else ""
            goals += [
                goal_row(f"{phase}, {layout}{who}, MiB added", "size of the state", peak, GOAL_MIB)
                for phase, peak in peaks.items()
            ]
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
    """Save a state; the bytes that this added.

    Parameters
    ----------
    block_size : int
        In bytes; 0 stands for stock DCP.
    workers : int
        streamxf's; 0 for as many as it takes by itself.
    """
    side = _side(folder, block_size, workers)
    state = _state(layout, mib)
    return peak_added(lambda: side.save(state, Path(folder, "large"), 1))


def load(folder: str, layout: str, mib: int, block_size: int, workers: int) -> int:
    """Load what `save` saved into tensors that were emptied; the bytes that this added.

    Raises
    ------
    AssertionError
        If the load did not give back what was saved.
    """
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


def need_proc() -> None:
    """Raise OSError if the system has no /proc to read a process's memory from."""
    if not Path("/proc/self/clear_refs").exists():
        raise OSError("this benchmark reads the memory of a process from /proc, which this system does not have")


def peak_added(action: Any) -> int:
    """Bytes that the peak of an action is above the memory in use before."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = _status("VmRSS")
    action()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * KIB
    raise OSError(f"/proc/self/status has no {field}")
