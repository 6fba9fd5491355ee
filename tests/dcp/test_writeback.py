"""A large file is on its way to the disk before its end is synced."""

from __future__ import annotations

import errno
import io
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from streamxf.dcp import writeback
from streamxf.dcp.output import OutputFile
from streamxf.dcp.writeback import WriteBack
from streamxf.meter import Meter

from .helpers import assert_same, data_files, error_of, load, save


class Disk:
    """Stands for ``fdatasync``: may take its time, and fail."""

    def __init__(self, code: int = 0) -> None:
        self.calls = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._code = code

    def __call__(self, descriptor: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.calls += 1
        assert self.go_on.wait(30)
        if self._code:
            raise OSError(self._code, "fault injected")


def use(monkeypatch: pytest.MonkeyPatch, disk: Any) -> None:
    monkeypatch.setattr(writeback, "STEP", 1000)
    monkeypatch.setattr(writeback, "_fdatasync", disk)


def test_a_sync_every_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    use(monkeypatch, disk)
    with (tmp_path / "file").open("wb") as raw:
        write_back = WriteBack(raw)
        for size, calls in ((999, 0), (1000, 1), (1999, 1), (2000, 2), (9000, 3)):
            write_back.reached(size)
            if write_back._thread is not None:
                write_back._thread.join()
            assert disk.calls == calls
        write_back.end()


def test_a_disk_that_is_behind_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    use(monkeypatch, disk)
    disk.go_on.clear()
    with (tmp_path / "file").open("wb") as raw:
        write_back = WriteBack(raw)
        for size in range(1000, 20_000, 500):
            write_back.reached(size)
        disk.go_on.set()
        write_back.end()
    assert disk.calls == 1


@pytest.mark.parametrize("sync", [True, False])
def test_only_files_that_have_to_be_synced(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, sync: bool) -> None:
    disk = Disk()
    use(monkeypatch, disk)
    save({"w": torch.randn(30_000)}, checkpoint, sync_files=sync)
    assert bool(disk.calls) == sync


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("late", [False, True], ids=["while it is written", "at the end"])
def test_an_error_of_the_disk_fails_the_save(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, code: int, late: bool
) -> None:
    disk = Disk(code)
    use(monkeypatch, disk)
    if late:
        disk.go_on.clear()
        monkeypatch.setattr("streamxf.dcp.output.os.fsync", lambda descriptor: disk.go_on.set())
    error = error_of(lambda: save({str(n): torch.randn(30_000) for n in range(3)}, checkpoint, sync_files=True))
    assert isinstance(error, OSError)
    assert error.errno == code
    assert not list(checkpoint.iterdir())


def test_after_another_error_the_file_is_closed_only_when_the_disk_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(errno.EIO)
    use(monkeypatch, disk)
    disk.go_on.clear()
    with (tmp_path / "file").open("wb") as raw:
        output = OutputFile(raw, Meter(), sync=True)
        output.write(bytes(5000))
        threading.Timer(0.1, disk.go_on.set).start()
        output.cancel()
        assert disk.go_on.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "streamxf-sync"]


def test_a_file_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    use(monkeypatch, disk)
    output = OutputFile(io.BytesIO(), Meter(), sync=True)
    output.write(bytes(5000))
    output.finish()
    assert not disk.calls


def test_a_system_without_the_call(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None)
    state = {"w": torch.randn(30_000)}
    save(state, checkpoint, sync_files=True)
    assert_same(load(state, checkpoint), state)


def test_no_thread_to_be_had(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    use(monkeypatch, disk)

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    state = {"w": torch.randn(30_000)}
    save(state, checkpoint, sync_files=True)
    monkeypatch.undo()
    assert not disk.calls
    assert_same(load(state, checkpoint), state)


def test_the_real_call(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "STEP", 1000)
    state = {str(number): torch.randn(30_000) for number in range(5)}
    save(state, checkpoint, sync_files=True)
    assert len(data_files(checkpoint)) == 1
    assert_same(load(state, checkpoint), state)
