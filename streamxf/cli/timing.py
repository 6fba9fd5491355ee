"""Saves and loads of one state dict by several writers in turn, and what they took."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from streamxf.chain import Chain
from streamxf.dcp.reader import FileSystemReader
from streamxf.dcp.writer import FileSystemWriter
from streamxf.progress import Progress, Share
from streamxf.storage.files import open_regular

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Side:
    """One writer with the reader that belongs to it."""

    name: str
    writer: Callable[[Path], StorageWriter]
    reader: Callable[[Path], StorageReader]

    @classmethod
    def of(cls, chain: Chain, **options: Any) -> Side:
        """streamxf's own, with a chain."""
        encryption: Any = chain.encryption
        keys = list(encryption.recipients) if encryption is not None else None
        writer = partial(FileSystemWriter, _extensions=list(chain), **options)
        return cls(str(chain), writer, partial(FileSystemReader, keys=keys))


@dataclass(frozen=True)
class Timing:
    """What one side took for one state dict: its tensors, all files of the checkpoint, medians of seconds, and whether
    every load gave the tensors back bit for bit.
    """

    side: str
    items: int
    raw_bytes: int
    stored_bytes: int
    save_seconds: float
    load_seconds: float
    correct: bool

    @property
    def save_bytes_per_second(self) -> float:
        return self.raw_bytes / self.save_seconds

    @property
    def load_bytes_per_second(self) -> float:
        return self.raw_bytes / self.load_seconds


def measure(
    state: State, sides: Sequence[Side], folder: Path, runs: int, *, progress: Progress | None = None
) -> list[Timing]:
    """Save and load `state` by every side in turn, `runs` times after one round to warm up.

    Loads read from the disk and not from the operating system's cache, as far as it can be asked to forget. What is
    left in `folder` is each side's last checkpoint, in a folder of the side's number. `progress` receives raw bytes.
    """
    raw = sum(tensor.nbytes for tensor in state.values())
    share = Share.announced(progress, 2 * raw * (runs + 1) * len(sides))
    seconds: list[list[tuple[float, float]]] = [[] for _ in sides]
    correct = [True] * len(sides)
    for _ in range(runs + 1):
        for number, side in enumerate(sides):
            path = folder / str(number)
            shutil.rmtree(path, ignore_errors=True)
            begun = time.perf_counter()
            save(state, storage_writer=side.writer(path))
            saved = time.perf_counter()
            _forget(path)
            target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
            opened = time.perf_counter()
            load(target, storage_reader=side.reader(path))
            seconds[number].append((saved - begun, time.perf_counter() - opened))
            correct[number] &= all(same_bits(target[name], tensor) for name, tensor in state.items())
            share.advance(2 * raw)
    timings = []
    for number, side in enumerate(sides):
        stored = sum(file.stat().st_size for file in (folder / str(number)).iterdir())
        saving, loading = map(statistics.median, zip(*seconds[number][1:], strict=True))
        timings.append(Timing(side.name, len(state), raw, stored, saving, loading, correct[number]))
    return timings


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are alike in dtype, shape and every bit (which `torch.equal` alone does not say of a NaN)."""
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and torch.equal(_as_bytes(one), _as_bytes(other))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _forget(path: Path) -> None:
    """Have the cache drop what it has of a checkpoint's files, which are on the disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in path.iterdir():
        with suppress(OSError), open_regular(file) as stream:  # some file systems keep no cache
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
