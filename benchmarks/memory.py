"""Peak memory that a save adds, by the size of its blocks, for one large tensor and for a view with gaps.

Each save runs in a process of its own: the kernel's high-water mark (VmHWM) is reset once the tensor is there, so what
it shows afterwards above the memory in use before (VmRSS) is what the save added. Linux only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.harness import Result, Settings
from benchmarks.states import FULL, MIB, STOCK, Side

KIB = 1024
LIMIT_MIB = 96
LAYOUTS = ("contiguous", "view")


def run(settings: Settings) -> Result:
    """Measure."""
    if not Path("/proc/self/clear_refs").exists():
        raise OSError("this benchmark reads the memory of a process from /proc, which this system does not have")
    mib = 16 if settings.smoke else 4096
    block_sizes = (MIB,) if settings.smoke else (64 * KIB, MIB, 16 * MIB)
    rows = []
    for layout in LAYOUTS:
        rows.append(_row(layout, mib, "stock", 0, _in_child(settings.folder, layout, mib, 0)))
        for block_size in block_sizes:
            rows.append(_row(layout, mib, FULL.name, block_size, _in_child(settings.folder, layout, mib, block_size)))
    note = (
        f"One bf16 tensor of {mib} MiB, and a view of {mib} MiB with gaps into a larger one; `thread_count=1`. "
        "*Added* is the peak of the save over the memory in use before it. streamxf holds at most `2 x workers + 2` "
        "blocks and 64 MiB of them in flight, each with what it is encoded into. "
        f"To be kept with blocks of 1 MiB: {LIMIT_MIB} MiB, whatever the tensor's size."
    )
    return Result("memory", "Memory that a save adds", note, rows)


def _row(layout: str, mib: int, writer: str, block_size: int, added: int) -> dict[str, Any]:
    return {
        "tensor": layout,
        "writer": writer,
        "block, KiB": str(block_size // KIB or "-"),
        "added, MiB": f"{added / MIB:.1f}",
        "share of the tensor": f"{added / (mib * MIB):.1%}",
    }


def _in_child(folder: Path, layout: str, mib: int, block_size: int) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", str(folder), layout, str(mib), str(block_size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parent.parent)
    return int(json.loads(done.stdout)["added"])


# -- in the child ----------------------------------------------------------------------------------------------------


def child(folder: str, layout: str, mib: int, block_size: int) -> None:
    """Save one tensor and print the bytes that it added."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    tensor = _tensor(layout, mib)
    path = Path(mkdtemp(dir=folder))
    try:
        _save(FULL if block_size else STOCK, {"small": torch.zeros(8)}, path / "first", block_size)  # imports, threads
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before = _status("VmRSS")
        _save(FULL if block_size else STOCK, {"weight": tensor}, path / "second", block_size)
        print(json.dumps({"added": _status("VmHWM") - before}))
    finally:
        shutil.rmtree(path)


def _save(side: Side, state: dict[str, torch.Tensor], path: Path, block_size: int) -> None:
    if block_size:
        writer = streamxf.FileSystemWriter(path, _extensions=list(side.extensions()), block_size=block_size)
    else:
        writer = side.writer(path, 1)
    dcp.save(state, storage_writer=writer)


def _tensor(layout: str, mib: int) -> torch.Tensor:
    """Gaussian bf16 rows of 256 KiB; as a view they lie 288 KiB apart."""
    rows, columns = mib * 4, 131072
    base = torch.empty(rows, columns + (16384 if layout == "view" else 0), dtype=torch.bfloat16)
    pattern = torch.empty(base.shape[1]).normal_(0, 0.02)
    for number in range(rows):  # every row is another rotation: none compresses better than Gaussian weights do
        base[number] = pattern.roll(number * 97)
    return base[:, :columns]


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * KIB
    raise OSError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
