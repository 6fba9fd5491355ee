"""Folders that others have, too. Several machines: no lock keeps their saves apart, and no checkpoint is lost all the
same. Whatever else lies there: neither a save nor `clean` touches it.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan

import streamxf
from streamxf.checkpoint import publish as publish_module
from streamxf.errors import AbortedError, MetadataError, ParameterError, UnsupportedError
from streamxf.storage import abilities as disk
from streamxf.storage.reading import StoredFile
from streamxf.storage.remote import RemoteStorage
from tests.failing import fails_with

from .helpers import KEY, OTHER_KEY, assert_same, data_files, error_of, full_chain, index_of, load, refused, save
from .shards import Planner, save_shards

LEFT = f"__0_0_{'a' * 32}.distcp"
OLD = time.time() - 2 * 86_400


def state_of(value: float) -> dict[str, Any]:
    return {name: torch.full((33,), value) for name in "abcd"}


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """All folders lie on a network file system."""
    monkeypatch.setattr(disk, "mounted", lambda _: ("nfs4", "server:/export"))


def save_from_two_hosts(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[], None] = lambda: None,
    coordinator: int = 0,
    turn: Callable[[], None] = lambda: None,
) -> None:
    """Each rank has its own host; the coordinator begins when `turn` has, and writes once `meanwhile` has happened."""
    states = [{"of 0": torch.zeros(9)}, {"of 1": torch.ones(9)}]
    steps: dict[int, Any] = {}
    for rank in (1 - coordinator, coordinator):
        state = states[rank]
        if rank == coordinator:
            turn()
        writer, planner = streamxf.FileSystemWriter(path, sync_files=False), Planner()
        writer.set_up_storage_writer(rank == coordinator, rank=rank, use_collectives=True)
        planner.set_up_planner(state, writer.storage_meta(), rank == coordinator)
        steps[rank] = (writer, planner, writer.prepare_local_plan(planner.create_local_plan()))
    plans, metadata = create_default_global_save_plan([steps[rank][2] for rank in (0, 1)])
    plans = steps[0][0].prepare_global_plan(plans)
    results: dict[int, Any] = {}
    for rank in (1 - coordinator, coordinator):
        monkeypatch.setattr(disk.socket, "gethostname", lambda rank=rank: f"host {rank}")
        writer, planner, _ = steps[rank]
        results[rank] = writer.write_data(planner.finish_plan(plans[rank]), planner).wait()
        if rank != coordinator:
            meanwhile()
    steps[coordinator][0].finish(metadata, [results[0], results[1]])


def loaded(path: Path) -> dict[str, Any]:
    return load({"of 0": torch.zeros(9), "of 1": torch.ones(9)}, path, None)


# -- files of other hosts --------------------------------------------------------------------------


@pytest.mark.parametrize("coordinator", [0, 1])
def test_another_save_removes_what_a_host_has_written(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, network: None, coordinator: int
) -> None:
    save(state_of(0), checkpoint, [])

    def meanwhile() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "mounted", lambda _: ("ext4", "/dev/sda"))  # or it would leave them alone
            save(state_of(1), checkpoint, [])

    with refused(AbortedError, "was not published"):
        save_from_two_hosts(checkpoint, monkeypatch, meanwhile, coordinator)
    assert_same(load(state_of(0), checkpoint, None), state_of(1))


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "cifs"])
def test_files_that_go_before_the_others_are_written(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(disk, "mounted", lambda _: (kind, "server:/export"))
    save(state_of(0), checkpoint, [])
    own = set(data_files(checkpoint))

    def meanwhile() -> None:
        for file in set(data_files(checkpoint)) - own:
            file.unlink()

    with refused(AbortedError, "was not published"):
        save_from_two_hosts(checkpoint, monkeypatch, meanwhile)
    assert_same(load(state_of(1), checkpoint, None), state_of(0))


@pytest.mark.parametrize("kind", ["ext4", "nfs4"])
def test_disks_of_their_own_are_copied_together_later(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """On a network file system, too, each host may have a folder of its own under one path."""
    monkeypatch.setattr(disk, "mounted", lambda _: (kind, "server:/export"))
    other = tmp_path / "other"

    def turn() -> None:
        checkpoint.rename(other)

    save_from_two_hosts(checkpoint, monkeypatch, turn=turn)
    for file in data_files(other):
        shutil.move(file, checkpoint)
    assert_same(loaded(checkpoint), {"of 0": torch.zeros(9), "of 1": torch.ones(9)})


def test_a_listing_that_is_older_than_the_files(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    class Stale:
        def __init__(self, entries: Any) -> None:
            self._entries = entries

        def __enter__(self) -> Any:
            return (entry for entry in self._entries.__enter__() if not entry.name.endswith(".distcp"))

        def __exit__(self, *error: Any) -> None:
            self._entries.__exit__(*error)

    monkeypatch.setattr(os, "scandir", lambda path: Stale(scandir(path)))
    save(state_of(1), checkpoint, [])
    assert_same(load(state_of(0), checkpoint, None), state_of(1))


# -- no lock ---------------------------------------------------------------------------------------


def test_files_that_another_machine_may_be_about_to_publish_stay(checkpoint: Path, network: None) -> None:
    save(state_of(0), checkpoint, [])
    names = [LEFT, f"__5_0_{'b' * 32}.distcp", ".metadata.0123abcd.tmp", ".metadata.fedcba98.tmp", "__7_0.distcp"]
    for name in names:
        (checkpoint / name).write_text("left")
    for name in names[1::2]:
        os.utime(checkpoint / name, (OLD, OLD))
    save(state_of(1), checkpoint, [])
    kept = {LEFT, ".metadata.0123abcd.tmp"}
    assert set(os.listdir(checkpoint)) == kept | {".metadata", *index_of(checkpoint).files}
    report = streamxf.clean(checkpoint)
    assert (report.removed, set(report.recent), report.kept) == ((), kept, ())
    assert f"may be writing it: {LEFT}" in str(report)
    assert set(streamxf.clean(checkpoint, min_age=0, dry_run=True).removed) == kept
    assert not streamxf.clean(checkpoint, min_age=60).removed
    assert set(streamxf.clean(checkpoint, min_age=0).removed) == kept
    assert_same(load(state_of(0), checkpoint, None), state_of(1))


def test_a_pipe_in_the_place_of_metadata_is_not_waited_for(checkpoint: Path, network: None) -> None:
    checkpoint.mkdir()
    os.mkfifo(checkpoint / ".metadata")
    save(state_of(1), checkpoint, [])
    assert_same(load(state_of(0), checkpoint, None), state_of(1))


@pytest.mark.parametrize("age", [-1, "1", float("nan")])
def test_an_age_that_is_none(checkpoint: Path, age: Any) -> None:
    save(state_of(0), checkpoint, [])
    with pytest.raises(ParameterError, match="min_age"):
        streamxf.clean(checkpoint, min_age=age)


def test_clean_beside_a_save_to_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The save has found all its files, and puts its metadata when `clean` has listed them as leftovers."""
    url = "memory://beside"
    dcp.save(state_of(0), storage_writer=streamxf.FsspecWriter(url), no_dist=True)
    put = RemoteStorage.put
    report: list[Any] = []

    def late(*arguments: Any, **options: Any) -> None:
        report.append(streamxf.clean(url))
        put(*arguments, **options)

    monkeypatch.setattr(RemoteStorage, "put", late)
    dcp.save(state_of(1), storage_writer=streamxf.FsspecWriter(url), no_dist=True)
    assert len(report[0].recent) == 1
    target = state_of(-1)
    dcp.load(target, storage_reader=streamxf.FsspecReader(url), no_dist=True)
    assert_same(target, state_of(1))


