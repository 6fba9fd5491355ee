"""What keeps saves into one folder apart, and what tells which folders are the same."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest

from streamxf.checkpoint import publish
from streamxf.errors import AbortedError
from streamxf.format.names import LOCK, is_run_file, made_by_saves, rank_of
from streamxf.storage import abilities, lock
from streamxf.storage.abilities import Mount
from streamxf.storage.opening import open_storage, storage_over
from streamxf.tools.clean import in_use
from tests.failing import fails_with
from tests.faults.forks import run_one
from tests.polling import at_once

OLD = time.time() - 2 * 86_400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint"
    made.mkdir()
    return made


def test_mounts() -> None:
    here = Mount("a", "nfs4", "server:/export", 7)
    assert not here.is_other_than(replace(here, inode=8))  # what one host sees is looked at
    assert not here.is_other_than(replace(here, host="b"))
    assert not here.is_other_than(replace(here, host="b", source="alias:/export", inode=8))
    assert here.is_other_than(replace(here, host="b", inode=8))
    assert here.is_other_than(Mount("b", "ext4", "/dev/sda", 7))
    assert Mount("b", "ext4", "/dev/sda", 7).is_other_than(here)
    assert Mount("b", "ext4", "/dev/sda", 7).is_other_than(Mount("a", "ext4", "/dev/sda", 7))
    assert not Mount("a", "fuse.x", "x", 7).is_other_than(Mount("b", "fuse.x", "x", 8))


def test_a_lock_on_a_network_file_system_is_one_machines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "mounted", lambda _: ("nfs4", "server:/export"))
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    with lock.locked(open_storage(folder)) as alone:
        assert not alone
        with pytest.raises(AbortedError), lock.locked(open_storage(folder)):
            pass  # it is held all the same


def test_a_handler_does_not_wait_for_its_own_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 1.0)
    refusals: list[str] = []

    def save_as_well(*_: object) -> None:
        with pytest.raises(AbortedError) as caught, lock.locked(open_storage(folder)):
            pass
        refusals.append(caught.value.message)

    before = signal.signal(signal.SIGUSR1, save_as_well)
    try:
        with lock.locked(open_storage(folder)):
            signal.raise_signal(signal.SIGUSR1)
            other = Thread(target=save_as_well)
            other.start()
            other.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    by_handler, by_thread = refusals
    assert by_handler.startswith("this thread is itself publishing")
    assert by_thread.startswith("another process is publishing")
    with lock.locked(open_storage(folder)) as alone:
        assert alone


def test_two_threads_wait_for_each_other(folder: Path) -> None:
    """The lock belongs to an opened file, not to the process."""
    inside: list[int] = []
    most: list[int] = []

    def hold() -> None:
        for _ in range(20):
            with lock.locked(open_storage(folder)):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    at_once(hold, 4)
    assert max(most) == 1
    assert len(most) == 80


def test_who_waits_for_a_folder_that_is_moved_away_locks_the_new_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = lock.fcntl.flock
    locked: list[tuple[int, int]] = []

    def note(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if operation != lock.fcntl.LOCK_UN:
            if not locked:  # now that it is locked
                folder.rename(tmp_path / "moved away")
                folder.mkdir()
            facts = os.fstat(descriptor)
            locked.append((facts.st_dev, facts.st_ino))

    monkeypatch.setattr(lock.fcntl, "flock", note)
    with lock.locked(open_storage(folder)) as alone:
        assert alone
        facts = (folder / LOCK).stat()
        assert locked[-1] == (facts.st_dev, facts.st_ino)
    assert len(locked) == 2
    assert not os.listdir(folder)
    assert not os.listdir(tmp_path / "moved away")


def test_who_waits_for_a_file_that_is_unlinked_locks_the_new_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = lock.fcntl.flock
    calls = []

    def note(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if not calls:
            (folder / LOCK).unlink()
        calls.append(operation)

    monkeypatch.setattr(lock.fcntl, "flock", note)
    with lock.locked(open_storage(folder)):
        assert calls.count(lock.fcntl.LOCK_EX | lock.fcntl.LOCK_NB) == 2
        assert os.listdir(folder) == [LOCK]
    assert not os.listdir(folder)


def test_who_may_only_read_cannot_keep_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    reader = os.open(folder, os.O_RDONLY)
    lock.fcntl.flock(reader, lock.fcntl.LOCK_EX)
    try:
        with lock.locked(open_storage(folder)) as alone:
            assert alone
    finally:
        os.close(reader)


@pytest.mark.parametrize(("mode", "wanted"), [(0o777, 0o660), (0o2770, 0o660), (0o755, 0o600), (0o707, 0o600)])
def test_the_file_is_for_those_who_may_write_to_the_folder(folder: Path, mode: int, wanted: int) -> None:
    folder.chmod(mode)
    before = os.umask(0o077)
    try:
        with lock.locked(open_storage(folder)):
            assert (folder / LOCK).stat().st_mode & 0o777 == wanted
    finally:
        os.umask(before)
    assert not os.listdir(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("seconds", "wanted"), [(60.0, True), (0.0, False)], ids=["new", "old"])
def test_a_user_of_the_group_waits_until_a_new_file_is_open_to_the_group(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, seconds: float, wanted: bool
) -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's own are closed to others
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o770)
    (folder / LOCK).touch(0o600)
    monkeypatch.setattr(lock, "_NEW", seconds, raising=False)
    opening = Timer(0.3 if wanted else 60.0, (folder / LOCK).chmod, [0o660])
    opening.start()
    request.addfinalizer(opening.cancel)

    def take() -> bool:
        os.setuid(65534)
        with lock.locked(open_storage(folder)) as alone:
            return alone

    outcome = run_one(take)
    assert outcome.value is wanted, outcome


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "folder", "pipe"])
def test_what_is_no_lock_counts_as_none(folder: Path, tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.touch(0o644)
    if kind == "folder":
        (folder / LOCK).mkdir()
    elif kind == "pipe":
        os.mkfifo(folder / LOCK)
    else:
        (folder / LOCK).symlink_to(victim if kind == "link" else tmp_path / "nowhere")
    with lock.locked(open_storage(folder)) as alone:
        assert not alone
    assert os.listdir(folder) == [LOCK]
    assert victim.stat().st_mode & 0o777 == 0o644
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_in_place_of_a_file_takes_no_descriptor(folder: Path) -> None:
    (folder / "job").mkdir()
    before = os.listdir("/dev/fd")
    assert open_storage(folder).lock_file("job") is None
    assert os.listdir("/dev/fd") == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_where_its_file_cannot_be_made_there_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *given: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(number, "injected")
        return real(path, flags, *given, **options)

    monkeypatch.setattr(os, "open", refuse)
    with lock.locked(open_storage(folder)) as alone:
        assert not alone


def test_where_there_are_no_locks_no_file_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock.fcntl, "flock", fails_with(OSError, errno.ENOLCK, "injected"))
    with lock.locked(open_storage(folder)) as alone:
        assert not alone
        assert not os.listdir(folder)


def test_a_file_of_a_process_that_was_killed_is_taken_over(folder: Path) -> None:
    (folder / LOCK).touch(0o600)
    assert open_storage(folder).names() == {}
    with lock.locked(open_storage(folder)) as alone:
        assert alone
    assert not os.listdir(folder)


FORKS = """
import os, signal, sys, numpy as np, streamxf
from streamxf.storage.lock import locked
from streamxf.storage.opening import open_storage
with streamxf.CheckpointWriter(sys.argv[1]) as writer, locked(open_storage(sys.argv[1])):
    writer["weight"] = np.arange(1000.0)
    job = open_storage(sys.argv[1]).lock_file("job", make=True)
    os.fork() or print(os.getpid(), flush=True)
    signal.pause()
