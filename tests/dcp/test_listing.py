"""What is asked of a folder's files, and of which: folders of many ranks hold a hundred thousand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystem

from streamxf.dcp.fsspec import FsspecReader
from streamxf.checkpoint.publish.leftovers import leftovers
from streamxf.checkpoint.publish.listing import list_files

from .helpers import index_of
from .shards import save_shards
from .test_publishing import LEFTOVERS, NOT_OURS, plant

RANKS = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for size, name in enumerate("abc"):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("c")
    (tmp_path / "nowhere").symlink_to("gone")
    return tmp_path


def test_every_size_is_told_unless_few_are_wanted(folder: Path) -> None:
    sizes = {"a": 0, "b": 1, "c": 2, "link": None, "nowhere": None}
    assert list_files(FileSystem(), folder) == sizes
    wanted = ["b", "link", "folder", "not there"]
    assert list_files(FileSystem(), folder, wanted) == {**sizes, "a": None, "c": None, "folder": None}
    assert list_files(FileSystem(), folder, []) == dict.fromkeys(sizes)
    assert list_files(FileSystem(), folder / "not there") == {}
    assert list_files(FileSystem(), folder / "not there", ["a"]) == {}


def test_the_sizes_of_an_object_store_come_with_its_names() -> None:
    memory = fsspec.filesystem("memory")
    for size, name in enumerate("abc"):
        memory.pipe_file(f"/listing/{name}", bytes(size))
    reader = FsspecReader("memory://listing")
    assert list_files(reader.fs, reader.path, ["b"]) == {"a": 0, "b": 1, "c": 2}


class Asked:
    """An entry of a folder that tells when a call of the system is made for it alone."""

    def __init__(self, entry: os.DirEntry[str], calls: list[str]) -> None:
        self._entry = entry
        self._calls = calls
        self.name = entry.name
        self.is_dir = entry.is_dir
        self.is_file = entry.is_file

    def stat(self, *, follow_symlinks: bool) -> os.stat_result:
        self._calls.append(self.name)
        return self._entry.stat(follow_symlinks=follow_symlinks)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of which the size was asked for, in listings, since the test began."""
    calls: list[str] = []
    scandir = os.scandir

    @contextmanager
    def counting(path: Any) -> Iterator[Iterator[Asked]]:
        with scandir(path) as entries:
            yield (Asked(entry, calls) for entry in entries)

    monkeypatch.setattr(os, "scandir", counting)
    return calls


def test_a_rank_with_metadata_of_its_own_asks_for_its_own_files_only(tmp_path: Path, asked: list[str]) -> None:
    states = [{"w": torch.full((3,), float(rank))} for rank in range(RANKS)]
    save_shards(tmp_path, states, use_collectives=False)
    own = {name for rank in range(RANKS) for name in index_of(tmp_path, f"__{rank}.metadata").files}
    assert len(own) == RANKS
    assert sorted(asked) == sorted(own)


def test_a_coordinator_asks_for_the_files_of_its_save_only(tmp_path: Path, asked: list[str]) -> None:
    states = [{f"w{rank}": torch.full((3,), float(rank))} for rank in range(RANKS)]
    save_shards(tmp_path, states)
    asked.clear()
    plant(tmp_path, LEFTOVERS + NOT_OURS)
    save_shards(tmp_path, states)
    assert sorted(asked) == sorted(index_of(tmp_path).files)
    assert set(os.listdir(tmp_path)) == {".metadata", *asked, *NOT_OURS}


@pytest.mark.parametrize("rank", [0, 1, 10, 12])
def test_leftovers_of_a_rank_are_its_own(rank: int) -> None:
    mine = [f"__{rank}_0_{'a' * 32}.distcp", f"__{rank}_7.distcp", f"__{rank}.metadata.0123abcd.tmp"]
    others = [name.replace(f"__{rank}", f"__{other}", 1) for name in mine for other in (100, 11, 2)]
    also = [f"__{rank}", f"__{rank}x_0.distcp", f"__{rank}0_0.distcp", f"x__{rank}_0.distcp", ".metadata.tmp"]
    named = {f"__{rank}_1.distcp", f"__{rank}.metadata"}
    assert leftovers([*mine, *others, *also, *named, *NOT_OURS], named, rank) == sorted(mine)
