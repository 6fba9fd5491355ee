"""How much faster `verify` is with two workers of a Dask cluster than with one, where storage limits each worker.

Needs Dask, which no other benchmark does: ``pip install distributed``, then ``python -m benchmarks.fleet FOLDER``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import streamxf
from benchmarks.harness import MIB
from streamxf.storage.storage import Storage, StorageEntry


class Limited(Storage):
    """A folder of which each process reads `rate` bytes per second."""

    lock = threading.Lock()
    ready = 0.0  # when this process will have been given all bytes that it asked for

    def __init__(self, path: str, location: str | None = None, rate: float = 200e6) -> None:
        super().__init__(path, path if location is None else location)
        self.rate = rate

    def info(self, path: str = "") -> StorageEntry:
        found = Path(self.path_of(path))
        return StorageEntry(found.name, "folder" if found.is_dir() else "file", found.stat().st_size)

    def entries(self, path: str = "") -> list[StorageEntry]:
        return [self.info(name) for name in sorted(os.listdir(self.path_of(path)))]

    def read(self, path: str, start: int, stop: int) -> bytes:
        with Limited.lock:
            ready = Limited.ready = max(Limited.ready, time.monotonic()) + (stop - start) / self.rate
        time.sleep(max(0.0, ready - time.monotonic()))
        with open(self.path_of(path), "rb") as file:
            file.seek(start)
            return file.read(stop - start)


def seconds(path: Path, rate: float, workers: int) -> float:
    """What `verify` takes with so many workers, once these have imported what they need."""
    import distributed

    how: Any = {"threads_per_worker": 1, "processes": True, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(n_workers=workers, **how) as cluster, distributed.Client(cluster) as client:
        client.run(__import__, "streamxf.tools.verify.verify")
        begin = time.perf_counter()
        with client.get_executor() as executor:
            report = streamxf.verify(Limited(str(path), rate=rate), executor=executor)
        assert report.ok, report
        assert not report.finished_here, report
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the checkpoint is written, and removed in the end")
    parser.add_argument("--mib", type=int, default=8192)
    parser.add_argument("--rate", type=float, default=200e6, help="bytes per second of each worker")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with TemporaryDirectory(dir=options.folder) as folder:
        elements = np.random.default_rng(0).standard_normal(16 * MIB // 4, np.float32)
        with streamxf.CheckpointWriter(folder, "checksum") as writer:
            for number in range(options.mib // 16):
                writer[f"w{number}"] = elements
        found: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(options.rounds):
            for workers, taken in found.items():
                taken.append(seconds(Path(folder), options.rate, workers))
                print(f"{workers} workers: {taken[-1]:.1f} s", flush=True)
        one, two = (statistics.median(taken) for taken in found.values())
        print(f"{one / two:.2f} times as fast with 2 workers as with 1 (medians)")


if __name__ == "__main__":
    from benchmarks import fleet  # whose class workers find, other than that of this script

    fleet.main()
