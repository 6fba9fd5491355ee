"""A write that fails, in any thread and at any time, fails the save, and the checkpoint before it still loads."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.storage.local import LocalStorage
from streamxf.storage.storage import Storage

from .helpers import KEY, assert_only, error_of, full_chain, save

CHAINS = {"full chain": full_chain, "no codec": list, "checksum": lambda: [streamxf.Checksum()]}


def states() -> tuple[dict[str, Any], dict[str, Any]]:
    old = {str(number): torch.full((300, 100), float(number)) for number in range(5)} | {"step": 1}
    return old, {name: value + 1 for name, value in old.items()}


class FaultyStream:
    def __init__(self, stream: Any, system: FaultyFiles) -> None:
        self._stream, self._system = stream, system

    def write(self, data: Any) -> int:
        self._system.count("write")
        return int(self._stream.write(data))

    def flush(self) -> None:
        self._system.count("flush")
        self._stream.flush()

    def fileno(self) -> int:
        self._system.count("fsync")
        return int(self._stream.fileno())


class FaultyFiles:
    """The data files of saves while it is `patched` in: they fail at the `at`-th call of `call`, counted over all files
    and threads. Later calls fail too, unless it is to fail `once`.
    """

    stream: type[FaultyStream] = FaultyStream

    def __init__(self, call: str, at: int, error: int = errno.ENOSPC, once: bool = False) -> None:
        self._lock = threading.Lock()
        self._call, self._at, self._error, self._once = call, at, error, once
        self.calls = 0

    def count(self, call: str) -> None:
        if call != self._call:
            return
        with self._lock:
            self.calls += 1
            fails = self.calls == self._at if self._once else self.calls >= self._at
        if fails:
            raise OSError(self._error, "fault injected")

    def patched(self) -> Any:
        create = LocalStorage.create

        @contextmanager
        def creating(storage: Storage, name: str) -> Iterator[Any]:
            with create(storage, name) as stream:
                self.count("open")
                yield self.stream(stream, self)
                self.count("close")

        return patch.object(LocalStorage, "create", creating)


def save_faulty(
    state: dict[str, Any], path: Path, system: FaultyFiles, chain: Any, threads: int
) -> BaseException | None:
    writer = streamxf.FileSystemWriter(path, _extensions=chain(), thread_count=threads)
    with system.patched():
        return error_of(lambda: dcp.save(state, storage_writer=writer))


@pytest.mark.parametrize("points", ["some", pytest.param("all", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("call", "chain", "threads", "once"),
    [
        (call, chain, 3 if (number + at) % 2 else 1, number % 3 == at)
        for number, call in enumerate(["open", "write", "flush", "fsync", "close"])
        for at, chain in enumerate(CHAINS)
    ],
)
def test_a_failing_call_fails_the_save(
    checkpoint: Path, call: str, chain: str, threads: int, once: bool, points: str
) -> None:
    old, new = states()
    codecs = CHAINS[chain]
    keys = KEY if chain == "full chain" else None
    save(old, checkpoint, codecs())
    probe = FaultyFiles(call, at=10**9)
    assert save_faulty(old, checkpoint, probe, codecs, threads) is None
    assert probe.calls > 0
    tried = range(1, probe.calls + 1) if points == "all" else {1, probe.calls // 2 + 1, probe.calls}
    for at in sorted(tried):
        system = FaultyFiles(call, at, errno.ENOSPC if at % 2 else errno.EIO, once)
        error = save_faulty(new, checkpoint, system, codecs, threads)
        assert isinstance(error, OSError), (at, error)
        assert error.errno in (errno.ENOSPC, errno.EIO)
        assert_only(checkpoint, old, keys)
    assert save_faulty(new, checkpoint, FaultyFiles(call, 10**9), codecs, threads) is None
    assert_only(checkpoint, new, keys)


class StuckStream(FaultyStream):
    def write(self, data: Any) -> int:
        return 0


class StuckFiles(FaultyFiles):
    stream = StuckStream


@pytest.mark.parametrize("chain", CHAINS)
def test_a_file_that_takes_nothing_is_an_error_and_no_endless_loop(checkpoint: Path, chain: str) -> None:
    old, new = states()
    save(old, checkpoint)
    error = save_faulty(new, checkpoint, StuckFiles("", 0), CHAINS[chain], 2)
    assert isinstance(error, OSError)
    assert_only(checkpoint, old, KEY)