"""


def test_a_child_that_outlives_a_killed_process_holds_no_lock(folder: Path) -> None:
    """Such as a data loader, forked in the middle of a save."""
    storage = open_storage(folder)
    with subprocess.Popen([sys.executable, "-c", FORKS, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            names = [name for name in storage.names() if name != LOCK]
            assert [in_use(storage, [name]) for name in names] == [True, True]
            process.kill()
            process.wait()
            with lock.locked(storage, patience=0.0) as alone:
                assert alone
            assert not in_use(storage, names)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_leaves_the_lock_to_its_parent(folder: Path) -> None:
    with ExitStack() as stack:
        stack.enter_context(lock.locked(open_storage(folder)))
        assert run_one(stack.close).how == "returned"
        assert os.listdir(folder) == [LOCK]
        assert run_one(lambda: lock.acquire(str(folder), str(folder), 0.0, True)).error.startswith("AbortedError")


def test_what_is_said_beside_a_save_is_no_leftover() -> None:
    names = [".streamxf-commit", ".streamxf-saving", ".streamxf-removed", ".streamxf-note-0123abcd"]
    names += [f"{name}.0123abcd.tmp" for name in names]
    for name in [*names, LOCK]:
        assert made_by_saves(name) or is_run_file(name)
        assert not made_by_saves(name)
        assert rank_of(name) is None
    assert publish.leftovers([*names, LOCK], (), None) == publish.leftovers([*names, LOCK], (), 0) == []
    for name in (".streamxf-note", ".streamxf-note-0123abcg", ".streamxf-commit.tmp", ".streamxf", "a.streamxf-commit"):
        assert [made_by_saves(name), is_run_file(name)] == [None, False]


@pytest.mark.parametrize(
    "listed",
    [
        lambda at: {"LastModified": datetime.fromtimestamp(at, UTC)},
        lambda at: {"last_modified": datetime.fromtimestamp(at, UTC)},
        lambda at: {"mtime": at},
        lambda at: {"updated": datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")},
        lambda at: {},
        lambda at: {"updated": "some time ago"},
    ],
)
def test_what_stores_tell_of_the_last_write(listed: Callable[[float], dict[str, Any]]) -> None:
    """In the listing; where it is not there each file is asked for, and if that tells nothing, the file stays."""

    class Inner:
        def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
            return [{"name": f"bucket/{name}", "size": 1, **listed(at)} for name, at in written.items()]

        def modified(self, path: str) -> datetime:
            asked.append(path)
            if path.endswith("old"):
                return datetime.fromtimestamp(OLD, UTC)
            raise NotImplementedError

    storage = storage_over(Inner(), "bucket", "bucket")
    written = {"old": OLD, "new": time.time(), "tomorrow": time.time() + 86_400}
    asked: list[str] = []
    told = listed(OLD)
    found = storage.older_than(written, storage.DAY)
    assert found == (set() if told.get("updated") == "some time ago" else {"old"})
    assert bool(asked) == (not told)
    assert storage.older_than(written, 0) == set(written)
