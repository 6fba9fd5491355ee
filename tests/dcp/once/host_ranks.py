"""Ranks that load from an object store. Every function runs in a process of its own."""

import os
import random
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import streamxf
from streamxf import Storage
from streamxf.checkpoint import metadata
from streamxf.dcp.once import reading
from streamxf.format import index
from streamxf.storage.storage import StorageEntry
from tests.dcp.helpers import KEY, full_chain
from tests.failing import fails_with

from .once_ranks import blank, same


class Far(Storage):
    """A folder, each access to which is a request."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder).lstrip("/"))
        self.read_bytes: list[int] = []  # of each request for metadata
        self.requests = 0  # for data

    def info(self, path: str = "") -> StorageEntry:
        place = Path("/", self.path_of(path))
        return StorageEntry(place.name, "folder" if place.is_dir() else "file", place.stat().st_size)

    def entries(self, path: str = "") -> Iterable[StorageEntry]:
        return [self.info(f"{path}/{name}".lstrip("/")) for name in os.listdir(f"/{self.path_of(path)}")]

    def read(self, path: str, start: int, stop: int) -> bytes:
        with Path("/", self.path_of(path)).open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        if path == ".metadata":
            self.read_bytes.append(len(data))
        else:
            self.requests += 1
        return data


def state(seed: int) -> dict[str, Any]:
    """Tensors with a shard on each rank, under names that no compression shortens."""
    names, values = random.Random(7), torch.Generator().manual_seed(seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {
        names.randbytes(40).hex(): distribute_tensor(torch.randn(8, 4, generator=values), mesh, [Shard(0)])
        for _ in range(300)
    } | {"whole": torch.randn(600, 600, generator=values)}


def whole(found: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "_local_tensor", value) for name, value in found.items()}


SAVED: dict[str, Any] = {}


def save(folder: Path) -> None:
    SAVED.update(state(1))
    with patch.multiple(index, _ROWS=32, _ITEMS=16):
        writer = streamxf.FileSystemWriter(folder / "checkpoint", _extensions=full_chain())
        dcp.save(SAVED, storage_writer=writer)


def load(folder: Path, read: Any, *patches: Any, **options: Any) -> dict[str, Any]:
    """What a load costs this rank of requests and bytes of metadata."""
    target = {"whole": torch.zeros(600, 600)} if "no_dist" in options else state(2)
    store = Far(folder / "checkpoint")
    wanted = {name: value for name, value in SAVED.items() if name in target}
    with ExitStack() as stack:
        stack.enter_context(patch.object(index, "_SMALL", 0))
        stack.enter_context(patch.object(metadata, "_TAIL", 4096))
        for each in patches:
            stack.enter_context(each)
        reader = streamxf.FileSystemReader(store, keys=KEY, read=read)
        begin = time.monotonic()
        dcp.load(target, storage_reader=reader, planner=streamxf.LoadPlanner(), **options)
        seconds = time.monotonic() - begin
    assert reader.report is not None
    return {
        "wrong": same(whole(target), whole(wanted)),
        "read": reader.report.read,
        "requests": len(store.read_bytes),
        "bytes": sum(store.read_bytes),
        "seconds": seconds,
        "left": threads_left(),
    }


def threads_left() -> int:
    """Of those that serve others, once they had time to end."""
    count = 1
    for _ in range(100):
        count = sum(each.name == "streamxf-host" for each in threading.enumerate())
        if not count:
            break
        time.sleep(0.05)
    return count


def of_host(number: int) -> Any:
    return patch.object(socket, "gethostname", lambda: f"host {number}")


def counted(folder: Path) -> Any:
    save(folder)
    rank, found = dist.get_rank(), {"each": load(folder, "each")}
    for hosts in (1, 2, 4):
        dist.barrier()
        found[f"{hosts} hosts"] = load(folder, "once", of_host(rank * hosts // 4))
    return found


def deserted(folder: Path) -> Any:
    """The rank that serves the others hangs up, cannot read, falls silent, or is alone: nobody waits for long."""
    save(folder)
    found: dict[str, Any] = {}
    original = reading.SharedFile._read

    def attempt(name: str, act: Any) -> None:
        def read(self: Any, position: int, size: int) -> bytes:
            if threading.current_thread() is threading.main_thread():
                return bytes(original(self, position, size))
            return bytes(act(size))

        dist.barrier()
        found[name] = load(folder, "once", patch.object(reading.SharedFile, "_read", read))

    def fall_silent(size: int) -> bytes:
        time.sleep(12)
        return b""

    attempt("fails", fails_with(OSError, 5, "Input/output error"))
    attempt("ends early", lambda size: bytes(size - 1))
    attempt("falls silent", fall_silent)
    dist.barrier()
    if dist.get_rank() == 0:
        found["alone"] = load(folder, "once", no_dist=True)
    dist.barrier()
    try:
        attempt("lies", bytes)
    except CheckpointException as error:
        found["lies"] = {str(rank): f"{type(each).__name__}: {each}" for rank, (each, _) in error.failures.items()}
    return found


def small_items(folder: Path) -> Any:
    """What all ranks together cost of requests and stored bytes; and objects that not all ranks may unpickle."""
    wanted: dict[str, Any] = {f"tensor {number}": torch.full((100,), number) for number in range(200)}
    wanted |= {f"object {number}": f"{number}" * 100 for number in range(50)}
    wanted |= {"a class": Fraction(7, 3), "large": "x" * 3_000_000}
    path, found = folder / "small", dict[str, Any]()
    dcp.save(wanted, storage_writer=streamxf.FileSystemWriter(path, _extensions=full_chain()))
    size = sum(file.stat().st_size for file in path.glob("*.distcp"))
    options: dict[str, Any] = {"keys": KEY, "safe_globals": [Fraction]}
    for read in ("each", "once"):
        target, store = blank(wanted), Far(path)
        reader = streamxf.FileSystemReader(store, read=read, **options)  # type: ignore[arg-type]
        dcp.load(target, storage_reader=reader)
        assert reader.report is not None
        cost = torch.tensor([store.requests, reader.report.stored_bytes])
        dist.all_reduce(cost)
        found[read] = [same(target, wanted), reader.report.read, cost[0].item(), cost[1].item() / size]
    if dist.get_rank() == 1:
        options["safe_globals"] = []
    try:
        dcp.load(blank(wanted), storage_reader=streamxf.FileSystemReader(path, read="once", **options))
    except CheckpointException as error:
        found["refused"] = {str(rank): f"{type(each).__name__}: {each}" for rank, (each, _) in error.failures.items()}
    return found
