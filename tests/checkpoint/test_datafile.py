"""Who writes the blocks of a data file, and what becomes of an error that a worker met there."""

import errno
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import WriteItem

from streamxf import Checkpoint, CheckpointWriter, FileSystemWriter, engine
from streamxf.engine import Engine, in_worker
from streamxf.errors import CodecError
from streamxf.storage import files
from streamxf.storage.files import SyncedFile
from streamxf.stream import encoder
from tests.failing import fails_with

BLOCK = 1 << 17
ARRAY = np.random.default_rng(5).integers(0, 2**63, (20, BLOCK // 8))  # 20 blocks, which do not shrink


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one, on any machine: the last one does not write."""
    monkeypatch.setattr(engine, "_engine", Engine(3))


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each payload, whether a worker wrote it."""
    made: list[bool] = []
    real = SyncedFile.write

    def write(file: SyncedFile, data: memoryview) -> int | None:
        if len(data) >= BLOCK:
            made.append(in_worker())
        return real(file, data)

    monkeypatch.setattr(SyncedFile, "write", write)
    return made


def save(folder: Path) -> None:
    with CheckpointWriter(folder, chain="checksum", block_size=BLOCK) as writer:
        for name in "ab":
            writer.add(name, ARRAY, copy=False)


def check(folder: Path) -> None:
    with Checkpoint(folder, framework="numpy") as checkpoint:
        for name in "ab":
            np.testing.assert_array_equal(checkpoint[name].read(), ARRAY)


def test_workers_write_what_they_have_finished(tmp_path: Path, writes: list[bool]) -> None:
    """If the machine is busy, a write may take so long that the file's own thread does some."""
    save(tmp_path)
    check(tmp_path)
    assert len(writes) == 40
    assert True in writes


def test_a_slow_folder_keeps_no_worker_waiting(
    tmp_path: Path, writes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SyncedFile.write

    def write(file: SyncedFile, data: memoryview) -> int | None:
        time.sleep(0.003)
        return real(file, data)

    monkeypatch.setattr(SyncedFile, "write", write)
    save(tmp_path)
    check(tmp_path)
    assert writes.count(True) <= 1  # the one that found out


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_is_raised_by_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, slow: bool
) -> None:
    save(tmp_path / "c")
    before = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    count, real = 0, SyncedFile.write

    def write(file: SyncedFile, data: memoryview) -> int | None:
        nonlocal count
        if slow:
            time.sleep(0.003)
        count += 1
        if count >= 30:
            raise OSError(number, os.strerror(number))
        return real(file, data)

    monkeypatch.setattr(SyncedFile, "write", write)
    with (
        pytest.raises(OSError, match=os.strerror(number)) as caught,
        CheckpointWriter(tmp_path / "c", chain="checksum", block_size=BLOCK, overwrite=True) as writer,
    ):
        for name in "ab":
            writer.add(name, ARRAY, copy=False)
    assert caught.value.errno == number
    where, advice = caught.value.__notes__
    assert re.fullmatch(r"while writing item a of file __0_0_[0-9a-f]{32}\.distcp", where)
    assert str(tmp_path / "c") in advice
    assert count == 30, "written to after an error"
    assert {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()} == before
    check(tmp_path / "c")


@pytest.mark.parametrize("error", [CodecError("no"), RuntimeError("no")])
def test_an_error_names_the_item_whose_block_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """And not the one that was being added when the save heard of it."""
    later, real = threading.Event(), encoder.StreamCoder.encode

    def encode(coder: encoder.StreamCoder, block: memoryview, *rest: Any) -> memoryview:
        if not any(block):
            later.wait()
            raise error
        return real(coder, block, *rest)

    monkeypatch.setattr(encoder.StreamCoder, "encode", encode)
    with (
        pytest.raises(type(error)) as caught,
        CheckpointWriter(tmp_path / "c", chain="checksum", block_size=BLOCK) as writer,
    ):
        writer.add("first", np.zeros(BLOCK, np.uint8), copy=False)
        later.set()
        for number in range(40):
            writer.add(f"later {number}", ARRAY, copy=False)
    if isinstance(caught.value, CodecError):
        assert caught.value.item == "first"
        assert str(caught.value.file).startswith("__0_0_")
    else:
        assert caught.value.__notes__[0].startswith("while writing item first of file __0_0_")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize(("method", "doing"), [("sync", "ending"), ("close", "storing")])
def test_an_error_at_the_end_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, method: str, doing: str
) -> None:
    """Network file systems tell of what they could not store when a file is closed."""

    flushes, real = list[None](), files.GatheringFile.flush

    def flush(file: files.GatheringFile) -> None:
        flushes.append(None)
        if method == "sync" or len(flushes) == 2:
            raise OSError(number, os.strerror(number))
        real(file)

    monkeypatch.setattr(files.GatheringFile, "flush", flush)
    with (
        pytest.raises(OSError, match=os.strerror(number)) as caught,
        CheckpointWriter(tmp_path / "c", chain="checksum") as writer,
    ):
        writer.add("a", ARRAY[0, :10])
    where, advice = caught.value.__notes__
    assert re.fullmatch(rf"while {doing} file __0_0_[0-9a-f]{{32}}\.distcp", where)
    assert str(tmp_path / "c") in advice
    assert not (tmp_path / "c").exists()


def test_small_items_that_are_written_together_are_not_blamed_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "write_all", fails_with(OSError, errno.EIO, os.strerror(errno.EIO)))
    with (
        pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught,
        CheckpointWriter(tmp_path / "c", chain="checksum") as writer,
    ):
        for number in range(10):
            writer.add(str(number), ARRAY[0, :2000])
    what, where, _ = caught.value.__notes__
    assert what == "several small items were being written, up to the named one"
    assert where.startswith("while writing item 4 of file __0_0_")


