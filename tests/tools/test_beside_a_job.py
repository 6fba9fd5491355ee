"""Tools beside a job that saves, or whose rules remove: what is under way is left alone and is no damage."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.checkpoint import resumable
from streamxf.errors import NoCheckpointError
from streamxf.format.names import LOCK
from streamxf.storage import lock
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage
from streamxf.tools.clean import in_use
from tests.altered import flip
from tests.dcp.shards import rows, save_shards
from tests.faults.forks import run_one
from tests.polling import wait_until

STATE = {"weight": torch.arange(1000.0)}
SAVES = """
import sys, time, numpy as np, streamxf
with streamxf.CheckpointWriter(sys.argv[1], overwrite=True) as writer:
    writer["weight"] = np.arange(1000.0)
    writer._file.settle()
    print("written", flush=True)
    sys.stdin.readline()
"""


def newest_data(folder: Path) -> str:
    return max(folder.glob("*.distcp"), key=lambda path: path.stat().st_mtime_ns).name


@contextmanager
def save_under_way(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has written data and waits, until it gets a line."""
    command = [sys.executable, "-c", SAVES, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "written\n"
            yield process
        finally:
            process.kill()


class Meanwhile:
    """A progress that does something as soon as it hears of any."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def expect(self, _: int) -> None:
        self._call()

    def advance(self, _: int) -> None:
        """What is done is done."""


def test_clean_leaves_a_save_alone_until_its_process_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "step"
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(folder))
    with save_under_way(folder) as process:
        report = streamxf.clean(folder)
        assert report.removed == ()
        assert len(report.recent) == 1
        process.communicate("\n")
        assert process.returncode == 0
    assert np.array_equal(streamxf.Checkpoint(folder)["weight"].read(), np.arange(1000.0))
    with save_under_way(folder) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(streamxf.clean(folder).removed) == 1


def test_a_save_by_dcp_is_locked_until_it_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, put, locked = streamxf.FileSystemWriter(tmp_path), LocalStorage.put, list[bool]()

    def put_once_looked_at(storage: LocalStorage, path: str, *given: Any, **more: Any) -> None:
        locked.append(in_use(storage, [newest_data(tmp_path)], lately=False))
        put(storage, path, *given, **more)

    monkeypatch.setattr(LocalStorage, "put", put_once_looked_at)
    for _ in range(2):
        dcp.save(STATE, storage_writer=writer)
    assert locked == [True, True]
    assert not in_use(open_storage(tmp_path), [newest_data(tmp_path)], lately=False)


def test_verify_calls_a_first_save_under_way_no_damage(tmp_path: Path) -> None:
    with (
        save_under_way(tmp_path / "step"),
        pytest.raises(NoCheckpointError, match="a save to this folder is under way"),
    ):
        streamxf.verify(tmp_path / "step")


@pytest.mark.parametrize("what", ["a removal under way", "a file that is not locked yet"])
def test_verify_calls_what_is_half_there_no_damage(tmp_path: Path, what: str) -> None:
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(tmp_path))
    (tmp_path / ".metadata").unlink()
    assert not streamxf.verify(tmp_path).ok
    half = tmp_path / (LOCK if what == "a removal under way" else newest_data(tmp_path))
    half.write_bytes(b"")
    with pytest.raises(NoCheckpointError, match="or its removal"):
        streamxf.verify(tmp_path)
    for old in (1e9, time.time() + 1e7):  # another machine's clock is a year ahead
        os.utime(half, (old, old))
        assert not streamxf.verify(tmp_path).ok


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_verify_looks_again_before_it_calls_something_damaged(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "step"
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(folder))

    def meanwhile() -> None:
        if change == "removed":
            shutil.rmtree(folder, ignore_errors=True)
        elif len(list(folder.iterdir())) == 2:
            dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(folder))

    with pytest.raises(NoCheckpointError, match="verify it again"):
        streamxf.verify(folder, progress=Meanwhile(meanwhile))


def test_verify_of_a_run_says_which_of_its_checkpoints_went_meanwhile(tmp_path: Path) -> None:
    for step in range(3):
        dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(tmp_path / f"step-{step}"))
    report = streamxf.verify(
        tmp_path, progress=Meanwhile(lambda: shutil.rmtree(tmp_path / "step-2", ignore_errors=True))
    )
    assert report.ok, str(report)
    wait_until(lambda: not (tmp_path / "step-2").exists())
    assert any("step-2" in text for text in report.unchecked), report.unchecked


def test_verify_hides_no_damage_for_times_and_links(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "step-1"
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(folder))
    flip(*folder.glob("*.distcp"), -100)

    def meanwhile() -> None:
        os.utime(folder / ".metadata")
        os.link(folder / ".metadata", tmp_path / os.urandom(8).hex())  # as backups do

    for path in (folder, folder.parent):
        assert not streamxf.verify(path, progress=Meanwhile(meanwhile)).ok


@pytest.mark.parametrize("how", ["here", "by workers", "resumed"])
def test_a_conversion_is_locked_until_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(tmp_path))
    publish, kept = resumable.publish, list[bool]()

    def clean_before(*arguments: Any, **options: Any) -> Any:
        if how == "resumed" and not kept:
            kept.append(True)
            raise TimeoutError
        kept.append(not streamxf.clean(tmp_path).removed)
        return publish(*arguments, **options)

    monkeypatch.setattr(resumable, "publish", clean_before)
    convert = partial(streamxf.transcode, tmp_path, in_place=True, chain="zstd")
    if how == "resumed":
        with pytest.raises(TimeoutError):
            convert()
    convert(executor=ThreadPoolExecutor() if how == "by workers" else None)
    assert all(kept)
    assert streamxf.verify(tmp_path).ok
    report = streamxf.clean(tmp_path)
    assert report.recent == report.removed == ()


def test_a_save_makes_anew_what_clean_removes_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(tmp_path))
    set_lock, removed = lock._set_lock, list[str]()

    def clean_before(file: Any, kind: int, posix: int) -> None:
        if kind == fcntl.F_WRLCK and not removed:
            removed.extend(streamxf.clean(tmp_path).removed)
        set_lock(file, kind, posix)

    monkeypatch.setattr(lock, "_set_lock", clean_before)
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(tmp_path))
    assert len(removed) == 1
    assert streamxf.verify(tmp_path).ok


def test_clean_spares_what_is_locked_after_it_has_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(tmp_path))
    names = sorted(f"__{rank}_0_{os.urandom(16).hex()}.distcp" for rank in range(2))
    for name in names:
        (tmp_path / name).touch()
    older_than, held = Storage.older_than, list[Any]()

    def lock_before(storage: Storage, *given: Any) -> set[str]:
        held.append(storage.lock_file(names[0], make=True))
        return older_than(storage, *given)

    monkeypatch.setattr(Storage, "older_than", lock_before)
    report = streamxf.clean(tmp_path)
    assert (report.removed, report.recent, report.failed) == ((), tuple(names), {})
    held[0].close()


def test_a_rank_with_data_locks_it_for_one_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_shards(tmp_path, [STATE])
    finish, kept = streamxf.FileSystemWriter.finish, list[bool]()

    def clean_before(writer: streamxf.FileSystemWriter, *given: Any) -> None:
        kept.append(not streamxf.clean(tmp_path).removed)
        finish(writer, *given)

    monkeypatch.setattr(streamxf.FileSystemWriter, "finish", clean_before)
    save_shards(tmp_path, [{}, {"t": rows(torch.arange(800.0), 0, 1)}])
    assert kept == [True]
    assert streamxf.verify(tmp_path).ok


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("mask", [0o022, 0o077], ids=["read", "unread"])
def test_another_user_sees_the_lock(mask: int, request: pytest.FixtureRequest) -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's own are closed to others
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o777)
    dcp.save(STATE, storage_writer=streamxf.FileSystemWriter(folder))
    assert streamxf.clean(folder).removed == ()  # and what is imported for it
    request.addfinalizer(partial(os.umask, os.umask(mask)))
    with save_under_way(folder) as process:
        outcome = run_one(lambda: os.setuid(65534) or streamxf.clean(folder).removed)  # type: ignore[func-returns-value]
        assert outcome.value == (), outcome
        process.communicate("\n")
        assert process.returncode == 0
