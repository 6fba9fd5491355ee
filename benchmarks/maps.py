"""What a raw tensor of 1 GiB takes to be mapped, sliced and read, beside the file."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

import streamxf
from benchmarks.harness import MIB, Settings, progress, timed
from benchmarks.result import Result, Row, Table, goal_row
from benchmarks.spread import Spread

NAME = "weight"
OPEN_AND_MAP = "open the checkpoint and map the tensor"
GOAL_MS = 5


def run(settings: Settings) -> Result:
    """Measure."""
    mib = settings.pick(1024, 2)
    path = Path(mkdtemp(dir=settings.folder))
    try:
        progress("maps: a raw tensor")
        with streamxf.CheckpointWriter(path, "raw", overwrite=True) as writer:
            writer[NAME] = np.arange(mib * MIB // 4, dtype=np.float32).reshape(-1, 512)
        rows: list[Row] = [
            {"framework": framework, "operation": name, "milliseconds": spread}
            for framework in ("numpy", "torch")
            for name, spread in _measured(path, framework, settings.rounds).items()
        ]
    finally:
        shutil.rmtree(path)
    goals = [
        goal_row(f"{OPEN_AND_MAP}, {row['framework']}", "milliseconds", row["milliseconds"], GOAL_MS)
        for row in rows
        if row["operation"] == OPEN_AND_MAP
    ]
    note = f'A tensor of {mib:,} MiB of fp32 under `chain="raw"`, in the page cache. A slice has 4 rows of 512.'
    return Result("maps", "Mapped tensors", note, [Table(goals, "Goals", digits=2), Table(rows, "All", digits=2)])


def _measured(path: Path, framework: Any, rounds: int) -> dict[str, Spread]:
    """Milliseconds of each operation; the maps are kept to the end, as a user keeps them."""
    kept: list[Any] = []
    found: dict[str, list[float]] = {}

    def mapped() -> None:
        with streamxf.Checkpoint(path, framework=framework) as opened:
            kept.append(opened[NAME].mmap())

    with streamxf.Checkpoint(path, framework=framework) as checkpoint:
        handle: Any = checkpoint[NAME]
        operations = {
            OPEN_AND_MAP: mapped,
            "map the tensor": lambda: kept.append(handle.mmap()),
            "read a slice, with its CRC": lambda: handle[1000:1004],
            "read all, with all CRCs": handle.read,
        }
        for number in range(rounds + 1):
            for name, action in operations.items():
                milliseconds = 1000 * timed(action)
                if number:  # the first warms up
                    found.setdefault(name, []).append(milliseconds)
        if not (np.asarray(kept[-1]) == np.asarray(handle.read())).all():
            raise AssertionError("what was mapped is not what was read")
    return {name: Spread.of(each) for name, each in found.items()}
