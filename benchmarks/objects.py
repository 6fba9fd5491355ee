"""Saves and loads on an S3 server: SeaweedFS on loopback, as it is and with a proxy before it that limits bandwidth.

Server and proxy are those of the tests, and files are in memory. Linux only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.child import in_child
from benchmarks.costs import need_proc, peak_added
from benchmarks.data.gaussian import gaussian_matrices
from benchmarks.dcp_sides import FULL, PHASES, STOCK, Run, State, empty_target, raw_bytes
from benchmarks.harness import MIB, Phases, Rounds, Settings, alternate, progress
from benchmarks.result import Result, Row, Spread, Table, goal_row, ratios, ratios_by, seconds_by
from tests.dcp.s3_server import client_of, serving, storage
from tests.objectstore.control import Proxy, proxied

SIDES = {side.name: side for side in (STOCK, FULL)}
THREADS = 2
TENSOR_MIB = 24
RATE = 100e6
DIRECT, LIMITED = "loopback", f"{RATE / 1e6:g} MB/s"
GOALS = {DIRECT: {"save": 0.5, "load": 0.4}, LIMITED: {"save": 0.7, "load": 0.7}}


def run(settings: Settings) -> Result:
    """Measure; OSError if there is no folder in memory."""
    need_proc()
    mib = settings.pick(settings.mib, 16)
    size = settings.pick(TENSOR_MIB, 1)
    rounds = min(settings.rounds, 3)
    with TemporaryDirectory(dir="/dev/shm") as folder, serving(Path(folder), 1024) as server, proxied(server) as proxy:
        arguments = {"server": server, "mib": mib, "size": size}
        measured = in_child("benchmarks.objects", "child", proxy=proxy.url, rounds=rounds, **arguments)
        added: list[Row] = []
        for name in SIDES:
            progress(f"objects: memory, {name}")
            of_side = in_child("benchmarks.objects", "memory_child", name=name, **arguments)
            added.append({"side": name} | {phase: Spread.of([of_side[phase] / MIB]) for phase in PHASES})
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
        Table(added, "MiB that a save and a load add", digits=0),
    ]
    note = (
        f"About {mib} MiB of bf16 Gaussian weights in matrices of {size} MiB, `thread_count={THREADS}`, medians "
        f"(lowest-highest) of {rounds} rounds. The server is SeaweedFS on the same machine with its data in memory, so "
        f"on {DIRECT} it shares the CPUs with its clients. *{LIMITED}* are those of a proxy before it, each way, for "
        "all connections together, which sees the *requests*. *Added* is the peak over the memory in use before. Both "
        "sides use s3fs with its default settings."
    )
    return Result("objects", "Object storage", note, tables)


def _rows(found: dict[str, Rounds], phase: str, stored: dict[str, float]) -> list[Row]:
    rows = [{"side": name, "stored": stored[name], **seconds_by(found, name, phase)} for name in SIDES]
    ratio = stored[FULL.name] / stored[STOCK.name]
    against = ratios_by(found, FULL.name, STOCK.name, phase)
    return [*rows, {"side": f"the latter, against {STOCK.name}", "stored": ratio, **against}]


def _request_rows(requests: dict[str, dict[str, dict[str, int]]]) -> list[Row]:
    operations = sorted({each for phases in requests.values() for counts in phases.values() for each in counts})
    return [
        {"side": name, "": phase} | {each: counts.get(each, 0) for each in operations}
        for name, phases in requests.items()
        for phase, counts in phases.items()
    ]


# -- in the child ----------------------------------------------------------------------------------------------------


@dataclass
class StoreRun(Run):
    """A side on a server; each save has a bucket of its own, because only whole buckets give their memory back.

    With a proxy, which is then what the side knows as the server, `requests` has those of the last save and load.
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
        return f"{self.folder}-{self._saves}"

    def save(self) -> float:
        self._saves += 1
        with closing(client_of(self.server)) as client:
            client.create_bucket(Bucket=self._bucket)
            client.put_object(Bucket=self._bucket, Key="ready", Body=b"")  # the server prepares a bucket's place by it
        return super().save()

    def save_and_load(self) -> Phases:
        """Seconds of both; AssertionError if bytes passed the proxy by."""
        try:
            return {"save": self._counted("save", self.save), "load": self._counted("load", self.load)}
        finally:
            self.remove()

    def remove(self) -> None:
        with closing(client_of(self.server)) as client:
            client.delete_bucket(Bucket=self._bucket)

    def _counted(self, phase: str, action: Callable[[], float]) -> float:
        if self.proxy is None:
            return action()
        self.proxy.forget()
        seconds = action()
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
    target = empty_target(state)
    between = Proxy(proxy)
    between.pace(RATE)
    direct = {name: _run(name, server, state, target) for name in SIDES}
    limited = {name: _run(name, server, state, target, between) for name in SIDES}
    found = {}
    for link, runs in ((DIRECT, direct), (LIMITED, limited)):
        sides = {name: run.save_and_load for name, run in runs.items()}
        found[link] = alternate(sides, rounds, f"objects: {link}")
    return {
        "rounds": found,
        "stored": {name: run.stored / raw_bytes(state) for name, run in limited.items()},
        "requests": {name: run.requests for name, run in limited.items()},
    }


def memory_child(server: str, mib: int, size: float, name: str) -> dict[str, int]:
    """The bytes that a save and a load of one of the sides add."""
    small = {"small": torch.zeros(8)}
    _run(name, server, small, empty_target(small)).save_and_load()  # imports and threads
    state = gaussian_matrices(mib, size, torch.bfloat16)
    run = _run(name, server, state, empty_target(state))
    added = {"save": peak_added(run.save), "load": peak_added(run.load)}
    run.remove()
    return added


def _run(name: str, server: str, state: State, target: State, proxy: Proxy | None = None) -> StoreRun:
    side = replace(SIDES[name], storage=storage(proxy.url if proxy else server))
    buckets = Path(f"run-{os.urandom(8).hex()}")
    return StoreRun(side, state, target, buckets, THREADS, server=server, proxy=proxy)
