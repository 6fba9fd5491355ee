"""Publishing beside others: nothing that was published is ever lost, and what earlier saves left goes."""

import errno
import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

import streamxf
from streamxf.checkpoint import publish as publish_module
from streamxf.errors import AbortedError, ContainerError, MetadataError
from streamxf.storage import abilities, lock
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage
from streamxf.storage.remote import RemoteStorage
from streamxf.storage.storage import Storage
from tests.failing import fails_with

from .helpers import assert_same, data_files, error_of, full_chain, index_of, load, load_into, refused, save
from .process_groups import start_ranks

ROUNDS = 20


def state_of(value: float) -> dict[str, Any]:
    return {name: torch.full((257,), value) for name in "abcd"}


# -- leftovers -------------------------------------------------------------------------------------

LEFTOVERS = [
    *("__0_0_" + "0" * 32 + ".distcp", "__7_3_" + "a" * 32 + ".distcp", "__0_0.distcp", "__12_0.distcp"),
    *(".metadata.0123abcd.tmp", ".metadata.tmp", "__0.metadata", "__3.metadata", "__3.metadata.0123abcd.tmp"),
]
NOT_OURS = [
    *("README.md", "__0_0.distcp.bak", "x__0_0.distcp", ".metadata.old", "__a_0.distcp"),
    *("__0_0_" + "A" * 32 + ".distcp", "__00_0.distcp"),
]