def test_clean_notices_a_save_that_was_published_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://meanwhile"
    dcp.save(state_of(0), storage_writer=streamxf.FsspecWriter(url), no_dist=True)

    def late(*arguments: Any) -> Any:
        monkeypatch.undo()
        dcp.save(state_of(1), storage_writer=streamxf.FsspecWriter(url), no_dist=True)
        return RemoteStorage.older_than(*arguments)

    fsspec.filesystem("memory").pipe_file(f"/meanwhile/{LEFT}", b"left")
    monkeypatch.setattr(RemoteStorage, "older_than", late)
    with pytest.raises(MetadataError, match="replaced meanwhile"):
        streamxf.clean(url, min_age=0)
    target = state_of(-1)
    dcp.load(target, storage_reader=streamxf.FsspecReader(url), no_dist=True)
    assert_same(target, state_of(1))


def test_a_failed_rename_on_a_network_file_system_costs_no_files(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, network: None
) -> None:
    """The server has done it and its answer was lost; the old file is what this machine remembers."""
    save(state_of(0), checkpoint, [])
    old = (checkpoint / ".metadata").read_bytes()
    replace = os.replace

    def replace_and_fail(*names: str, **folders: Any) -> None:
        replace(*names, **folders)
        patch.setattr(StoredFile, "read", lambda self: old)
        raise OSError(2, "the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_and_fail)
        assert isinstance(error_of(lambda: save(state_of(1), checkpoint, [])), OSError)
    assert_same(load(state_of(0), checkpoint, None), state_of(1))


# -- what another save has published meanwhile -----------------------------------------------------


def published_meanwhile(monkeypatch: pytest.MonkeyPatch, other: Callable[[], Any]) -> None:
    assemble = publish_module.assemble

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        other()
        return assemble(*arguments, **options)

    monkeypatch.setattr(publish_module, "assemble", late)


def test_a_checkpoint_that_may_not_be_overwritten(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published_meanwhile(monkeypatch, lambda: save(state_of(1), checkpoint, []))
    with refused(AbortedError, "may not replace it (overwrite)"):
        save(state_of(2), checkpoint, [], overwrite=False)
    assert_same(load(state_of(0), checkpoint, None), state_of(1))
    assert {file.name for file in data_files(checkpoint)} == set(index_of(checkpoint).files)


def test_a_ranks_own_metadata_beside_a_global_one(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader would ever look at it."""
    published_meanwhile(monkeypatch, lambda: save(state_of(1), checkpoint, []))
    with refused(UnsupportedError, "which readers prefer"):
        save_shards(checkpoint, [state_of(2)], use_collectives=False)
    assert_same(load(state_of(0), checkpoint, None), state_of(1))


def test_the_first_cause_is_told_where_a_draft_stays(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(state_of(0), checkpoint, [])
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails_with(OSError, 5, "fault injected"))
        patch.setattr(os, "unlink", fails_with(PermissionError, "second fault"))
        error = error_of(lambda: save(state_of(1), checkpoint, []))
    assert "fault injected" in str(error)
    assert any("could not be removed: PermissionError: second fault" in note for note in error.__notes__)  # type: ignore[union-attr]
    assert_same(load(state_of(1), checkpoint, None), state_of(0))


OTHERS = [
    *("notes.txt", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "common.pt", "metadata.json"),
    *(".metadata.bak", ".METADATA", "__0_0.DISTCP", "__0_0.distcp\n", "\n__0_0.distcp", "__0_0.distcp\n.metadata"),
    *(f"__0_0_{save_id}.distcp" for save_id in ("A" * 32, "a" * 31, "a" * 33)),
    "__0_0_" + "a" * 32 + ".distcp\n",
    "__\u0660_0.distcp",  # a digit, and none of ours
    *("__-1_0.distcp", "__0__0.distcp", "*", "[abc]", "?", "~", "-rf", "__*_*.distcp"),
]


@pytest.fixture
def shared(checkpoint: Path, tmp_path: Path) -> Path:
    """With files, folders, another checkpoint and links."""
    checkpoint.mkdir()
    for name in OTHERS:
        (checkpoint / name).write_text("precious")
    save(state_of(7), checkpoint / "nested", [])
    (checkpoint / "__0_1.distcp").mkdir()
    (checkpoint / "__0_1.distcp" / "__0_0.distcp").write_text("precious")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "__0_0.distcp").write_text("precious")
    (checkpoint / "link").symlink_to(tmp_path / "far")
    return checkpoint


def everything(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def ranks_save(path: Path) -> None:
    save_shards(path, [state_of(1), state_of(1)], use_collectives=False)


ACTIONS: dict[str, Callable[[Path], Any]] = {
    "a save": lambda path: save(state_of(1), path),
    "two saves": lambda path: [save(state_of(1), path), save(state_of(2), path)],
    "ranks": ranks_save,
    "ranks, then all": lambda path: [ranks_save(path), save(state_of(1), path)],
    "torch, then a save": lambda path: [
        dcp.save(state_of(1), storage_writer=dcp.FileSystemWriter(path)),
        save(state_of(1), path),
    ],
    "clean": lambda path: [save(state_of(1), path, []), streamxf.clean(path)],
    "fsspec": lambda path: dcp.save(state_of(1), storage_writer=streamxf.FsspecWriter(f"file://{path}")),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_files_of_others_stay(shared: Path, tmp_path: Path, action: str) -> None:
    before = everything(tmp_path)
    ACTIONS[action](shared)
    after = everything(tmp_path)
    assert {name: after.get(name) for name in before} == before
    assert (shared / "link").is_symlink()
    assert_same(load(state_of(0), shared / "nested", None), state_of(7))


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_snapshots_made_of_links(tmp_path: Path, checkpoint: Path, link: Callable[[Path, Path], None]) -> None:
    """As `cp -al` makes them, and as backups do: what they share with the checkpoint is never written to."""
    save(state_of(1), tmp_path / "old", [])
    checkpoint.mkdir()
    for file in (tmp_path / "old").iterdir():
        link(file, checkpoint / file.name)
    before = everything(tmp_path / "old")
    save(state_of(2), checkpoint, [])
    streamxf.clean(checkpoint)
    assert everything(tmp_path / "old") == before
    assert_same(load(state_of(0), tmp_path / "old", None), state_of(1))
    assert_same(load(state_of(0), checkpoint, None), state_of(2))
    assert set(os.listdir(checkpoint)) == {".metadata", *index_of(checkpoint).files}


def test_a_folder_that_is_a_link(tmp_path: Path, checkpoint: Path) -> None:
    """Both names are one folder, with one lock; what was saved under the one is replaced under the other."""
    save(state_of(1), checkpoint, [])
    latest = tmp_path / "latest"
    latest.symlink_to(checkpoint)
    save(state_of(2), latest, [])
    assert latest.is_symlink()
    assert_same(load(state_of(0), checkpoint, None), state_of(2))
    assert len(data_files(checkpoint)) == 1


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?", "{a,b}", "a b", "a\nb", "%41", "~", "-x", "a#b", "ü"])
def test_names_of_folders(tmp_path: Path, name: str) -> None:
    for neighbour in ("run1", "run", "runx", "a", "b", "A"):
        save(state_of(7), tmp_path / neighbour, [])
    before = everything(tmp_path)
    path = tmp_path / name
    for turn in range(2):
        save(state_of(turn), path, [])
        (path / "__9_0.distcp").write_text("left")
    assert streamxf.clean(path).removed == ("__9_0.distcp",)
    assert_same(load(state_of(-1), path, None), state_of(1))
    after = everything(tmp_path)
    assert {file: after.get(file) for file in before} == before


def test_a_folder_that_nobody_may_write_to(checkpoint: Path) -> None:
    save(state_of(1), checkpoint, [])
    before = everything(checkpoint)
    checkpoint.chmod(0o555)
    try:
        if os.access(checkpoint, os.W_OK):
            pytest.skip("this user may write to any folder")
        assert isinstance(error_of(lambda: save(state_of(2), checkpoint, [])), PermissionError)
        assert everything(checkpoint) == before
    finally:
        checkpoint.chmod(0o755)
    assert_same(load(state_of(0), checkpoint, None), state_of(1))


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_a_cache_that_remembers_older_metadata(cache: str) -> None:
    """By that, the files of the newer save would be leftovers, and its recipients those of the older one."""
    url, options = f"memory://{cache}", {"target_protocol": "memory"}
    memory = fsspec.filesystem("memory")
    dcp.save(state_of(1), storage_writer=streamxf.FsspecWriter(url, _extensions=full_chain()))
    cached = fsspec.filesystem(cache, **options)
    assert cached.cat_file(f"/{cache}/.metadata") == memory.cat_file(f"/{cache}/.metadata")
    old = {name: memory.cat_file(name) for name in memory.find(f"/{cache}") if name.endswith(".distcp")}
    dcp.save(state_of(2), storage_writer=streamxf.FsspecWriter(url, _extensions=full_chain()))
    for name, data in old.items():  # which could not be removed
        memory.pipe_file(name, data)
    for action in (
        lambda path: streamxf.clean(path, min_age=0, storage_options=options),
        lambda path: streamxf.rekey(path, keys=KEY, recipients=OTHER_KEY, storage_options=options),
    ):
        with pytest.raises((UnsupportedError, MetadataError), match=r"through a cache|no \.metadata"):
            action(f"{cache}:///{cache}")
    target = state_of(0)
    dcp.load(target, storage_reader=streamxf.FsspecReader(url, keys=KEY))
    assert_same(target, state_of(2))
