"""Saves and loads of one state dict by three writers in turn, and what they took."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint._extension import ZStandard as StockZStandard
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

import streamxf
from streamxf.keys import Key

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Side:
    """One writer with the reader that belongs to it."""

    name: str
    writer: Callable[[Path], StorageWriter]
    reader: Callable[[Path], StorageReader]


@dataclass(frozen=True)
class Timing:
    """What one side took for one state dict; seconds are medians.

    Attributes
    ----------
    raw, stored : int
        Bytes of the tensors, and of all files of the checkpoint.
    correct : bool
        Whether every load gave the tensors back bit for bit.
    """

    side: str
    items: int
    raw: int
    stored: int
    save_seconds: float
    load_seconds: float
    correct: bool


def sides(key: Key) -> list[Side]:
    """Stock DCP without and with its own compression, and streamxf with the full chain."""
    return [
        Side("stock DCP", lambda path: FileSystemWriter(path), lambda path: FileSystemReader(path)),
        Side(
            "stock + zstd",
            lambda path: FileSystemWriter(path, _extensions=[StockZStandard()]),
            lambda path: FileSystemReader(path),
        ),
        Side(
            "streamxf chain",
            lambda path: streamxf.FileSystemWriter(path, _extensions=full_chain(key)),
            lambda path: streamxf.FileSystemReader(path, keys=key),
        ),
    ]


def full_chain(key: Key) -> list[streamxf.Codec]:
    """The chain that the demonstration is about: compress, then check, then encrypt."""
    return [streamxf.FloatZip(), streamxf.Checksum(), streamxf.Encrypt(key)]


def measure(state: State, key: Key, folder: Path, runs: int) -> list[Timing]:
    """Save and load `state` by every side in turn, `runs` times after one round of warming up.

    Parameters
    ----------
    folder : Path
        For the checkpoints; what is left there is each side's last one, in a folder of the side's number.
    """
    chosen = sides(key)
    seconds: list[list[tuple[float, float]]] = [[] for _ in chosen]
    correct = [True] * len(chosen)
    for _ in range(runs + 1):
        for number, side in enumerate(chosen):
            path = folder / str(number)
            shutil.rmtree(path, ignore_errors=True)
            target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
            seconds[number].append((_save(state, side, path), _load(target, side, path)))
            correct[number] &= all(same_bits(target[name], tensor) for name, tensor in state.items())
    return [
        Timing(
            side.name,
            len(state),
            sum(tensor.nbytes for tensor in state.values()),
            sum(file.stat().st_size for file in (folder / str(number)).iterdir()),
            statistics.median(saving for saving, _ in seconds[number][1:]),
            statistics.median(loading for _, loading in seconds[number][1:]),
            correct[number],
        )
        for number, side in enumerate(chosen)
    ]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are alike in dtype, shape and every bit (which `torch.equal` alone does not say of a NaN)."""
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and torch.equal(as_bytes(one), as_bytes(other))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements in row-major order as a flat tensor of uint8."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _save(state: State, side: Side, path: Path) -> float:
    start = time.perf_counter()
    save(state, storage_writer=side.writer(path))
    return time.perf_counter() - start


def _load(target: State, side: Side, path: Path) -> float:
    start = time.perf_counter()
    load(target, storage_reader=side.reader(path))
    return time.perf_counter() - start
