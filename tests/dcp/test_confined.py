"""The requirement "Paths are confined to the checkpoint": by name, and by where a link leads."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum
from streamxf.errors import MetadataError

from .helpers import assert_same, data_files, load_with, refused, rewrite_index, rewrite_pickle, save

STATE = {"w": torch.arange(20.0)}
READERS: dict[str, Callable[[Path], Any]] = {
    "own": lambda path: streamxf.FileSystemReader(path),
    "fsspec": lambda path: streamxf.FsspecReader(str(path)),
    "fsspec with a protocol": lambda path: streamxf.FsspecReader(f"file://{path}"),
    "a cache": lambda path: streamxf.FsspecReader(f"simplecache::file://{path}"),
}

pytestmark = pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")


@pytest.fixture(params=READERS)
def reader_of(request: pytest.FixtureRequest) -> Callable[[Path], Any]:
    return READERS[request.param]


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("which", ["data", ".metadata"])
def test_a_link_that_leads_out_is_not_followed(
    tmp_path: Path, reader_of: Callable[[Path], Any], which: str, absolute: bool
) -> None:
    folder, elsewhere = tmp_path / "checkpoint", tmp_path / "elsewhere"
    save(STATE, folder, [Checksum()])
    elsewhere.mkdir()
    file = data_files(folder)[0] if which == "data" else folder / ".metadata"
    moved = file.rename(elsewhere / "moved")
    file.symlink_to(moved if absolute else Path("..", "elsewhere", "moved"))
    with refused(MetadataError, "a link to", str(moved.resolve()), "outside", file.name):
        load_with(STATE, reader_of(folder))
    file.unlink()
    moved.rename(file)
    assert_same(load_with(STATE, reader_of(folder)), STATE)


def test_a_folder_that_leads_out_is_not_entered(tmp_path: Path, reader_of: Callable[[Path], Any]) -> None:
    folder, elsewhere = tmp_path / "checkpoint", tmp_path / "elsewhere"
    dcp.save(STATE, storage_writer=dcp.FileSystemWriter(folder, sync_files=False))
    elsewhere.mkdir()
    (file,) = data_files(folder)
    file.rename(elsewhere / file.name)
    (folder / "sub").symlink_to(elsewhere)
    change_paths(folder, f"sub/{file.name}")
    with refused(MetadataError, "a link to", "outside"):
        load_with(STATE, reader_of(folder))


def test_links_inside_of_the_folder_and_to_the_folder(tmp_path: Path, reader_of: Callable[[Path], Any]) -> None:
    """`latest` may lead to a checkpoint, and so may any folder above it."""
    folder = tmp_path / "steps" / "100"
    save(STATE, folder, [Checksum()])
    (file,) = data_files(folder)
    (folder / "blobs").mkdir()
    file.symlink_to(file.rename(folder / "blobs" / "one"))
    (tmp_path / "latest").symlink_to(folder)
    (tmp_path / "all").symlink_to(tmp_path / "steps")
    for path in (folder, tmp_path / "latest", tmp_path / "all" / "100"):
        assert_same(load_with(STATE, reader_of(path)), STATE)


def test_a_sibling_whose_name_begins_alike_is_outside(tmp_path: Path, reader_of: Callable[[Path], Any]) -> None:
    folder, sibling = tmp_path / "step-1", tmp_path / "step-10"
    save(STATE, folder, [Checksum()])
    sibling.mkdir()
    (file,) = data_files(folder)
    file.symlink_to(file.rename(sibling / "moved"))
    with refused(MetadataError, "outside"):
        load_with(STATE, reader_of(folder))


@pytest.mark.parametrize("path", ["../elsewhere", "/etc/passwd", "a?b"])
@pytest.mark.parametrize("stock", [True, False], ids=["pickle", "index"])
def test_a_path_that_leads_out_by_name(
    tmp_path: Path, reader_of: Callable[[Path], Any], path: str, stock: bool
) -> None:
    folder = tmp_path / "checkpoint"
    if stock:
        dcp.save(STATE, storage_writer=dcp.FileSystemWriter(folder, sync_files=False))
        change_paths(folder, path)
    else:
        save(STATE, folder, [Checksum()])
        rewrite_index(folder, lambda index: index["files"][0].update(path=path))
    (tmp_path / "elsewhere").write_bytes(data_files(folder)[0].read_bytes())
    with refused(MetadataError, "outside the checkpoint"):
        load_with(STATE, reader_of(folder))


def change_paths(folder: Path, path: str) -> None:
    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = path

    rewrite_pickle(folder, change)


def test_a_link_that_is_exchanged_after_it_was_looked_at_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "checkpoint", tmp_path / "elsewhere"
    save(STATE, folder, [Checksum()])
    (file,) = data_files(folder)
    moved = file.rename(folder / "moved")
    file.symlink_to("moved")
    looks_at = os.path.realpath

    def exchange(path: Any, **kwargs: Any) -> str:
        found = looks_at(path, **kwargs)
        if Path(path) == file:
            moved.rename(elsewhere)
            moved.symlink_to(elsewhere)
        return found

    assert_same(load_with(STATE, streamxf.FileSystemReader(folder)), STATE)
    monkeypatch.setattr(os.path, "realpath", exchange)
    with refused(MetadataError, "missing from the checkpoint"):
        load_with(STATE, streamxf.FileSystemReader(folder))


@pytest.mark.parametrize("deep", [1, 12])
def test_opening_many_files_takes_no_stats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep: int) -> None:
    """Over a network each one takes a round trip; the folder is opened once."""
    folder = tmp_path.joinpath(*["folder"] * deep)
    state = {str(number): torch.full((number + 1,), 1.0) for number in range(20)}
    writer = streamxf.FileSystemWriter(folder, single_file_per_rank=False)
    dcp.save(state, storage_writer=writer)
    seen: dict[str, int] = {}

    def counted(name: str) -> None:
        method = getattr(os, name)

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int):
                seen[name] = seen.get(name, 0) + 1
            return method(path, *args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("stat", "lstat", "open"):
        counted(name)
    assert_same(load_with(state, streamxf.FileSystemReader(folder)), state)
    assert len(data_files(folder)) == 20
    assert seen.pop("open") <= len(state) + 4  # the folder twice, its metadata, and another path of torch's
    assert sum(seen.values()) <= 4