def plant(folder: Path, names: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("left")


@pytest.mark.parametrize("before", ["nothing", "a checkpoint", "a damaged one"])
def test_a_save_removes_what_earlier_ones_left(checkpoint: Path, before: str) -> None:
    if before != "nothing":
        save(state_of(0), checkpoint, [], thread_count=4)
    if before == "a damaged one":
        (checkpoint / ".metadata").write_bytes(b"rubbish")
    plant(checkpoint, LEFTOVERS + NOT_OURS)
    save(state_of(1), checkpoint)
    assert_same(load(state_of(0), checkpoint), state_of(1))
    named = {".metadata", *index_of(checkpoint).files}
    assert set(os.listdir(checkpoint)) == named | set(NOT_OURS)


def test_nothing_goes_before_the_new_one_is_published(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(state_of(0), checkpoint)
    plant(checkpoint, LEFTOVERS)
    before = set(os.listdir(checkpoint))

    def fail(*_: Any, **__: Any) -> None:
        assert before <= set(os.listdir(checkpoint))
        raise OSError(errno.EIO, "fault injected")

    monkeypatch.setattr(LocalStorage, "put", fail)
    assert isinstance(error_of(lambda: save(state_of(1), checkpoint)), OSError)
    assert set(os.listdir(checkpoint)) == before  # and the failed save's own files are gone


def test_leftovers_that_cannot_be_removed_are_named(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(checkpoint, [f"__{rank}_0.distcp" for rank in range(9)])
    monkeypatch.setattr(os, "unlink", fails_with(PermissionError, errno.EPERM, "fault injected"))
    with pytest.warns(UserWarning, match=r"unencrypted.*__0_0\.distcp.* and 4 more .*streamxf clean"):
        save(state_of(1), checkpoint, full_chain())
    assert_same(load(state_of(0), checkpoint), state_of(1))


# -- at the same time ------------------------------------------------------------------------------


def save_again_and_again(process: int, folder: str, outcomes: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for turn in range(ROUNDS):
        state = state_of(1000 * process + turn)
        error = error_of(partial(save, state, Path(folder), [], thread_count=2))
        outcomes.put((process, type(error).__name__ if error is not None else "saved"))


def test_saves_of_several_processes_into_one_folder(checkpoint: Path) -> None:
    outcomes = mp.get_context("forkserver").SimpleQueue()
    processes = start_ranks(save_again_and_again, (str(checkpoint), outcomes), 2)
    while not processes.join(timeout=0.01):
        if (checkpoint / ".metadata").exists():
            target = state_of(-1)
            error = error_of(partial(load, target, checkpoint, keys=None))
            if error is None:  # else the save that it was reading was replaced meanwhile
                assert len({float(tensor[0]) for tensor in target.values()}) == 1
    found = [outcomes.get() for _ in range(2 * ROUNDS)]
    assert {outcome for _, outcome in found} <= {"saved", "AbortedError"}
    assert sum(outcome == "saved" for _, outcome in found) >= ROUNDS
    target = load(state_of(-1), checkpoint, keys=None)
    assert len({float(value[0]) for value in target.values()}) == 1
    assert set(os.listdir(checkpoint)) == {".metadata", *index_of(checkpoint).files}


def test_two_saves_where_there_is_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one publishes while the other is between its last look and its put, and cleans up after that put."""
    url = "memory://overlap"
    dcp.save(state_of(0), storage_writer=streamxf.FsspecWriter(url), no_dist=True)
    publish, remove = RemoteStorage.put, publish_module.remove_leftovers
    looked, cleaning, put = threading.Event(), threading.Event(), threading.Event()

    def publish_late(*args: Any, **options: Any) -> None:
        if threading.current_thread().name == "late":
            looked.set()
            assert cleaning.wait(30)
        publish(*args, **options)
        if threading.current_thread().name == "late":
            put.set()

    def remove_later(*args: Any) -> None:
        if threading.current_thread().name == "early":
            cleaning.set()
            assert put.wait(30)
        remove(*args)

    monkeypatch.setattr(RemoteStorage, "put", publish_late)
    monkeypatch.setattr(publish_module, "remove_leftovers", remove_later)
    errors: list[BaseException | None] = []

    def save_one(value: float) -> None:
        writer = streamxf.FsspecWriter(url)
        errors.append(error_of(lambda: dcp.save(state_of(value), storage_writer=writer, no_dist=True)))

    late = threading.Thread(target=save_one, args=(2.0,), name="late")
    late.start()
    assert looked.wait(30)
    early = threading.Thread(target=save_one, args=(1.0,), name="early")
    early.start()
    early.join()
    late.join()
    assert errors == [None, None]
    assert_same(load_into(state_of(-1), streamxf.FsspecReader(url), no_dist=True), state_of(2))


@pytest.mark.parametrize("damage", ["gone", "shorter", "longer", "a link"])
def test_a_file_that_is_not_as_it_was_written_is_not_published(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    save(state_of(0), checkpoint)
    assemble = publish_module.assemble

    def then_damage(*args: Any, **options: Any) -> Any:
        made = assemble(*args, **options)
        file = checkpoint / max(made[0].files)
        content = file.read_bytes()
        if damage in ("gone", "a link"):
            file.unlink()
        if damage == "a link":
            file.symlink_to(data_files(checkpoint)[0])
        if damage in ("shorter", "longer"):
            file.write_bytes(content[:-1] if damage == "shorter" else content + b"x")
        return made

    monkeypatch.setattr(publish_module, "assemble", then_damage)
    kind = AbortedError if damage == "gone" else ContainerError
    with refused(kind, "not published"):
        save(state_of(1), checkpoint, thread_count=2)
    monkeypatch.undo()
    assert_same(load(state_of(1), checkpoint), state_of(0))


def test_a_lock_that_somebody_keeps(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(state_of(0), checkpoint)
    monkeypatch.setattr(lock, "PATIENCE", 0.05)
    with lock.locked(open_storage(checkpoint)) as alone, ThreadPoolExecutor(1) as pool:
        assert alone
        with refused(AbortedError, "another process"):
            pool.submit(save, state_of(1), checkpoint).result()
    assert_same(load(state_of(1), checkpoint), state_of(0))
    save(state_of(1), checkpoint)
    assert_same(load(state_of(0), checkpoint), state_of(1))


# -- folders on the disk ---------------------------------------------------------------------------


def test_folders_that_a_save_makes_are_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    save(state_of(0), tmp_path / "run" / "step", sync_files=True)
    for folder in (tmp_path, tmp_path / "run", tmp_path / "run" / "step"):
        assert str(folder) in synced
    synced.clear()
    save(state_of(0), tmp_path / "run" / "other")
    assert not synced


def test_names_of_data_files_are_on_the_disk_before_another_host_publishes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))

    class Writer(streamxf.FileSystemWriter):
        def write_data(self, *arguments: Any) -> Any:
            synced.clear()
            found = super().write_data(*arguments)
            assert synced[-1] == str(tmp_path / "step")
            assert sum(name.endswith(".distcp") for name in synced) == 1
            return found

    dcp.save(state_of(0), storage_writer=Writer(tmp_path / "step"))


def test_what_makes_an_index_impossible_is_raised_and_leaves_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamxf.dcp.writer.items_of", fails_with(MetadataError, "paths that contradict each other"))
    with refused(MetadataError, "contradict"):
        save(state_of(0), tmp_path)
    assert not list(tmp_path.glob("*.distcp"))


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_file_systems_that_cannot_sync_folders(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool
) -> None:
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, "fault injected")
        fsync(descriptor)

    monkeypatch.setattr(abilities.os, "fsync", refuse)
    error = error_of(lambda: save(state_of(0), checkpoint, sync_files=True))
    assert isinstance(error, OSError) == fails
    assert (checkpoint / ".metadata").exists() != fails


def test_storage_that_may_not_replace_in_one_step_is_warned_of(tmp_path: Path) -> None:
    class Ftp(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
        protocol = "ftpmemory"

    fsspec.register_implementation("ftpmemory", Ftp, clobber=True)

    def writes_twice(url: str, write: Callable[[Storage], object]) -> list[str]:
        place = open_storage(url, abilities={"stored": True, "in_order": True}).child(write.__name__)
        with warnings.catch_warnings(record=True) as caught:
            write(place)
        assert not caught
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            write(place)
        return [str(each.message) for each in caught if "one step" in str(each.message)]

    def with_dcp(place: Storage) -> None:
        dcp.save({"a": 1}, storage_writer=streamxf.FileSystemWriter(place), no_dist=True)

    def without(place: Storage) -> None:
        with streamxf.CheckpointWriter(place, overwrite=True) as writer:
            writer.add("a", 1)

    for write in (with_dcp, without):
        (text,) = writes_twice("ftpmemory://x", write)
        assert "is not known to replace a file in one step" in text
        for url in ("memory://x", f"file://{tmp_path}", str(tmp_path / "own")):
            assert not writes_twice(url, write)
