"""Runs with very many checkpoints, in a folder and on an S3 server, and what listing and forgetting them takes.

What managers saved is copied, so nothing here knows what a run's folder holds beside its checkpoints.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.harness import Phases, Rounds, alternate, progress, timed
from tests.dcp.s3_server import client_of, storage

LIST, LATEST, DRY, ONE = "list", "latest", "forget, dry run", "forget one"
STEADY = (LIST, LATEST, DRY, ONE)
LOST, MOST = "list, the cache lost", "forget all but ten"
LEFT = 10
ALONE, CALL, BEHIND = "dcp.save", "manager.save", "in the background"
BUCKET = "checkpoints"
CHAIN = "floatzip+checksum"

CACHE = ".streamxf"

_APART = 60.0  # seconds
_SETTLED = 3.0  # seconds after which a local folder's times show its next change, so that what is in it is remembered
_PART = 250


@dataclass(frozen=True)
class Place:
    """Where runs lie."""

    name: str
    base: str  # a folder, or a URL
    put: Callable[[str, bytes], object]  # bytes at a path below it
    remove: Callable[[str], object]  # all that is below a path, if anything is
    options: dict[str, Any] | None = None  # fsspec's

    @classmethod
    def local(cls, folder: Path) -> Place:
        def put(path: str, data: bytes) -> None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)

        return cls("local disk", str(folder), put, lambda path: shutil.rmtree(folder / path, ignore_errors=True))

    @classmethod
    def s3(cls, server: str) -> Place:
        client = client_of(server)

        def put(path: str, data: bytes) -> None:
            client.put_object(Bucket=BUCKET, Key=path, Body=data)

        def remove(path: str) -> None:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{path}/"):
                if keys := [{"Key": each["Key"]} for each in page.get("Contents", ())]:
                    client.delete_objects(Bucket=BUCKET, Delete={"Objects": keys, "Quiet": True})

        return cls("S3", f"s3://{BUCKET}", put, remove, storage(server))

    def fill(self, run: str, saved: Path, steps: range) -> None:
        """Copy the checkpoints of these steps into a run."""

        def copy(step: int) -> None:
            for file in (saved / f"step-{step}").iterdir():
                self.put(f"{run}/step-{step}/{file.name}", file.read_bytes())

        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(copy, steps):
                """Raises what failed."""
        os.sync()  # or the disk would be busy with them
        time.sleep(_SETTLED)


def save_run(saved: Path, count: int) -> None:
    """Have managers save the small checkpoints of one run into `saved`, a minute apart, the last one now."""
    progress(f"manager: {count} checkpoints are saved")
    begun = time.time() - _APART * count
    saved.mkdir()
    _save_part(saved, begun, range(1))
    # each part is begun beside a copy of the first one, and so belongs to its run
    parts = [range(first, min(first + _PART, count)) for first in range(1, count, _PART)]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for _ in pool.map(_save_part, repeat(saved), repeat(begun), parts):
            """Raises what failed."""


def _save_part(saved: Path, begun: float, steps: range) -> None:
    part = saved.with_name(f"{saved.name}-{steps.start}")
    if steps.start:
        shutil.copytree(saved / "step-0", part / "step-0")
    with (
        mock.patch.object(os, "fsync"),
        mock.patch.object(time, "time", return_value=begun) as now,
        streamxf.CheckpointManager(part, CHAIN) as manager,
    ):
        for step in steps:
            manager.wait()
            now.return_value = begun + _APART * step
            save(manager, step)
    for step in steps:
        (part / f"step-{step}").rename(saved / f"step-{step}")
    shutil.rmtree(part)


def save(manager: streamxf.CheckpointManager, step: int, items: int = 1) -> None:
    """Save a small checkpoint, or one of many items, with a metric."""
    manager.save(step, {f"w{item}": torch.zeros(1000) for item in range(items)}, metrics={"loss": 1 / (step + 1)})


@dataclass
class ManyCheckpoints:
    """A run with so many of the checkpoints in `saved`, and the seconds of each action."""

    place: Place
    count: int
    saved: Path
    name: str = "many-checkpoints"
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._newest = self.count - 1

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """Take the time of every action, with a few checkpoints fewer in each round; AssertionError if one failed."""
        progress(f"manager: {self.count} checkpoints, {self.place.name}")
        self.place.fill(self.name, self.saved, range(self.count))
        for _ in range(min(rounds, 2)):
            self.place.remove(f"{self.name}/{CACHE}")
            self._time(LOST, self._list)
        self.warm()
        for _ in range(rounds):
            self._time(LIST, self._list)
            self._time(LATEST, self._latest)
            self._time(DRY, lambda: self._forget(LEFT, dry_run=True))
            self._time(ONE, lambda: self._forget(self.count - 1))
        self._time(MOST, lambda: self._forget(LEFT))
        self.place.remove(self.name)
        return self.seconds

    def warm(self) -> None:
        """Save the newest one once more, as a job does that goes on with the run: its manager has looked at them
        all.
        """
        with self._manager() as manager:
            manager.latest()
            save(manager, self._newest)

    @property
    def run(self) -> str:
        return f"{self.place.base}/{self.name}"

    def _manager(self) -> streamxf.CheckpointManager:
        return streamxf.CheckpointManager(self.run, CHAIN, storage_options=self.place.options)

    def _time(self, action: str, call: Callable[[], None]) -> None:
        self.seconds.setdefault(action, []).append(timed(call))

    def _list(self) -> None:
        found = streamxf.list_checkpoints(self.run, storage_options=self.place.options)
        if [record.complete for record in found] != [True] * self.count:
            raise AssertionError(f"{len(found)} checkpoints are listed, and not {self.count}")

    def _latest(self) -> None:
        with self._manager() as manager:
            found = manager.latest()
        if found != f"{self.run}/step-{self._newest}":
            raise AssertionError(f"{found} is the latest, and not step {self._newest}")

    def _forget(self, last: int, dry_run: bool = False) -> None:
        keep = streamxf.Retention(last=last)
        report = streamxf.forget(self.run, keep, dry_run=dry_run, storage_options=self.place.options)
        if len(report.removed) != self.count - last:
            raise AssertionError(f"{len(report.removed)} checkpoints were removed, and not {self.count - last}")
        if not dry_run:
            self.count = last


def saves(folder: Path, saved: Path, counts: tuple[int, ...], rounds: int) -> Rounds:
    """Seconds of saves of one small tensor: DCP's alone, and a manager's in runs with so many checkpoints, all of which
    its rules keep. Sides are named by the numbers.
    """
    place = Place.local(folder)
    keep = streamxf.Retention(last=10**6, best=10**6, metric="loss")
    managers: dict[int, streamxf.CheckpointManager] = {}
    steps = {count: count for count in counts}
    for count in counts:
        many = ManyCheckpoints(place, count, saved, f"beside-{count}")
        place.fill(many.name, saved, range(count))
        many.warm()
        managers[count] = streamxf.CheckpointManager(many.run, CHAIN, keep=keep)

    def alone() -> Phases:
        path, state = folder / "alone" / f"step-{time.monotonic_ns()}", {"w0": torch.zeros(1000)}
        return {
            CALL: timed(lambda: dcp.save(state, storage_writer=streamxf.FileSystemWriter(path, CHAIN), no_dist=True))
        }

    def managed(count: int) -> Phases:
        steps[count] += 1
        return {
            CALL: timed(lambda: save(managers[count], steps[count])),
            BEHIND: timed(managers[count].wait),
        }

    sides = {ALONE: alone} | {str(count): partial(managed, count) for count in counts}
    found = alternate(sides, rounds, "manager: saves beside many")
    for count, manager in managers.items():
        manager.close()
        place.remove(f"beside-{count}")
    place.remove("alone")
    return found
