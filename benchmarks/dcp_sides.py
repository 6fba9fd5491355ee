"""Sides that save and load through PyTorch Distributed Checkpoint, and how one side is measured."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard as StockZStandard

import streamxf
from benchmarks.harness import Phases, Rounds, Settings, alternate, timed
from streamxf import torch_private

State = dict[str, torch.Tensor]

KEY = streamxf.Key(bytes(range(32)))  # data without value, so that runs are alike
BLOCK_SIZE = 2**20
PHASES = ("save", "load")


class Side(Protocol):
    """A way to bring a state dict to the disk and back into tensors that exist."""

    @property
    def name(self) -> str: ...

    def save(self, state: State, path: Path, threads: int) -> None:
        """Write and fsync everything below `path`, a folder that does not exist yet."""

    def load(self, target: State, path: Path, threads: int) -> None:
        """Fill the tensors of `target`."""


@dataclass(frozen=True)
class DcpSide:
    """DCP with a list of extensions."""

    name: str
    stock: bool  # writer and reader are torch's own
    extensions: Callable[[], Sequence[Any]]  # made anew for each save
    keyed: bool = False  # the reader needs the key
    block_size: int = BLOCK_SIZE  # streamxf's writer only
    read: str = "each"  # streamxf's reader only
    storage: dict[str, Any] | None = None  # of the file system whose URLs are paths; else paths are local

    def writer(self, path: Path, threads: int) -> Any:
        """The writer, for one save."""
        options: Any = {"thread_count": threads, "_extensions": list(self.extensions())}
        if not self.stock:
            options["block_size"] = self.block_size
        if self.storage is None:
            return (dcp if self.stock else streamxf).FileSystemWriter(path, **options)
        # torch would sync all file systems of the machine, since an object has no file to sync
        options |= {"sync_files": False, **self.storage}
        return (torch_private if self.stock else streamxf).FsspecWriter(path, **options)

    def reader(self, path: Path) -> Any:
        """The reader, for one load."""
        options: Any = {} if self.stock else {"keys": KEY if self.keyed else None, "read": self.read}
        if self.storage is None:
            return (dcp if self.stock else streamxf).FileSystemReader(path, **options)
        return (torch_private if self.stock else streamxf).FsspecReader(path, **options, **self.storage)

    def save(self, state: State, path: Path, threads: int) -> None:
        dcp.save(state, storage_writer=self.writer(path, threads))

    def load(self, target: State, path: Path, threads: int) -> None:
        dcp.load(target, storage_reader=self.reader(path))


def full_chain() -> list[streamxf.Codec]:
    """Compressed, checked and encrypted."""
    return [streamxf.FloatZip(), streamxf.Checksum(), streamxf.Encrypt(KEY)]


STOCK = DcpSide("stock DCP", True, list)
STOCK_ZSTD = DcpSide("stock DCP, ZStandard", True, lambda: [StockZStandard()])
FLOATZIP = DcpSide("streamxf, FloatZip", False, lambda: [streamxf.FloatZip()])
FULL = DcpSide("streamxf, FloatZip + Checksum + Encrypt", False, full_chain, keyed=True)


@dataclass
class Run:
    """One side with a state to save and tensors to load into; the same tensors for all sides, so that a load never pays
    for the first touch of its target.
    """

    side: Side
    state: State
    target: State
    folder: Path
    threads: int
    wait: Callable[[], None] = lambda: None  # until a device has done all that it was given

    @property
    def path(self) -> Path:
        return self.folder / f"{self.side.name}-{self.threads}".replace(" ", "-").replace(",", "")

    def save(self) -> float:
        """Seconds of a save into an empty folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.wait()
        return timed(partial(self.side.save, self.state, self.path, self.threads))

    def load(self) -> float:
        """Seconds of a load; AssertionError, outside of the timing, if it did not give back each bit."""
        for tensor in self.target.values():
            tensor.zero_()
        self.wait()
        seconds = timed(lambda: (self.side.load(self.target, self.path, self.threads), self.wait()))
        for name, tensor in self.state.items():
            if not torch.equal(_bits(self.target[name]), _bits(tensor)):
                raise AssertionError(f"{self.side.name}: the load did not give back {name} as it was saved")
        return seconds

    def save_and_load(self) -> Phases:
        """Both, in this order."""
        return {"save": self.save(), "load": self.load()}

    def save_only(self) -> Phases:
        """The save alone."""
        return {"save": self.save()}

    def stored_bytes(self) -> int:
        """Bytes of all files of the last save, metadata included."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


def compare(
    sides: Sequence[Side], state: State, settings: Settings, threads: int, label: str
) -> tuple[Rounds, dict[str, float]]:
    """Rounds of saves and loads by all sides, and what share of its size each stores of the state."""
    folder, target = settings.folder / "compared", empty_target(state)
    runs = {side.name: Run(side, state, target, folder, threads) for side in sides}
    found = alternate({name: run.save_and_load for name, run in runs.items()}, settings.rounds, label)
    stored = {name: run.stored_bytes() / raw_bytes(state) for name, run in runs.items()}
    shutil.rmtree(folder)
    return found, stored


def saved_bytes(side: Side, state: State, folder: Path, threads: int) -> int:
    """Bytes of all files that a side stores of a state."""
    run = Run(side, state, {}, folder, threads)
    run.save()
    size = run.stored_bytes()
    shutil.rmtree(folder)
    return size


def empty_target(state: Mapping[str, torch.Tensor]) -> State:
    """Tensors to load into, their memory touched."""
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


def raw_bytes(state: Mapping[str, torch.Tensor]) -> int:
    """Bytes of the tensors themselves."""
    return sum(tensor.nbytes for tensor in state.values())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    # values would take -0.0 for 0.0, and no NaN for itself
    return tensor.reshape(-1).view(torch.uint8)
