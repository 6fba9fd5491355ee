"""What each rank does in tests of ranks that differ: in writers, chains, and what they have under the same names."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import streamxf

from .failing_ranks import failures_of

WRITERS: dict[str, Callable[[Path], Any]] = {
    "torch": dcp.FileSystemWriter,
    "streamxf": streamxf.FileSystemWriter,
    "zstd": lambda path: streamxf.FileSystemWriter(path, chain="zstd"),
    "plain": lambda path: streamxf.FileSystemWriter(path, chain=[]),
}


def told(action: Callable[[], Any]) -> tuple[dict[str, str] | None, list[str]]:
    """The ranks' errors, as this rank was told, and the warnings that were given on it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failures = failures_of(action)
    return failures, [text for each in caught if "ranks have different" in (text := str(each.message))]


def reached_by(path: Path, writers: list[str], planner: Callable[[], Any]) -> Any:
    """A save in which each rank has a writer of its own: errors, and whether there is a checkpoint then."""
    rank = dist.get_rank()
    state = {"shared": torch.ones(400), f"of rank {rank}": torch.full((50,), float(rank))}
    failures, _ = told(lambda: dcp.save(state, storage_writer=WRITERS[writers[rank]](path), planner=planner()))
    dist.barrier()
    return failures, (path / ".metadata").exists()


def writers_of_two_kinds(folder: Path) -> Any:
    found = {}
    for pair in ("torch-streamxf", "streamxf-torch", "zstd-streamxf", "plain-zstd"):
        cached = partial(type(f"Cached {pair}", (streamxf.SavePlanner,), {}), enable_plan_caching=True)
        for number, planner in enumerate([dcp.DefaultSavePlanner, streamxf.SavePlanner, cached, cached]):
            name = f"{pair} {number}"
            found[name] = reached_by(folder / name, pair.split("-"), planner)
    return found
