"""Files whose writeback begins while they are written."""

import errno
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import streamxf
from streamxf.buffers import write_all
from streamxf.storage import files
from streamxf.storage.files import SyncedFile
from tests.failing import fails_with

MIB = 2**20


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What was asked of the system, as ranges of bytes."""
    ranges: list[tuple[int, int]] = []

    def note(descriptor: int, offset: int, size: int, flags: int) -> int:
        assert flags == 2  # begin, and wait for nothing
        assert os.fstat(descriptor).st_size >= offset + size
        ranges.append((offset, offset + size))
        return -1  # as of file systems that cannot do it

    monkeypatch.setattr(files, "_begin", note)
    return ranges


@pytest.mark.parametrize("piece", [100_000, MIB, 9 * MIB])
def test_all_of_a_file_but_its_end_is_on_its_way(tmp_path: Path, begun: list[tuple[int, int]], piece: int) -> None:
    data = os.urandom(21 * MIB + 5)
    with open(tmp_path / "file", "wb", buffering=0) as raw:
        file = SyncedFile(raw)
        for at in range(0, len(data), piece):
            write_all(file, data[at : at + piece])
        assert [start for start, _ in begun] == [0, *(stop for _, stop in begun[:-1])]
        assert all(stop - start >= 4 * MIB for start, stop in begun)
        assert len(data) - begun[-1][1] < 4 * MIB + piece
        file.sync()
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the call")
def test_the_system_takes_the_call(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb", buffering=0) as raw:
        raw.write(bytes(MIB))
        assert files._begin(raw.fileno(), 0, MIB, 2) == 0


def test_a_file_without_a_descriptor(begun: list[tuple[int, int]]) -> None:
    raw = io.BytesIO()
    file = SyncedFile(raw)
    write_all(file, bytes(5 * MIB))
    file.sync()
    assert len(raw.getbuffer()) == 5 * MIB
    assert begun == []


def test_a_system_without_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_begin", None)
    with open(tmp_path / "file", "wb") as raw:
        file = SyncedFile(raw)
        write_all(file, bytes(5 * MIB))
        file.sync()
        assert (tmp_path / "file").stat().st_size == 5 * MIB


def test_only_what_was_taken_counts(tmp_path: Path, begun: list[tuple[int, int]]) -> None:
    class Slow(io.FileIO):
        def write(self, data: Any, /) -> int:
            return super().write(memoryview(data)[: 3 * MIB])

    with Slow(tmp_path / "file", "w") as raw:
        write_all(SyncedFile(raw), bytes(10 * MIB))
    assert begun == [(0, 6 * MIB), (6 * MIB, 10 * MIB)]


@pytest.mark.parametrize("call", ["flush", "fsync"])
def test_a_sync_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    fail = fails_with(OSError, errno.EIO, "fault injected")
    with open(tmp_path / "file", "wb") as raw:
        file = SyncedFile(raw)
        file.write(b"data")
        with monkeypatch.context() as patch:
            if call == "fsync":
                patch.setattr(os, "fsync", fail)
            else:
                patch.setattr(file, "_raw", type("Full", (), {"flush": fail})())
            with pytest.raises(OSError, match="fault injected"):
                file.sync()


class Disk:
    """Takes the place of ``os.fdatasync``: a call lasts until `go` is set, and fails if there is a `failure`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.descriptors: list[int] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.failure: OSError | None = None
        self.take: Callable[[], object] = lambda: None
        monkeypatch.setattr(os, "fdatasync", self._flush)
        monkeypatch.setattr(files, "_slow_disks", {os.stat(tempfile.gettempdir()).st_dev: True})

    def _flush(self, descriptor: int) -> None:
        self.descriptors.append(descriptor)
        self.begun.set()
        assert self.go.wait(60)
        self.take()
        if self.failure is not None:
            raise self.failure


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the call")
class TestFlushes:
    def test_one_at_a_time_while_more_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = Disk(monkeypatch)
        with open(tmp_path / "file", "wb", buffering=0) as raw:
            file = SyncedFile(raw, flushes=True)
            for _ in range(20):
                write_all(file, bytes(8 * MIB))
            assert disk.begun.wait(60)
            assert len(disk.descriptors) == 1
            disk.go.set()
            file.sync()
            write_all(file, bytes(32 * MIB))
            file.sync()
            assert len(disk.descriptors) == 2
            assert raw.fileno() not in disk.descriptors
        for descriptor in disk.descriptors:
            with pytest.raises(OSError, match="descriptor"):
                os.fstat(descriptor)

    @pytest.mark.parametrize(
        ("flush", "sync", "counts"), [(0.001, 0.05, [1, 1, 1]), (0.05, 0.0, [3, 6, 9]), (0.001, 2.0, [1, 2, 3])]
    )
    def test_those_that_follow_where_one_takes_long(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: float, sync: float, counts: list[int]
    ) -> None:
        """The first flush of a process tells, and once again after a sync at the end that took long."""
        disk, clock = Disk(monkeypatch), [0.0]
        disk.go.set()
        monkeypatch.setattr(files, "_slow_disks", {})
        monkeypatch.setattr(files, "perf_counter", lambda: clock[0])
        monkeypatch.setattr(os, "fsync", lambda descriptor: clock.append(clock.pop() + sync))
        monkeypatch.setattr(disk, "take", lambda: clock.append(clock.pop() + flush))
        for count in counts:
            with open(tmp_path / "file", "wb", buffering=0) as raw:
                file = SyncedFile(raw, flushes=True)
                for _ in range(3):
                    write_all(file, bytes(32 * MIB))
                    if file._flush is not None:
                        file._flush.result()
                file.sync()
            assert len(disk.descriptors) == count

    def test_what_it_measures_has_been_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Or a disk would count as slow whose writes are, which are under way anyway."""
        disk, calls = Disk(monkeypatch), list[Any]()
        disk.go.set()
        monkeypatch.setattr(files, "_begin", lambda descriptor, *what: calls.append(what))
        monkeypatch.setattr(disk, "take", lambda: calls.append("flush"))
        with open(tmp_path / "file", "wb", buffering=0) as raw:
            file = SyncedFile(raw, flushes=True)
            write_all(file, bytes(33 * MIB))
            file.sync()
        assert calls == [(0, 33 * MIB, 2), (0, 33 * MIB, 7), "flush"]

    @pytest.mark.parametrize("more", [0, 64])
    def test_what_the_disk_could_not_take_fails_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
    ) -> None:
        """Though its sync at the end succeeds: the system tells an error once."""
        disk = Disk(monkeypatch)
        disk.failure = OSError(errno.EIO, "fault injected")
        with open(tmp_path / "file", "wb", buffering=0) as raw:
            file = SyncedFile(raw, flushes=True)
            write_all(file, bytes(32 * MIB))
            disk.go.set()
            while more and not file._flush.done():  # type: ignore[union-attr]
                pass
            with pytest.raises(OSError, match="fault injected"):
                write_all(file, bytes(more * MIB)) if more else file.sync()

    def test_a_file_that_is_given_up_waits_for_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = Disk(monkeypatch)
        with open(tmp_path / "file", "wb", buffering=0) as raw:
            write_all(SyncedFile(raw, flushes=True), bytes(32 * MIB))
            assert disk.begun.wait(60)
        os.fstat(disk.descriptors[0])  # which is still its own, and not of another file that was opened since
        disk.go.set()

    @pytest.mark.parametrize(("abilities", "count"), [({}, 1), ({"locks": "machine"}, 0)])
    def test_saves_have_a_disk_do_it_and_no_server(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abilities: dict[str, str], count: int
    ) -> None:
        disk = Disk(monkeypatch)
        disk.go.set()
        place = streamxf.open_storage(tmp_path / "saved", abilities=abilities)
        with streamxf.CheckpointWriter(place, chain="raw") as writer:
            writer.add("noise", numpy.zeros(36 * MIB, numpy.uint8))
        assert len(disk.descriptors) == count
