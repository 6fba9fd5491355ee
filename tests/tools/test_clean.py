"""`clean` removes what no checkpoint names, and nothing when there is any doubt."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import errors
from streamxf.format.names import LOCK
from tests.altered import flip
from tests.dcp.helpers import KEY, OTHER_KEY, assert_same, data_files, full_chain, load, load_into, save
from tests.dcp.shards import save_shards
from tests.dcp.test_publishing import LEFTOVERS, NOT_OURS, plant, state_of
from tests.failing import fails_with

CHAINS: dict[str, Callable[[], list[Any]]] = {"no chain": list, "full chain": full_chain}


@pytest.fixture(params=CHAINS)
def chain(request: pytest.FixtureRequest) -> list[Any]:
    return CHAINS[request.param]()


@pytest.fixture
def checkpoint(tmp_path: Path, chain: list[Any]) -> Path:
    folder = tmp_path / "checkpoint"
    save(state_of(1), folder, chain, thread_count=3)
    return folder


@pytest.fixture
def keys(chain: list[Any]) -> Any:
    return KEY if chain else None


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def test_what_is_said_of_the_checkpoint_stays(checkpoint: Path, keys: Any, chain: list[Any]) -> None:
    """Whatever cleans up there, and nobody calls it left over."""
    said = [".streamxf-commit", ".streamxf-note-0123abcd", ".streamxf-commit.0123abcd.tmp", ".streamxf-saving"]
    plant(checkpoint, said)
    (checkpoint / LOCK).touch()  # of a process that was killed
    own = names(checkpoint) - {LOCK}
    report = streamxf.clean(checkpoint, keys=keys)
    assert report.removed == report.kept == report.recent == ()
    assert names(checkpoint) == own
    (checkpoint / LOCK).touch()
    verified = streamxf.verify(checkpoint, keys=keys)
    assert verified.ok
    assert verified.leftovers == ()
    save(state_of(2), checkpoint, chain)
    assert set(said) <= names(checkpoint)
    assert LOCK not in names(checkpoint)


@pytest.mark.parametrize("with_keys", [True, False])
def test_leftovers_go_and_all_else_stays(checkpoint: Path, keys: Any, with_keys: bool) -> None:
    own = names(checkpoint)
    plant(checkpoint, LEFTOVERS + NOT_OURS)
    (checkpoint / "__5_0.distcp").mkdir()
    given = keys if with_keys else None
    would = streamxf.clean(checkpoint, keys=given, dry_run=True)
    assert names(checkpoint) == own | set(LEFTOVERS) | set(NOT_OURS) | {"__5_0.distcp"}
    did = streamxf.clean(str(checkpoint), keys=given)
    assert names(checkpoint) == own | set(NOT_OURS) | {"__5_0.distcp"}
    assert (would.dry_run, did.dry_run) == (True, False)
    for report in (would, did):
        assert set(report.removed) == set(LEFTOVERS)
        assert report.bytes == 4 * len(LEFTOVERS)
        assert set(report.kept) == set(NOT_OURS)
        assert not report.failed
    assert "would remove 9 files, 36 bytes" in str(would)
    assert f"left alone: {NOT_OURS[0]}" in str(did)
    assert_same(load(state_of(0), checkpoint, keys), state_of(1))
    assert streamxf.clean(checkpoint, keys=given).removed == ()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("damage", ["file gone", "file cut", "no metadata", "empty metadata", "no folder"])
def test_nothing_goes_from_what_is_damaged(checkpoint: Path, keys: Any, damage: str) -> None:
    plant(checkpoint, LEFTOVERS[:4])
    file = data_files(checkpoint)[-1]
    file = max(path for path in data_files(checkpoint) if path.stat().st_size > 4)
    if damage == "file gone":
        file.unlink()
    elif damage == "file cut":
        cut(file)
    elif damage == "no metadata":
        (checkpoint / ".metadata").unlink()
    elif damage == "empty metadata":
        (checkpoint / ".metadata").write_bytes(b"")
    else:
        checkpoint = checkpoint / "nowhere"
    before = names(checkpoint) if checkpoint.exists() else set()
    for given in {None, keys}:
        with pytest.raises(errors.MetadataError):
            streamxf.clean(checkpoint, keys=given)
    assert (names(checkpoint) if checkpoint.exists() else set()) == before


def test_keys_that_are_not_the_right_ones(tmp_path: Path) -> None:
    save(state_of(1), tmp_path)
    plant(tmp_path, LEFTOVERS)
    before = names(tmp_path)
    with pytest.raises((errors.WrongKeyError, errors.KeyMissingError)):
        streamxf.clean(tmp_path, keys=OTHER_KEY)
    metadata = tmp_path / ".metadata"
    flip(metadata, -20)
    with pytest.raises(errors.MetadataError, match="digest"):
        streamxf.clean(tmp_path, keys=KEY)
    with pytest.raises(errors.ParameterError):
        streamxf.clean(tmp_path, keys=b"short")
    assert names(tmp_path) == before


def test_keys_want_metadata_that_they_can_check(tmp_path: Path) -> None:
    """Somebody who may write here, and has no key, cannot make the owner of the key remove files."""
    save(state_of(1), tmp_path / "ours", [])
    dcp.save(state_of(1), storage_writer=dcp.FileSystemWriter(tmp_path / "torch's"))
    for folder in (tmp_path / "ours", tmp_path / "torch's"):
        plant(folder, LEFTOVERS[:2])
        before = names(folder)
        with pytest.raises(errors.PolicyError, match="Nothing was removed"):
            streamxf.clean(folder, keys=KEY)
        assert names(folder) == before
        assert streamxf.clean(folder).removed


def test_a_folder_where_nothing_was_published(tmp_path: Path) -> None:
    plant(tmp_path, LEFTOVERS[:1])
    with pytest.raises(errors.MetadataError, match="no save to it was ever published, save to it again"):
        streamxf.clean(tmp_path)
    save(state_of(1), tmp_path, [])
    assert LEFTOVERS[0] not in names(tmp_path)


def test_torchs_own_checkpoint(tmp_path: Path) -> None:
    dcp.save(state_of(1), storage_writer=dcp.FileSystemWriter(tmp_path, thread_count=2))
    own = names(tmp_path)
    plant(tmp_path, ["__9_9.distcp", ".metadata.tmp", "notes"])
    assert set(streamxf.clean(tmp_path).removed) == {"__9_9.distcp", ".metadata.tmp"}
    assert names(tmp_path) == own | {"notes"}
    cut(max(data_files(tmp_path), key=lambda file: file.stat().st_size))
    plant(tmp_path, ["__9_9.distcp"])
    with pytest.raises(errors.MetadataError, match="Nothing was removed"):
        streamxf.clean(tmp_path)
    assert names(tmp_path) == own | {"notes", "__9_9.distcp"}


def test_ranks_with_metadata_of_their_own(tmp_path: Path) -> None:
    for rank in (0, 2):
        save_shards(tmp_path, [state_of(rank)], use_collectives=False, first=rank)
    own = names(tmp_path)
    assert {"__0.metadata", "__2.metadata"} < own
    left = [f"__{rank}_0_{'a' * 32}.distcp" for rank in range(3)]
    plant(tmp_path, left)
    report = streamxf.clean(tmp_path)
    assert set(report.removed) == {left[0], left[2]}
    assert report.kept == (left[1],)  # nobody knows what became of rank 1's metadata


def test_what_cannot_be_removed_is_said(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, keys: Any) -> None:
    plant(checkpoint, LEFTOVERS[:1])
    monkeypatch.setattr(os, "unlink", fails_with(PermissionError, "fault injected"))
    with pytest.warns(UserWarning, match="1 file could not be removed"):
        report = streamxf.clean(checkpoint, keys=keys)
    assert report.removed == ()
    assert report.failed == {LEFTOVERS[0]: "fault injected"}


def test_over_fsspec() -> None:
    url = "memory://clean"
    dcp.save(state_of(1), storage_writer=streamxf.FsspecWriter(url))
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/clean/__0_7.distcp", b"left")
    assert streamxf.clean(url).recent == ("__0_7.distcp",)
    assert streamxf.clean(url, min_age=0).removed == ("__0_7.distcp",)
    target = load_into(state_of(0), streamxf.FsspecReader(url))
    assert torch.equal(target["a"], state_of(1)["a"])
