"""Runs with very many checkpoints, in a folder and on an S3 server, and what listing and forgetting them takes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from dcp.s3_server import client_of, storage

import streamxf
from benchmarks.harness import progress, timed
from streamxf.checkpoint.storage import Storage
from streamxf.manager.catalog import RunCatalog, change_catalog
from streamxf.manager.listing import mark_of, survey

LIST, DRY, ONE = "list", "forget, dry run", "forget one"
STEADY = (LIST, DRY, ONE)
LOST, MOST = "list, the catalog lost", "forget all but ten"
LEFT = 10
BUCKET = "checkpoints"


@dataclass(frozen=True)
class Place:
    """Where runs lie.

    Attributes
    ----------
    name : str
    base : str
        A folder, or a URL.
    put : callable
        Takes a path below it, and bytes.
    options : dict, optional
        fsspec's.
    """

    name: str
    base: str
    put: Callable[[str, bytes], object]
    options: dict[str, Any] | None = None

    @classmethod
    def local(cls, folder: Path) -> Place:
        def put(path: str, data: bytes) -> None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)

        return cls("local disk", str(folder), put)

    @classmethod
    def s3(cls, server: str) -> Place:
        client = client_of(server)

        def put(path: str, data: bytes) -> None:
            client.put_object(Bucket=BUCKET, Key=path, Body=data)

        return cls("S3", f"s3://{BUCKET}", put, storage(server))


@dataclass
class ManyCheckpoints:
    """A run with so many small checkpoints, all of them in its catalog.

    Attributes
    ----------
    seconds : dict of str to list of float
        Of each action.
    """

    place: Place
    count: int
    scratch: Path
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """Take the time of every action; a few checkpoints fewer in each round.

        Raises
        ------
        AssertionError
            If an action did something else.
        """
        progress(f"manager: {self.count} checkpoints, {self.place.name}")
        self._fill()
        self._time(LOST, self._list)
        self._catalogue()
        for _ in range(rounds):
            self._time(LIST, self._list)
            self._time(DRY, lambda: self._forget(LEFT, dry_run=True))
            self._time(ONE, lambda: self._forget(self.count - 1))
        self._time(MOST, lambda: self._forget(LEFT))
        found = Storage.of(self._run, self.place.options)
        found.filesystem.rm(found.path, recursive=True) if self.place.options else shutil.rmtree(self._run)
        return self.seconds

    @property
    def _run(self) -> str:
        return f"{self.place.base}/many-checkpoints"

    def _time(self, action: str, call: Callable[[], None]) -> None:
        self.seconds.setdefault(action, []).append(timed(call))

    def _list(self) -> None:
        found = streamxf.list_checkpoints(self._run, storage_options=self.place.options)
        if [record.state for record in found] != ["complete"] * self.count:
            raise AssertionError(f"{len(found)} checkpoints are listed, and not {self.count}")

    def _forget(self, last: int, dry_run: bool = False) -> None:
        keep = streamxf.Retention(last=last)
        report = streamxf.forget(self._run, keep, dry_run=dry_run, storage_options=self.place.options)
        if len(report.removed) != self.count - last:
            raise AssertionError(f"{len(report.removed)} checkpoints were removed, and not {self.count - last}")
        if not dry_run:
            self.count = last

    def _fill(self) -> None:
        """Put the files of one small checkpoint into every folder."""
        writer = streamxf.FileSystemWriter(self.scratch, chain="floatzip+checksum")
        dcp.save({"w": torch.zeros(1000)}, storage_writer=writer)
        files = {file.name: file.read_bytes() for file in self.scratch.iterdir()}
        shutil.rmtree(self.scratch)
        name = self._run.rpartition("/")[2]
        wanted = [(f"{name}/step-{step}/{file}", data) for step in range(self.count) for file, data in files.items()]
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda each: self.place.put(*each), wanted):
                """Raises what failed."""
        os.sync()  # or the disk would be busy with them

    def _catalogue(self) -> None:
        """Enter every checkpoint, as a manager does after each save."""
        found = Storage.of(self._run, self.place.options)
        records = survey(found, RunCatalog())
        mark = mark_of(found, records[0].name)  # all have the same files

        def enter(catalog: RunCatalog) -> None:
            now = time.time()
            for number, record in enumerate(records):
                metrics = {"loss": 1 / (number + 1)}
                catalog.saved[record.name] = replace(record, time=now, metrics=metrics, mark=mark)

        change_catalog(found, enter)
