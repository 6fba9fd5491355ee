"""What a place can do, who says so, and what follows for locks, removals, streams, caches and chained URLs."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem
from torch.distributed.checkpoint.api import CheckpointException

import streamxf
from streamxf.errors import AbortedError, ParameterError, UnsupportedError
from streamxf.manager import sessions
from streamxf.manager.manager import CheckpointManager
from streamxf.manager.sessions import is_held
from streamxf.storage import abilities
from streamxf.storage import stores as conditions
from streamxf.storage.abilities import Abilities
from streamxf.storage.lock import locked
from streamxf.storage.opening import open_storage, storage_over
from tests.storage.stores import MemoryStorage

LATER = ("fuse.rclone", "bucket:")


def state(step: int = 1) -> dict[str, Any]:
    return {"w": torch.arange(3_000_000.0) + step}


def save(place: Any, **how: Any) -> None:
    dcp.save(state(), storage_writer=streamxf.FileSystemWriter(place, chain="zstd", **how), no_dist=True)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that stores files some time after they were closed."""
    monkeypatch.setattr(abilities, "mounted", lambda _: LATER)


def test_who_says_what_a_place_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_here = open_storage(tmp_path)
    assert disk_here.child("not/there/yet").abilities == disk_here.abilities
    assert disk_here.abilities.keeps_older
    told = open_storage(tmp_path, abilities={"locks": "none", "stored": False})
    for each in (
        told,
        told.child("a"),
        told.child("a").parent()[0],
        told.hold().let_go(),
        pickle.loads(pickle.dumps(told)),
    ):
        assert (each.abilities.locks, each.abilities.keeps_older, each.abilities.in_order) == ("none", False, True)
    for kind, locks in (("", "machine"), ("autofs", "machine"), ("fuse.of-somebody", None), ("fuse.rclone", "none")):
        monkeypatch.setattr(abilities, "mounted", lambda _, kind=kind: (kind, ""))
        assert disk_here.abilities.locks == locks
        assert not disk_here.abilities.keeps_older
    assert not MemoryStorage().told({"stored": None, "in_order": False}).abilities.keeps_older


@pytest.mark.parametrize("said", [{"stored": "yes"}, {"locks": "all"}, {"speed": True}, ["stored"], {"locks": True}])
def test_what_no_ability_is(tmp_path: Path, said: Any) -> None:
    with pytest.raises(ParameterError, match="abilities= has"):
        open_storage(tmp_path, abilities=said)