def test_the_first_cause_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else goes wrong before the save hears of it; but an interrupt goes its way."""
    reached, failed, real = threading.Event(), threading.Event(), SyncedFile.write

    def write(file: SyncedFile, data: memoryview) -> int | None:
        if len(data) >= BLOCK and in_worker():
            reached.wait()
            failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(file, data)

    class Gone(DefaultSavePlanner):
        later: BaseException = ValueError("gone")

        def resolve_data(self, write_item: WriteItem) -> Any:
            if write_item.index.fqn == "b":
                reached.set()
                assert failed.wait(60)
                time.sleep(0.1)
                raise self.later
            return super().resolve_data(write_item)

    monkeypatch.setattr(SyncedFile, "write", write)
    state = {name: torch.from_numpy(ARRAY[:6]) for name in "ab"}  # all of whose blocks may be under way
    for Gone.later in (ValueError("gone"), KeyboardInterrupt()):
        reached.clear(), failed.clear()
        writer = FileSystemWriter(tmp_path / "c", chain="checksum", block_size=BLOCK)
        with pytest.raises(CheckpointException) as caught:
            dcp.save(state, storage_writer=writer, planner=Gone(), no_dist=True)
        (found, _) = caught.value.failures[0]
        if isinstance(Gone.later, KeyboardInterrupt):
            assert type(found) is KeyboardInterrupt
        else:
            assert isinstance(found, OSError)
            assert found.errno == errno.EIO
            assert found.__notes__[0].startswith("while writing item a of file __0_0_")
        assert not [*(tmp_path / "c").iterdir()]


def test_a_file_that_was_just_created_is_removed_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def fail(raw: Any, *rest: object) -> None:
        opened.append(raw)
        raise KeyboardInterrupt

    monkeypatch.setattr("streamxf.checkpoint.writer.DataFile", fail)
    with pytest.raises(KeyboardInterrupt), CheckpointWriter(tmp_path / "c", chain="checksum") as writer:
        writer["a"] = ARRAY
    assert not (tmp_path / "c").exists()
    with pytest.raises(ValueError, match="closed"):
        opened[0].fileno()


def test_progress_is_told_in_the_thread_that_saves(tmp_path: Path, writes: list[bool]) -> None:
    """Which may hold a lock of the progress's meanwhile."""
    threads, counts = set[int](), {"expected": 0, "done": 0}

    class Counter:
        def expect(self, count: int) -> None:
            counts["expected"] += count

        def advance(self, count: int) -> None:
            threads.add(threading.get_ident())
            counts["done"] += count

    with CheckpointWriter(tmp_path, chain="checksum", block_size=BLOCK, progress=Counter()) as writer:
        writer.add("a", ARRAY, copy=False)
        writer.add("small", ARRAY[0, :10], copy=False)
        writer.add("b", ARRAY, copy=False)
    assert counts == {"expected": 2 * ARRAY.nbytes + 80, "done": 2 * ARRAY.nbytes + 80}
    assert threads == {threading.get_ident()}
    assert len(writes) == 40
