"""Metadata of single ranks says how many saved, and of which save it is: what is missing, or of another, is said, and
refused where it is sure, or where keys or signers are to exclude it.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import DistNetworkError
from torch.distributed.checkpoint import DefaultLoadPlanner

import streamxf
from streamxf import torch_private
from streamxf.errors import MetadataError, ParameterError, PolicyError
from streamxf.tools.damage import UNKNOWN_RANKS
from tests.dcp.helpers import KEY, full_chain, refused, since
from tests.dcp.shards import rows, save_shards
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


def said(folder: Path, *, sure: bool = False) -> list[str]:
    """By verify, what is damaged; the others say the same, and are `sure` of it or warn."""
    report = streamxf.verify(folder)
    texts = [each.message for each in report.damaged]
    notes = " ".join(streamxf.inspect(folder).contents.notes)
    for text in texts:
        assert text[1:] in notes
        kind = pytest.raises(MetadataError, match="rank") if sure else pytest.warns(UserWarning, match="rank")
        with kind:
            streamxf.Checkpoint(folder)
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
@pytest.mark.parametrize("other", [{"group": "f" * 32}, {"group": None}, {"ranks": 3}, {"ranks": None}])
def test_ranks_are_of_two_saves(tmp_path: Path, other: dict[str, Any]) -> None:
    save(tmp_path, 0, 2)
    save(tmp_path, 1, **{"ranks": 2, **other})
    assert "of 2 saves: rank 0; rank 1" in said(tmp_path, sure=None not in other.values())[-1]
    assert (UNKNOWN_RANKS in streamxf.verify(tmp_path).unchecked) == (other == {"ranks": None})


def test_metadata_that_is_damaged_is_not_missing(tmp_path: Path) -> None:
    save(tmp_path, 0, 2)
    (tmp_path / "__1.metadata").write_bytes(b"")
    assert not any("there is no metadata" in each.message for each in streamxf.verify(tmp_path).damaged)


SIGNER = streamxf.SigningKey(bytes(range(2, 34)))
READERS: dict[str, Callable[..., Any]] = {
    "Checkpoint": lambda path, to, **terms: streamxf.Checkpoint(path, **terms).close(),
    "diff": lambda path, to, **terms: streamxf.diff(path, path, **terms),
    "unpack": streamxf.unpack,
    "pack": lambda path, to, **terms: streamxf.pack(path, to / "packed", recipients=KEY, **terms),
    "transcode": lambda path, to, **terms: streamxf.transcode(path, to, full_chain(), **terms),
    "sign": lambda path, to, **terms: streamxf.sign(path, signer=SIGNER, **terms),
}


def save_as(folder: Path, *groups: str | None, chain: Any = full_chain) -> list[str]:
    """What ranks, one for each group, have of one tensor; returns the ids of their saves."""
    whole, found = torch.arange(24.0).reshape(6, 4), list[str]()
    for rank, group in enumerate(groups):
        state = {"w": rows(whole, rank, len(groups))}
        found += save_shards(folder, [state], chain, use_collectives=False, first=rank, group=group)
    return found


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("groups", [(GROUP, GROUP, "f" * 32), (GROUP, None, GROUP)])
def test_with_keys_nobody_merges_ranks_of_two_saves(
    tmp_path: Path, reader: str, groups: tuple[str | None, ...]
) -> None:
    """Also where one does not say of which save it is. All read those of one save, and those that are named."""
    path = tmp_path / "c"
    ids = save_as(path, *groups)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    mixed = "of 2 saves: rank 0, rank " + ("1; rank 2" if groups[1] else "2; rank 1")
    with refused(MetadataError, mixed, "--merge-ranks", "expect_save_id"):
        READERS[reader](path, tmp_path / "to", keys=KEY)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert not (tmp_path / "to").exists()
    save_as(tmp_path / "one", GROUP, GROUP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        READERS[reader](path, tmp_path / "named", keys=KEY, expect_save_id=ids)
        READERS[reader](tmp_path / "one", tmp_path / "of one", keys=KEY)


@since("2.9", "does not load metadata of single ranks")
@pytest.mark.parametrize("chain", [full_chain, list])
def test_ranks_that_load_tell_the_coordinator_of_which_save_they_are(tmp_path: Path, chain: Any) -> None:
    """That one does not say it is refused where keys are to exclude a mixture, unless its save is named."""
    ids = save_as(tmp_path, GROUP, None, chain=chain)

    def plan(**terms: Any) -> None:
        plans = []
        for rank in reversed(range(2)):
            reader, planner = streamxf.FileSystemReader(tmp_path, **terms), DefaultLoadPlanner()
            metadata = reader.read_metadata(rank=rank)
            planner.set_up_planner({}, metadata, rank == 0)
            reader.set_up_storage_reader(metadata, rank == 0, rank=rank)
            plans.insert(0, reader.prepare_local_plan(planner.create_local_plan()))
        reader.prepare_global_plan(plans)

    if chain is list:
        plan()
        return
    with refused(MetadataError, f"rank 0 in {tmp_path} (group {GROUP}), rank 1", "--merge-ranks"):
        plan(keys=KEY)
    plan(keys=KEY, expect_save_id=ids)


def test_salvage_sees_of_which_save_ranks_are(tmp_path: Path) -> None:
    save_as(tmp_path / "one", GROUP, GROUP)
    found = streamxf.load_intact(tmp_path / "one", keys=KEY)
    assert torch.equal(found.state_dict["w"], torch.arange(24.0).reshape(6, 4))
    assert (found.damaged, found.unchecked) == ((), ())
    save_as(tmp_path / "two", GROUP, "f" * 32)
    with refused(PolicyError, "of 2 saves: rank 0; rank 1", "merge_ranks"):
        streamxf.load_intact(tmp_path / "two", keys=KEY)
    found = streamxf.load_intact(tmp_path / "two", keys=KEY, merge_ranks=True)
    assert "whether all are of one save" in found.unchecked[0]


def test_salvage_lists_a_rank_that_is_missing(tmp_path: Path) -> None:
    save(tmp_path, 0, 2)
    assert "there is no metadata of rank 1" in streamxf.load_intact(tmp_path).damaged[0].message


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
