"""What is asked of a folder's files, and of which: folders of many ranks hold a hundred thousand."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from .helpers import index_of
from .shards import save_shards
from .test_publishing import LEFTOVERS, NOT_OURS, plant

RANKS = 5


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
