"""Data to measure with, and the writers and readers that are compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard as StockZStandard

import streamxf
from benchmarks.harness import Phases, timed

MIB = 2**20
State = dict[str, torch.Tensor]

KEY = streamxf.Key(bytes(range(32)))  # data without value, so that runs are alike


def gaussian_layers(mib: int, dtype: torch.dtype, layers: int = 8) -> State:
    """Layers of Gaussian weights, `mib` MiB together: to a compressor they look as trained weights do."""
    generator = torch.Generator().manual_seed(1)
    elements = mib * MIB // dtype.itemsize // layers
    shape = (elements // 1024, 1024) if elements >= 1024 else (elements,)
    return {
        f"layers.{number}.weight": torch.empty(shape).normal_(0, 0.02, generator=generator).to(dtype)
        for number in range(layers)
    }


@dataclass(frozen=True)
class Side:
    """A way to save and load. `extensions` is made anew for each save; `stock` says whose writer and reader."""

    name: str
    stock: bool
    extensions: Callable[[], Sequence[Any]]
    keyed: bool = False

    def writer(self, path: Path, threads: int) -> Any:
        """The writer, for one save."""
        kind = dcp.FileSystemWriter if self.stock else streamxf.FileSystemWriter
        return kind(path, thread_count=threads, _extensions=list(self.extensions()))

    def reader(self, path: Path) -> Any:
        """The reader, for one load."""
        if self.stock:
            return dcp.FileSystemReader(path)
        return streamxf.FileSystemReader(path, keys=KEY if self.keyed else None)


STOCK = Side("stock", True, list)
STOCK_ZSTD = Side("stock, ZStandard", True, lambda: [StockZStandard()])
ZSTD = Side("streamxf, ZStandard", False, lambda: [streamxf.ZStandard()])
CHECKSUM = Side("streamxf, Checksum", False, lambda: [streamxf.Checksum()])
ENCRYPT = Side("streamxf, Encrypt", False, lambda: [streamxf.Encrypt(KEY)], keyed=True)
FULL = Side(
    "streamxf, ZStandard + Checksum + Encrypt",
    False,
    lambda: [streamxf.ZStandard(level=3), streamxf.Checksum(), streamxf.Encrypt(KEY)],
    keyed=True,
)


def save_and_load(side: Side, state: State, folder: Path, threads: int) -> Phases:
    """Save to an empty folder, and load into tensors that exist; the load is checked outside of the timing.

    Raises
    ------
    AssertionError
        If what was loaded is not what was saved.
    """
    path = folder / side.name.replace(" ", "-")
    shutil.rmtree(path, ignore_errors=True)
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    saving = timed(partial(dcp.save, state, storage_writer=side.writer(path, threads)))
    loading = timed(partial(dcp.load, target, storage_reader=side.reader(path)))
    if not all(torch.equal(target[name], tensor) for name, tensor in state.items()):
        raise AssertionError(f"{side.name}: the load did not give back what was saved")
    return {"save": saving, "load": loading}


def stored_bytes(side: Side, folder: Path) -> int:
    """Bytes of all files of the side's last save."""
    return sum(file.stat().st_size for file in (folder / side.name.replace(" ", "-")).iterdir())
