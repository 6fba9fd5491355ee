"""Saves and loads on an S3 server: SeaweedFS on loopback, as it is and with a proxy before it that limits bandwidth.

Server and proxy are those of the tests.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.child import in_child
from benchmarks.costs import need_proc, peak_added
from benchmarks.data.gaussian import gaussian_matrices
from benchmarks.dcp_sides import FULL, KEY, STOCK, Run, State, empty_target, full_chain, raw_bytes
from benchmarks.harness import MIB, Phases, Rounds, Settings, alternate, progress
from benchmarks.result import Result, Row, Spread, Table, goal_row, ratios
from streamxf import torch_private
from tests.dcp.s3_server import client_of, serving, storage
from tests.objectstore.control import Proxy, proxied

PHASES = ("save", "load")
THREADS = 2
TENSOR_MIB = 24
RATE = 100e6
DIRECT, LIMITED = "loopback", f"{RATE / 1e6:g} MB/s"
GOALS = {DIRECT: {"save": 0.5, "load": 0.4}, LIMITED: {"save": 0.7, "load": 0.7}}
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class StoreSide:
    """s3fs with or without the chain; a `benchmarks.dcp_sides.Side` whose paths are URLs."""

    chain: bool
    endpoint: str

    @property
    def name(self) -> str:
        return FULL.name if self.chain else STOCK.name

    def save(self, state: State, path: Any, threads: int) -> None:
        # torch would sync all file systems of the machine, since an object has no file to sync
        options = {"thread_count": threads, "sync_files": False, **storage(self.endpoint)}
        ours: Any = {"_extensions": full_chain(), **options}
        writer: Any = streamxf.FsspecWriter(path, **ours) if self.chain else torch_private.FsspecWriter(path, **options)
        dcp.save(state, storage_writer=writer)

    def load(self, target: State, path: Any, threads: int) -> None:
        options: Any = storage(self.endpoint)
        reader: Any = (
            streamxf.FsspecReader(path, keys=KEY, **options)
            if self.chain
            else torch_private.FsspecReader(path, **options)
        )
        dcp.load(target, storage_reader=reader)


def run(settings: Settings) -> Result:
    """Measure; OSError if there is no folder in memory."""
    if not MEMORY.is_dir():
        raise OSError(f"this benchmark has its server write to {MEMORY}, which this system does not have")
    need_proc()
    mib = settings.pick(settings.mib, 16)
    size = settings.pick(TENSOR_MIB, 1)
    rounds = min(settings.rounds, 3)
    with TemporaryDirectory(dir=MEMORY) as folder, serving(Path(folder), 1024) as server, proxied(server) as proxy:
        arguments = {"server": server, "mib": mib, "size": size}
        measured = in_child("benchmarks.objects", "child", proxy=proxy.url, rounds=rounds, **arguments)
        added = {}
        for number, side in enumerate(sides(server)):
            progress(f"objects: memory, {side.name}")
            added[side.name] = in_child("benchmarks.objects", "memory_child", number=number, **arguments)
    found: dict[str, Rounds] = measured["rounds"]
    stock, full = STOCK.name, FULL.name
    goals = [
        goal_row(f"{phase}, {full}, {link}", stock, ratios(of[full][phase], of[stock][phase]), GOALS[link][phase])
        for link, of in found.items()
        for phase in PHASES
    ]
    tables = [
        Table(goals, "Goals"),
        *(Table(_rows(found, phase, measured["stored"]), f"Seconds of {phase}s") for phase in PHASES),
        Table(_request_rows(measured["requests"]), "Requests of one save and one load", digits=0),
        Table(_memory_rows(added), "MiB that a save and a load add", digits=0),
    ]
    note = (
        f"About {mib} MiB of bf16 Gaussian weights in matrices of {size} MiB, `thread_count={THREADS}`, medians "
        f"(lowest-highest) of {rounds} rounds. The server is SeaweedFS on the same machine with its data in memory, so "
        f"on {DIRECT} it shares the CPUs with its clients. *{LIMITED}* are those of a proxy before it, each way, for "
        "all connections together, which sees the *requests*. *Added* is the peak over the memory in use before. Both "
        "sides use s3fs with its default settings."
    )
    return Result("objects", "Object storage", note, tables)


def sides(endpoint: str) -> list[StoreSide]:
    """First without the chain, then with it."""
    return [StoreSide(chain, endpoint) for chain in (False, True)]


# -- in the child ----------------------------------------------------------------------------------------------------


@dataclass
class StoreRun(Run):
    """A side on a server; each save has a bucket of its own, because only whole buckets give their memory back.

    With a proxy, `requests` has those of the last save and load.
    """

    server: str = ""  # its URL, without a proxy
    proxy: Proxy | None = None
    requests: dict[str, Counter[str]] = field(default_factory=dict)
    stored: int = 0
    _saves: int = field(default=0, init=False)

    @property
    def path(self) -> Any:
        return f"s3://{self._bucket}/step"

    @property
    def _bucket(self) -> str:
        return f"{self.label}-{self._saves}"

    def save(self) -> float:
        self._saves += 1
        with closing(client_of(self.server)) as client:
            client.create_bucket(Bucket=self._bucket)
            client.put_object(Bucket=self._bucket, Key="ready", Body=b"")  # the server prepares a bucket's place by it
        return super().save()

    def save_and_load(self) -> Phases:
        """Seconds of both; AssertionError if bytes passed the proxy by."""
        try:
            return {phase: self._counted(phase) for phase in PHASES}
        finally:
            self.remove()

    def remove(self) -> None:
        with closing(client_of(self.server)) as client:
            client.delete_bucket(Bucket=self._bucket)

    def _counted(self, phase: str) -> float:
        if self.proxy is None:
            return self.save() if phase == "save" else self.load()
        self.proxy.forget()
        seconds = self.save() if phase == "save" else self.load()
        seen = self.proxy.requests()
        self.requests[phase] = Counter(request.operation for request in seen)
        with closing(client_of(self.server)) as client:
            self.stored = sum(entry["Size"] for entry in client.list_objects_v2(Bucket=self._bucket)["Contents"])
        passed = sum(request.sent if phase == "save" else request.received for request in seen)
        if passed < 0.99 * self.stored:
            raise AssertionError(f"{self.side.name}: of {self.stored} bytes {passed} passed the proxy")
        return seconds


def child(server: str, proxy: str, mib: int, size: float, rounds: int) -> dict[str, Any]:
    """All sides on both links: the rounds of each, the bytes stored by each, and the requests of each through the
    proxy.
    """
    state = gaussian_matrices(mib, size, torch.bfloat16)
    runs = _runs(server, state)
    found = {DIRECT: alternate({run.side.name: run.save_and_load for run in runs}, rounds, "objects: loopback")}
    between = Proxy(proxy)
    between.pace(RATE)
    limited = [
        replace(run, side=replace(run.side, endpoint=proxy), label=f"{run.label}-limited", proxy=between, requests={})
        for run in runs
    ]
    sides = {run.side.name: run.save_and_load for run in limited}
    found[LIMITED] = alternate(sides, rounds, f"objects: {LIMITED}")
    return {
        "rounds": found,
        "stored": {run.side.name: run.stored / raw_bytes(state) for run in limited},
        "requests": {run.side.name: run.requests for run in limited},
    }


def memory_child(server: str, mib: int, size: float, number: int) -> dict[str, int]:
    """The bytes that a save and a load of one of the sides add."""
    small = _runs(server, {"small": torch.zeros(8)}, "small")[number]
    small.save_and_load()  # imports and threads
    run = _runs(server, gaussian_matrices(mib, size, torch.bfloat16), "memory")[number]
    added = {"save": peak_added(run.save), "load": peak_added(run.load)}
    run.remove()
    return added


def _runs(server: str, state: State, label: str = "run") -> list[StoreRun]:
    target = empty_target(state)
    folder = Path("unused")
    return [
        StoreRun(side, state, target, folder, THREADS, f"{label}{number}-{os.getpid()}", server=server)
        for number, side in enumerate(sides(server))
    ]


# -- tables ---------------------------------------------------------------------------------------------------------


def _rows(found: dict[str, Rounds], phase: str, stored: dict[str, float]) -> list[Row]:
    rows: list[Row] = [
        {"side": name, "stored": stored[name]}
        | {link: Spread.of(rounds[name][phase]) for link, rounds in found.items()}
        for name in (STOCK.name, FULL.name)
    ]
    against = {link: ratios(rounds[FULL.name][phase], rounds[STOCK.name][phase]) for link, rounds in found.items()}
    ratio = stored[FULL.name] / stored[STOCK.name]
    return [*rows, {"side": f"the latter, against {STOCK.name}", "stored": ratio, **against}]


def _request_rows(requests: dict[str, dict[str, dict[str, int]]]) -> list[Row]:
    operations = sorted({each for phases in requests.values() for counts in phases.values() for each in counts})
    return [
        {"side": name, "": phase} | {each: counts.get(each, 0) for each in operations}
        for name, phases in requests.items()
        for phase, counts in phases.items()
    ]


def _memory_rows(added: dict[str, dict[str, int]]) -> list[Row]:
    return [
        {"side": name} | {phase: Spread.of([size / MIB]) for phase, size in phases.items()}
        for name, phases in added.items()
    ]
