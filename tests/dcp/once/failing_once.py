"""Ranks that fail, die or fall silent while they read once. Every function here runs in a process of its own."""

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.dcp.once import meeting, transfer
from streamxf.storage.reading import _LocalFile
from tests.altered import flip
from tests.dcp.helpers import KEY, OTHER_KEY, full_chain, load_into
from tests.failing import fails_with

from .once_ranks import blank, same, values


class Failing(dcp.DefaultLoadPlanner):
    """Does something in one of its methods."""

    def __init__(self, method: str, act: Callable[[], None]) -> None:
        super().__init__()
        self._method, self._act = method, act

    def _called(self, method: str) -> None:
        if method == self._method:
            self._act()

    def finish_plan(self, new_plan: Any) -> Any:
        self._called("finish_plan")
        return super().finish_plan(new_plan)

    def resolve_tensor(self, read_item: Any) -> Any:
        self._called("resolve_tensor")
        return super().resolve_tensor(read_item)

    def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
        self._called("commit_tensor")
        super().commit_tensor(read_item, tensor)


def slow_at_first(original: Any) -> Any:
    """As gloo is where a rank dies that it was about to connect with."""
    calls = []

    def make(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            time.sleep(20)
        return original(*args)

    return make


no_input = fails_with(OSError, 5, "Input/output error")


def broken(original: Any, act: Callable[[], None] = no_input) -> Any:
    def read_into(self: Any, position: int, out: memoryview) -> int:
        if str(self._file.name).endswith(".distcp"):
            act()
        return int(original(self, position, out))

    return read_into


def failures(path: Path, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What a load ends in, on which ranks, and how long this rank's part takes."""
    reader = streamxf.FileSystemReader(path, keys=KEY, read="once")
    begin = end = time.monotonic()
    original = reader.read_data

    def read_data(*args: Any) -> Any:
        nonlocal end
        try:
            return original(*args)
        finally:
            end = time.monotonic()

    with patch.object(reader, "read_data", read_data):
        try:
            dcp.load(blank(state), storage_reader=reader, **options)
        except CheckpointException as error:
            found = {str(rank): f"{type(each).__name__}: {each}" for rank, (each, _) in error.failures.items()}
            return {"failures": found, "seconds": end - begin}
    return {"failures": {}, "seconds": end - begin}


def raising(folder: Path) -> Any:
    """One rank after the other fails, in one step after the other; and after each the next load is right."""
    rank, path, state = dist.get_rank(), folder / "failing", values()
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, _extensions=full_chain()))
    found: dict[str, Any] = {}

    def attempt(name: str, who: int, *patches: Any, **options: Any) -> None:
        with ExitStack() as stack:
            for each in patches if rank == who else ():
                stack.enter_context(each)
            found[name] = failures(path, state, **options)
        target = load_into(blank(state), streamxf.FileSystemReader(path, keys=KEY, read="once"))
        found[name]["wrong"] = same(target, state)

    for number, method in enumerate(["finish_plan", "resolve_tensor", "commit_tensor"]):
        who = number % dist.get_world_size()
        attempt(method, who, planner=Failing(method if rank == who else "", fails_with(ValueError, "on purpose")))
    attempt("read", 1, patch.object(_LocalFile, "read_into", broken(_LocalFile.read_into)))
    unconnected = patch.dict(meeting._kept, clear=True)
    no_route = patch.object(meeting.Meeting, "connect", side_effect=ConnectionError("no route"))
    attempt("connect", 2, unconnected, no_route)
    with patch.object(dist, "ProcessGroupGloo", slow_at_first(dist.ProcessGroupGloo)) if rank == 0 else nullcontext():
        attempt("slow connections", 2, unconnected, no_route)
    attempt("message", 0, patch.object(transfer, "crc32c", SimpleNamespace(crc32c=lambda data: 7)))
    attempt(
        "silent",
        1,
        patch.object(meeting.Meeting, "_watch", lambda self: None),
        patch.object(transfer.Transfer, "run", lambda *args: time.sleep(12)),
    )
    found["kept"] = len(meeting._kept)
    return found


def damaged(folder: Path) -> Any:
    """Every rank has the error of the one that met it, which says that the checkpoint is damaged."""
    path, state = folder / "damaged", values()
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, _extensions=full_chain()))
    if dist.get_rank() == 0:
        for file in path.glob("*.distcp"):
            flip(file)
    dist.barrier()
    return failures(path, state)


def other_terms(folder: Path) -> Any:
    rank, path, state = dist.get_rank(), folder / "damaged", values()
    found = {}
    for name, options in {
        "require": {"keys": KEY, "require": "encrypted" if rank == 1 else "published"},
        "keys": {"keys": OTHER_KEY if rank == 1 else KEY},
        "rename": {"keys": KEY, "rename": {"w0": "w0"} if rank == 1 else None},
    }.items():
        try:
            dcp.load(blank(state), storage_reader=streamxf.FileSystemReader(path, read="once", **options))
        except CheckpointException as error:
            found[name] = sorted({f"{type(each).__name__}: {each}" for each, _ in error.failures.values()})
    return found


def over_two_interfaces(folder: Path) -> Any:
    """One rank fails where gloo has connections over two interfaces. The next load is right, and uses both."""
    path, state = folder / "interfaces", values()
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, _extensions=full_chain()))
    sent = Counter[int]()
    begin = meeting.Meeting.begin

    def counted(self: Any, data: torch.Tensor, rank: int, tag: int, *, send: bool) -> Any:
        sent[tag % 2] += len(data) * send
        return begin(self, data, rank, tag, send=send)

    with patch.dict(os.environ, GLOO_SOCKET_IFNAME="lo,lo"):
        fails = dist.get_rank() == 1
        with patch.object(_LocalFile, "read_into", broken(_LocalFile.read_into)) if fails else nullcontext():
            found = failures(path, state)
        target = blank(state)
        with patch.object(meeting.Meeting, "begin", counted):
            dcp.load(target, storage_reader=streamxf.FileSystemReader(path, keys=KEY, read="once"))
        return found | {"wrong": same(target, state), "sent": [sent[0], sent[1]]}
