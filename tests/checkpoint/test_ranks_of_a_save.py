"""Metadata of single ranks says how many saved, and of which save it is: what is missing, or of another, is said."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import DistNetworkError

import streamxf
from streamxf import torch_private
from streamxf.errors import ParameterError
from tests.vectors.recipes.checkpoints import of_rank
from tests.vectors.recipes.world import BASE, FILE, world

GROUP = "0123456789abcdef" * 2


def save(folder: Path, rank: int, ranks: int | None = 8, group: str | None = GROUP) -> None:
    """What one rank saved for itself."""
    path = f"__{rank}_0.distcp"
    about = {"group": group, "ranks": ranks}

    def change(index: dict[str, Any]) -> None:
        index.update({name: value for name, value in about.items() if value is not None})
        index["files"][0]["path"] = path

    files = of_rank(world(), rank, change)
    del files[FILE]
    for name, data in (files | {path: BASE.data[FILE]}).items():
        (folder / name).write_bytes(data)


def said(folder: Path) -> list[str]:
    """By verify, what is damaged; the others say the same."""
    report = streamxf.verify(folder)
    texts = [each.message for each in report.damaged]
    notes = " ".join(streamxf.inspect(folder).contents.notes)
    for text in texts:
        assert text[1:] in notes
        with pytest.warns(UserWarning, match="rank"):
            streamxf.Checkpoint(folder)
    assert ("not checked: whether all ranks" in str(report)) == any(
        each.index.ranks is None for each in streamxf.Checkpoint(folder).metadata if each.index is not None
    )
    return texts


@pytest.mark.filterwarnings("ignore:.*rank")
def test_a_rank_is_missing(tmp_path: Path) -> None:
    for rank in (*range(7), 7):
        if rank == 7:
            (text,) = said(tmp_path)
            assert "8 ranks saved it, and there is no metadata of rank 7" in text
        save(tmp_path, rank)
    assert said(tmp_path) == []


@pytest.mark.filterwarnings("ignore:.*rank")
def test_many_are_missing(tmp_path: Path) -> None:
    save(tmp_path, 3, ranks=2**31 - 1)
    (text,) = said(tmp_path)
    assert "rank 0, rank 1, rank 2, rank 4" in text
    assert "and 2,147,483,638 more" in text


@pytest.mark.filterwarnings("ignore:.*rank")
@pytest.mark.parametrize("other", [{"group": "f" * 32}, {"group": None}])
def test_ranks_are_of_two_saves(tmp_path: Path, other: dict[str, Any]) -> None:
    save(tmp_path, 0, 2)
    save(tmp_path, 1, 2, **other)
    (text,) = said(tmp_path)
    assert "of 2 saves: rank 0; rank 1" in text


def test_a_group_has_32_digits(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="32 lower-case hexadecimal digits"):
        streamxf.FileSystemWriter(tmp_path, group="save")


def test_a_rank_whose_store_is_gone_says_how_many_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has the store, and may be what the others save without."""
    wrapper, answers = SimpleNamespace(use_dist=True, group=SimpleNamespace(group_name="0")), [b"drawn"]

    class Store:
        def compare_set(self, *_: str) -> bytes:
            if not answers:
                raise DistNetworkError("it is gone")
            return answers.pop()

    monkeypatch.setattr(torch_private, "_variables_in", lambda *_: {"distW": wrapper})
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 8)
    for store, count in (Store(), 3), (Store(), 1):  # what was drawn once needs no store any more
        monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", lambda store=store: store)
        found = [torch_private.ranks_of_the_save(name) for name in ("a", "a", "b")]
        assert {ranks for _, ranks in found} == {8}
        assert len(digits := {group for group, _ in found}) == count
        assert (None in digits) == (count == 1)