def test_the_mount_of_a_folder_is_found_by_its_own_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Btrfs numbers the devices of subvolumes as no list of mounts has them."""
    found = abilities.mounted(tmp_path)
    assert found[0]
    monkeypatch.setattr(abilities.os, "stat", lambda *_, **__: pytest.fail("a device was asked for"))
    assert abilities.mounted(tmp_path) == found
    assert abilities.mounted("/proc")[0] == "proc"
    assert abilities.mounted(tmp_path / "not-there") == ("", "")


def test_clients_are_known_by_their_class_and_protocol() -> None:
    memory = abilities.of_client(MemoryFileSystem)
    same = type("Same", (MemoryFileSystem,), {})
    other = type("Other", (MemoryFileSystem,), {"protocol": "other"})
    assert abilities.of_client(same) == memory
    assert abilities.of_client(other) == Abilities("none")
    assert storage_over(other(), "/x", "other://x").abilities.in_one_step is None


def test_a_save_over_a_checkpoint_is_refused_where_it_may_be_stored_later(tmp_path: Path, later: None) -> None:
    save(tmp_path / "a")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(dcp.api.CheckpointException, match=r"abilities=.*'stored': True") as failure:
        save(tmp_path / "a")
    assert "s3://" in str(failure.value)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(UnsupportedError, match="a crash might leave neither"):
        streamxf.CheckpointWriter(tmp_path / "a", overwrite=True)
    known = open_storage(tmp_path / "a", abilities={"stored": True, "in_order": True})
    save(known)
    assert sorted(tmp_path.rglob("*")) != before
    assert streamxf.verify(tmp_path / "a").ok


def test_rules_keep_what_may_be_all_that_is_stored(
    tmp_path: Path, later: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps() -> list[int]:
        return [each.step for each in streamxf.list_checkpoints(tmp_path) if each.complete]

    with CheckpointManager(tmp_path, keep=1) as manager:
        for step in range(1, 6):
            manager.save(step, {"step": step})
        manager.wait()
        assert steps() == [1, 2, 3, 4, 5], "all of these may still be on their way"
        monkeypatch.setattr("streamxf.manager.state._LONGEST_DELAY", -1.0)
        manager.save(6, {"step": 6})
    assert steps() == [4, 5, 6]
    with CheckpointManager(tmp_path, keep=1, abilities={"stored": True, "in_order": True}) as manager:
        manager.save(7, {"step": 7})
    assert steps() == [7]


@pytest.mark.parametrize("way", ["damaged", "asked"])
def test_a_checkpoint_that_training_went_back_behind_is_out_of_the_way(tmp_path: Path, later: None, way: str) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.save(step, {"w": torch.full((100,), step)})
    if way == "damaged":
        data = next((tmp_path / "step-3").glob("*.distcp"))
        data.write_bytes(data.read_bytes()[:-400])
    state = {"w": torch.zeros(100, dtype=torch.int64)}
    with CheckpointManager(tmp_path, abilities={"fresh": True}) as manager:
        assert manager.resume(state, step=2 if way == "asked" else None) == 2
        manager.save(3, {"w": torch.full((100,), 30)})
        with pytest.raises(CheckpointException, match="not known to store"):
            manager.save(3, {"w": torch.full((100,), 31)})
    with CheckpointManager(tmp_path) as manager:
        assert (manager.resume(state), state["w"][0]) == (3, 30)


def test_no_file_is_opened_to_be_locked_where_that_may_empty_it(tmp_path: Path, later: None) -> None:
    """rclone's mount (1.60.1) without its cache stores an empty file once a second descriptor of it is closed."""
    here = open_storage(tmp_path)
    assert here.lock_file("a", make=True) is None
    with locked(here) as alone:
        assert not alone
    assert not [*tmp_path.iterdir()]
    lock = here.told({"locks": "machine"}).lock_file("a", make=True)
    assert lock is not None
    lock.close()


def test_a_free_lock_says_nothing_of_hosts_that_it_does_not_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_storage(tmp_path)
    here.make_folder(".streamxf")
    ours, theirs = sessions._machine_mark() + "0" * 20, "f" * 32
    for session in (ours, theirs):
        here.put(f".streamxf/session-{session}.lock", b"")
    assert [is_held(here, session) for session in (ours, theirs)] == [False, False]
    with locked(here) as alone:
        assert alone
    far = here.told({"locks": "machine"})
    assert [is_held(far, session) for session in (ours, theirs)] == [False, None]
    with locked(far) as alone:
        assert not alone
        with pytest.raises(AbortedError), locked(far, patience=0):
            pytest.fail("it is held all the same")
    lock = here.lock_file(f".streamxf/session-{theirs}.lock", make=True)
    assert lock is not None
    with lock:
        assert is_held(far, theirs)


