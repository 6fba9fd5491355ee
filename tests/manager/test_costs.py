"""What a look at many checkpoints asks their storage for: how many requests, how many at a time, and how many bytes."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

import streamxf
from streamxf.manager.listing import list_checkpoints

from .runs import saved_run

COUNT = 24
MOST_BYTES = 64 * 1024  # of each checkpoint
RUN = "memory://costs"


class Asked:
    """Requests that name something within a step's folder."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str, int]] = []
        self.at_once = 0
        self._under_way = 0
        self._lock = threading.Lock()
        self._inside = threading.local()

    def counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def counted(files: MemoryFileSystem, path: str, *arguments: Any, **options: Any) -> Any:
            if getattr(self._inside, "is_so", False) or "/step-" not in path:
                return call(files, path, *arguments, **options)
            with self._lock:
                self._under_way += 1
                self.at_once = max(self.at_once, self._under_way)
            self._inside.is_so = True
            try:
                time.sleep(0.01)  # on a busy machine threads start late
                answer = call(files, path, *arguments, **options)
            finally:
                self._inside.is_so = False
                with self._lock:
                    self._under_way -= 1
            size = len(answer) if isinstance(answer, bytes) else 0
            with self._lock:
                self.made.append((name, path.split("/step-")[1].split("/")[0], size))
            return answer

        return counted

    def of_each(self, *names: str) -> Counter[str]:
        return Counter(step for name, step, _ in self.made if name in names)


READS = ("cat_file", "open", "info", "ls", "find")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    found = Asked()
    for name in READS:
        monkeypatch.setattr(MemoryFileSystem, name, found.counting(name, getattr(MemoryFileSystem, name)))
    yield found
    files = MemoryFileSystem()
    for path in files.find("/costs"):
        files.rm_file(path)


def fill(asked: Asked, **options: Any) -> None:
    saved_run(RUN, *range(1, COUNT + 1), **options)
    asked.made.clear()
    asked.at_once = 0


@pytest.mark.parametrize("keyed", [False, True], ids=["no keys", "keys"])
def test_a_listing_without_cache_reads_each_checkpoint_by_one_request(
    asked: Asked, keyed: bool, key: streamxf.Key
) -> None:
    options: dict[str, Any] = {"chain": [streamxf.Encrypt(key)]} if keyed else {}
    fill(asked, **options)
    files = MemoryFileSystem()
    for path in files.find("/costs/.streamxf"):
        files.rm_file(path)
    if keyed:
        report = streamxf.forget(RUN, COUNT, keys=key, dry_run=True, verify="none")
        assert len(report.kept) == COUNT
    else:
        assert len([record for record in list_checkpoints(RUN) if record.complete]) == COUNT
    assert asked.of_each(*READS) == Counter({str(step): 1 for step in range(1, COUNT + 1)})
    assert max(size for _, _, size in asked.made) <= MOST_BYTES
    assert asked.at_once > 4


def test_each_that_is_forgotten_is_looked_at_by_one_more_request(asked: Asked) -> None:
    """This file system has no tags, by which what a listing has seen could be recognized."""
    fill(asked)
    report = streamxf.forget(RUN, 1, verify="none")
    assert len(report.removed) == COUNT - 1
    looked = asked.of_each("cat_file", "open")  # it is also asked for folders that are empty by then
    assert [looked[str(step)] for step in range(1, COUNT)] == [2] * (COUNT - 1)
    assert asked.at_once > 4


@pytest.mark.parametrize("items", [1, 300])
def test_a_listing_without_cache_reads_no_more_of_a_folder_than_its_metadata(tmp_path: Path, items: int) -> None:
    """Counted by the kernel."""
    with streamxf.CheckpointManager(tmp_path) as manager:
        for step in range(COUNT):
            manager.save(step, {f"layers.{item}.weight": torch.zeros(10) for item in range(items)})
    list_checkpoints(tmp_path)  # imports what it needs
    before = read_bytes()
    assert len(list_checkpoints(tmp_path)) == COUNT
    of_each = (read_bytes() - before) / COUNT
    assert of_each <= MOST_BYTES
    metadata = (tmp_path / "step-1" / ".metadata").stat().st_size
    assert of_each <= metadata + 4096


def read_bytes() -> int:
    facts = Path("/proc/self/io").read_text().split()
    return int(facts[facts.index("rchar:") + 1])
