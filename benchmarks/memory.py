"""Peak memory that a save and a load add. Linux only.

Each measurement has a process of its own: the kernel's high-water mark (VmHWM) is reset once the state is there, so
what it shows afterwards above the memory in use before (VmRSS) is what the save or the load added.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import crc32c
import torch

from benchmarks.child import in_child
from benchmarks.dcp_sides import FULL, STOCK, DcpSide, State, full_chain
from benchmarks.harness import MIB, Settings, progress
from benchmarks.plots import bars
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.spread import Spread

KIB = 1024
GOAL_MIB = 96
DEFAULT_BLOCK = MIB
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
    for layout, block_sizes in settings.pick(CASES, SMOKE_CASES):
        for block_size in block_sizes:
            progress(f"memory: {layout}, {f'blocks of {block_size // KIB} KiB' if block_size else 'stock'}")
            added = in_child(
                "benchmarks.memory",
                "child",
                folder=str(settings.folder),
                layout=layout,
                mib=mib,
                block_size=block_size,
            )
            peaks = {phase: Spread.of([size / MIB]) for phase, size in added.items()}
            rows.append(_row(layout, block_size, peaks))
            if block_size == DEFAULT_BLOCK:
                goals += [
                    goal_row(f"{phase}, {layout}, MiB added", "size of the state", peak, GOAL_MIB)
                    for phase, peak in peaks.items()
                ]
    note = (
        f"A bf16 state of {mib:,} MiB: as one tensor, as 64, and as a view with gaps into a larger one; "
        "`thread_count=1`. *Added* is the peak over the memory in use before, which a load's target tensors belong "
        f"to; each row is one process. To be kept with blocks of 1 MiB: {GOAL_MIB} MiB, whatever the state's size."
    )
    groups = {
        f"{row['state']}, {row['writer']}": {phase: row[f"{phase}, MiB added"] for phase in ("save", "load")}
        for row in rows
        if row["writer"] != "stock DCP"
    }
    figure = bars("Peak memory that streamxf adds", "MiB", groups, (GOAL_MIB, "goal"))
    tables = [Table(goals, "Goals", digits=1), Table(rows, "All", digits=1)]
    return Result("memory", "Memory that a save and a load add", note, tables, {"memory": figure})


def _row(layout: str, block_size: int, peaks: dict[str, Spread]) -> Row:
    return {
        "state": layout,
        "writer": f"streamxf, blocks of {block_size // KIB} KiB" if block_size else STOCK.name,
        **{f"{phase}, MiB added": peak for phase, peak in peaks.items()},
    }


# -- in the child ----------------------------------------------------------------------------------------------------


def child(folder: str, layout: str, mib: int, block_size: int) -> dict[str, int]:
    """Save a state and load it again into the same tensors, which were emptied; the bytes that each of both added.

    Parameters
    ----------
    block_size : int
        In bytes; 0 stands for stock DCP.

    Raises
    ------
    AssertionError
        If the load did not give back what was saved.
    """
    side = DcpSide(FULL.name, False, full_chain, keyed=True, block_size=block_size) if block_size else STOCK
    path = Path(mkdtemp(dir=folder))
    try:
        small = {"small": torch.zeros(8)}
        side.save(small, path / "small", 1)  # imports and threads
        side.load(small, path / "small", 1)
        state = _state(layout, mib)
        before = _digest(state)
        saving = peak_added(lambda: side.save(state, path / "large", 1))
        for tensor in state.values():
            tensor.zero_()
        loading = peak_added(lambda: side.load(state, path / "large", 1))
        if _digest(state) != before:
            raise AssertionError(f"{side.name}: the load did not give back what was saved")
        return {"save": saving, "load": loading}
    finally:
        shutil.rmtree(path)


def _state(layout: str, mib: int) -> State:
    """Rows of Gaussian bf16, 256 KiB each; as a view they lie 288 KiB apart."""
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