class Viewing:
    """A file that keeps views of what it is given until it is closed, as obstore's does."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self.given: list[memoryview] = []
        self.close = lambda: filesystem.store.update({path: b"".join(self.given)})

    def write(self, data: Any) -> int:
        self.given.append(memoryview(data))
        return len(data)


class Views(MemoryFileSystem):
    protocol = "views"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return Viewing(self, self._strip_protocol(path))


def test_a_stream_that_is_not_known_to_copy_gets_bytes_of_its_own() -> None:
    storage = storage_over(Views(), f"/{uuid4().hex}", "views://place")
    buffer = bytearray(b"first")
    with storage.create("a") as file:
        file.write(buffer)
        buffer[:] = b"again"
        file.write(buffer)
    assert Views.store[storage.path_of("a")] == b"firstagain"
    with storage.told({"copies": True}).create("b") as file:
        file.write(buffer)
        buffer[:] = b"other"
    assert Views.store[storage.path_of("b")] == b"other", "a caller who says so is taken at their word"


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[str]:
    memory = fsspec.filesystem("memory")
    run = f"memory://{uuid4().hex}"
    with CheckpointManager(run) as manager:
        for step in (1, 2):
            manager.save(step, {"step": step})
    yield f"filecache::{run}"
    memory.rm(run.removeprefix("memory:/"), recursive=True)


def test_a_cache_is_refused_where_it_would_do_harm_and_read_past_elsewhere(cached: str, tmp_path: Path) -> None:
    options = {"filecache": {"cache_storage": str(tmp_path)}}
    plain = cached.removeprefix("filecache::")
    for refused in (
        lambda: CheckpointManager(cached, storage_options=options),
        lambda: streamxf.FsspecWriter(f"{cached}/step-3", **options),
        lambda: streamxf.CheckpointWriter(f"{cached}/step-3", storage_options=options),
    ):
        with pytest.raises(UnsupportedError, match="leads through a cache"):
            refused()
    file = f"{cached}/log.sxf"
    with streamxf.open(f"{plain}/log.sxf", "wb") as log:
        log.write(b"as it was")
    for write in (
        lambda: streamxf.open(file, "wb", storage_options=options),
        lambda: streamxf.unpack(f"{plain}/step-2", f"{cached}/step-2.pt", target_options=options),
        lambda: streamxf.unpack(f"{plain}/step-2", f"{cached}/out", target_options=options, skip_objects=True),
    ):
        with pytest.raises(UnsupportedError, match="leads through a cache"):
            write()
    with pytest.warns(UserWarning, match="leads through a cache"), streamxf.open(file, storage_options=options) as log:
        assert log.read() == b"as it was"
    assert str(streamxf.latest(cached, storage_options=options)).endswith("/step-2")
    reader = streamxf.FsspecReader(f"{cached}/step-2", **options)
    with pytest.warns(UserWarning, match="leads through a cache"):
        dcp.load({"step": 0}, storage_reader=reader, no_dist=True)
    with (
        pytest.warns(UserWarning, match="leads through a cache"),
        streamxf.Checkpoint(f"{cached}/step-2", storage_options=options) as saved,
    ):
        assert saved["step"].read() == 2
    with CheckpointManager(plain) as manager:
        manager.save(2, {"step": 22})  # by another process, which the cache does not know of
    assert str(streamxf.latest(cached, verify="whole", storage_options=options)).endswith("/step-2")
    assert streamxf.verify(f"{cached}/step-2", storage_options=options).ok


@pytest.mark.parametrize("kind", ["dir", "zip", "tar"])
def test_a_chained_url_is_one_place(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    target = f"dir://step-1::{run.as_uri()}" if kind == "dir" else str(run / "step-1")
    run.mkdir()
    writer = streamxf.FsspecWriter(target) if kind == "dir" else streamxf.FileSystemWriter(target)
    dcp.save(state(), storage_writer=writer, no_dist=True)
    assert [each.name for each in run.iterdir()] == ["step-1"]
    if kind != "dir":
        made = shutil.make_archive(str(tmp_path / "a"), kind, tmp_path, "run")
        target = f"{kind}://run/step-1::{Path(made).as_uri()}"
        assert streamxf.latest(target.replace("/step-1::", "::")) == target
    found = {"w": torch.zeros(3_000_000)}
    dcp.load(found, storage_reader=streamxf.FsspecReader(target), no_dist=True)
    assert torch.equal(found["w"], state()["w"])
    assert streamxf.verify(target).ok


def test_links_of_a_chained_url_are_joined_in_the_first() -> None:
    for run, step in {
        "zip://run::file:///a.zip": "zip://run/step-1::file:///a.zip",
        "zip://::file:///a.zip": "zip://step-1::file:///a.zip",
        "filecache::s3://b/run": "filecache::s3://b/run/step-1",
        "s3://b/run": "s3://b/run/step-1",
    }.items():
        place = MemoryStorage("run")
        place._location = run
        assert place.location("step-1") == step
        assert place.child("step-1").parent()[0].location() == run


@pytest.mark.parametrize("url", ["zip:///tmp/a.zip", "tar://run"])
def test_an_archive_is_named_behind_its_folder(url: str) -> None:
    """fsspec would open the working folder (2026.9)."""
    with pytest.raises(ParameterError, match=rf"write {url[:3]}://FOLDER::file:///PATH\.{url[:3]}"):
        open_storage(url)


@pytest.mark.parametrize("answer", [412, None, 501, 403])
def test_the_first_put_shows_whether_a_store_heeds_conditions(
    answer: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Some take a condition and do not look at it, which no error shows; what is asked is put beside, and removed."""
    filesystem = fsspec.filesystem("memory")
    objects: dict[str, bytes] = {}
    puts: list[str] = []

    class Refusal(Exception):
        def __init__(self, status: int) -> None:
            self.response = {"Error": {"Code": str(status)}}

    class Store:
        bucket = f"bucket-{answer}"

        def __init__(self, path: str) -> None:
            self.path = path

        def stamp(self) -> str:
            if self.path not in objects:
                raise FileNotFoundError
            return str(objects[self.path])

        def put_over(self, data: bytes, stamp: str) -> None:
            if answer == 501 or (answer == 403 and self.path != "a"):
                raise OSError("refused") from Refusal(answer)
            if answer == 412 and stamp != (str(objects[self.path]) if self.path in objects else ""):
                raise OSError("refused") from Refusal(412)
            puts.append(self.path)
            objects[self.path] = data

    monkeypatch.setattr(conditions, "make_request", lambda _, call: call())
    monkeypatch.setattr(conditions, "can_condition", lambda _: True)
    monkeypatch.setattr(conditions, "store_of", lambda _, path: Store(path))
    monkeypatch.setattr(filesystem, "pipe_file", lambda path, data: objects.update({path: data}))
    monkeypatch.setattr(filesystem, "rm_file", lambda path: objects.pop(path))
    conditions.put_over(filesystem, "a", b"one", conditions.ABSENT)
    assert objects == {"a": b"one"}
    wanted = dict.fromkeys(("creates", "replaces"), None if answer == 403 else answer == 412)
    assert conditions.tried(filesystem, "a") == wanted
    assert ("ignores the condition" in caplog.text) == (answer in (None, 501))
    before = len(puts)
    conditions.put_over(filesystem, "a", b"two", "b'one'")
    assert objects == {"a": b"two"}
    assert len(puts) - before == (answer in (412, 403)), "and not again"


