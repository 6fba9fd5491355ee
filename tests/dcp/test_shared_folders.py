"""A checkpoint's folder that also holds what others need: neither a save nor `clean` touches it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.errors import MetadataError, UnsupportedError

from .helpers import KEY, OTHER_KEY, assert_same, data_files, error_of, full_chain, index_of, load, save
from .shards import save_shards

OTHERS = [
    "notes.txt",
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "common.pt",
    "metadata.json",
    ".metadata.bak",
    ".METADATA",
    "__0_0.DISTCP",
    "__0_0.distcp\n",
    "\n__0_0.distcp",
    "__0_0.distcp\n.metadata",
    "__0_0_" + "a" * 32 + ".distcp\n",
    "__0_0_" + "A" * 32 + ".distcp",
    "__0_0_" + "a" * 31 + ".distcp",
    "__0_0_" + "a" * 33 + ".distcp",
    "__\u0660_0.distcp",  # a digit, and none of ours
    "__-1_0.distcp",
    "__0__0.distcp",
    "*",
    "[abc]",
    "?",
    "~",
    "-rf",
    "__*_*.distcp",
]


def state_of(value: float) -> dict[str, Any]:
    return {name: torch.full((33,), value) for name in "abcd"}


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