@pytest.mark.parametrize(
    ("module", "name", "instead"), [("smb", "SMBFileSystem", "mount"), ("ftp", "FTPFileSystem", "SFTP")]
)
def test_clients_that_do_not_do_are_refused_when_they_are_opened(module: str, name: str, instead: str) -> None:
    client = type(name, (MemoryFileSystem,), {"__module__": f"fsspec.implementations.{module}", "protocol": module})
    with pytest.raises(UnsupportedError, match=f"does not work over {module.upper()}.*{instead}") as failure:
        storage_over(client(), "/run", f"{module}://me:secret@host/run")
    assert "secret" not in str(failure.value)


def test_letting_go_of_a_lock_is_no_error_of_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rclone's mount refuses the close (EPERM) of a file that was opened to be written to, and was not."""
    lock = open_storage(tmp_path).lock_file("a", make=True)
    assert lock is not None
    os.close(lock.fileno())  # so that its own close fails
    lock.close()
    assert lock.closed


def test_a_mount_that_may_remember_a_listing_is_asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a change from here; a disk's folder, and a file, are left alone."""
    saved = tmp_path / "file"
    saved.touch()
    touched = []
    monkeypatch.setattr("streamxf.storage.local.os.utime", touched.append)
    assert streamxf.latest(tmp_path) is None
    assert not touched
    monkeypatch.setattr(abilities, "mounted", lambda _: ("fuse.sshfs", "host:"))
    assert streamxf.latest(tmp_path) is None
    open_storage(saved).forget_listings()
    assert touched == [str(tmp_path)]
