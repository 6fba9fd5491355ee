"""Incremental saves of several ranks, which share one base or have none."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from benchmarks.simulated import COLUMNS, ROWS, Planned, Shard, plan, sent, write
from streamxf import FloatZip
from streamxf.checkpoint.memory import SaveMemory
from streamxf.checkpoint.publish import Pins
from streamxf.manager.pins import pin_base
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage
from tests.failing import fails_with

RANKS = 3
WIDE = 300  # times the rows that a shard has elsewhere, so that it is linked


@pytest.fixture(autouse=True)
def tall(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("benchmarks.simulated.ROWS", f"{__name__}.ROWS"):
        monkeypatch.setattr(name, 4 * WIDE)


def states(ranks: int = RANKS, changed: int | None = None) -> list[dict[str, Any]]:
    """A sharded tensor, and one of each rank's own; that of one rank has `changed`, and so has its shard."""
    made: list[dict[str, Any]] = []
    for rank in range(ranks):
        data = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(rank))
        own = torch.full((5000,), float(rank))
        if rank == changed:
            data[0, 0], own[0] = 7.0, 7.0
        made.append({"sharded": Shard(data, rank, ranks), f"own.{rank}": own, "step": 3})
    return made


def planned(
    path: Path,
    state: list[dict[str, Any]],
    memories: list[SaveMemory],
    base: Path | None = None,
    *,
    collectives: bool = True,
) -> Planned:
    each = iter(memories)
    how: dict[str, Any] = {"chain": [FloatZip()], "sync_files": False, "base": base}
    return plan(
        path, state, lambda path: streamxf.FileSystemWriter(path, memory=next(each), **how), collectives=collectives
    )


def save(made: Planned, *, collectives: bool = True) -> list[int]:
    """How many shards of each rank were as in the base."""
    results = write(made)
    reported = [sent(results)] if collectives else [[own] for own in sent(results)]
    told = [writer._save.report.unchanged for writer in made.writers]
    for writer, metadata, own in zip(made.writers, made.metadata, reported, strict=False):
        writer.finish(metadata, own)
    return told


def assert_holds(path: Path, state: list[dict[str, Any]]) -> None:
    with streamxf.Checkpoint(path) as checkpoint:
        whole = torch.cat([own["sharded"].data for own in state])
        assert torch.equal(torch.as_tensor(checkpoint["sharded"].read()), whole)
        for rank, own in enumerate(state):
            assert torch.equal(torch.as_tensor(checkpoint[f"own.{rank}"].read()), own[f"own.{rank}"])
    assert streamxf.verify(path).ok


def test_all_ranks_build_on_the_base_that_all_know(tmp_path: Path) -> None:
    memories: list[SaveMemory] = [SaveMemory() for _ in range(RANKS)]
    assert save(planned(tmp_path / "1", states(), memories)) == [0, 0, 0]
    assert save(planned(tmp_path / "2", states(changed=1), memories, tmp_path / "1")) == [2, 0, 2]
    assert_holds(tmp_path / "2", states(changed=1))
    assert save(planned(tmp_path / "3", states(), memories, tmp_path / "2")) == [2, 0, 2]
    assert_holds(tmp_path / "3", states())
    (one,) = {memory.held for memory in memories}
    assert len(one) == 3


def test_a_rank_that_knows_nothing_makes_all_save_whole(tmp_path: Path) -> None:
    memories: list[SaveMemory] = [SaveMemory() for _ in range(RANKS)]
    save(planned(tmp_path / "1", states(), memories))
    assert save(planned(tmp_path / "2", states(), [*memories[:2], SaveMemory()], tmp_path / "1")) == [0, 0, 0]
    assert_holds(tmp_path / "2", states())


def test_a_save_that_was_not_published_is_no_base(tmp_path: Path) -> None:
    memories: list[SaveMemory] = [SaveMemory() for _ in range(RANKS)]
    save(planned(tmp_path / "1", states(), memories))
    for _ in range(3):
        made = planned(tmp_path / "2", states(changed=0), memories, tmp_path / "1")
        write(made)  # and the coordinator has failed
        for writer in made.writers:
            writer.reset(tmp_path / "2")
        assert not [*(tmp_path / "2").glob("*.distcp")], "linked files go, too"
    assert_holds(tmp_path / "1", states())
    assert save(planned(tmp_path / "3", states(), memories, tmp_path / "2")) == [0, 0, 0]
    assert_holds(tmp_path / "3", states())


def test_the_base_of_saves_that_failed_stays_known(tmp_path: Path) -> None:
    memories: list[SaveMemory] = [SaveMemory() for _ in range(RANKS)]
    save(planned(tmp_path / "1", states(), memories))
    for _ in range(5):
        write(made := planned(tmp_path / "2", states(changed=0), memories, tmp_path / "1"))
        for writer in made.writers:
            writer.reset(tmp_path / "2")
    assert save(planned(tmp_path / "3", states(changed=2), memories, tmp_path / "1")) == [2, 2, 0]
    assert_holds(tmp_path / "3", states(changed=2))


def test_shards_of_another_cut_are_saved(tmp_path: Path) -> None:
    memories: list[SaveMemory] = [SaveMemory() for _ in range(RANKS)]
    save(planned(tmp_path / "1", states(), memories))
    assert save(planned(tmp_path / "2", states(2), memories[:2], tmp_path / "1")) == [1, 1]
    assert_holds(tmp_path / "2", states(2))


def test_ranks_that_swapped_places_save_what_they_have(tmp_path: Path) -> None:
    memories: list[SaveMemory] = [SaveMemory() for _ in range(RANKS)]
    save(planned(tmp_path / "1", states(), memories))
    assert save(planned(tmp_path / "2", states(), memories[::-1], tmp_path / "1")) == [0, 2, 0]
    assert_holds(tmp_path / "2", states())


def test_without_collectives_each_rank_has_a_base_of_its_own(tmp_path: Path) -> None:
    memories: list[SaveMemory] = [SaveMemory() for _ in range(RANKS)]
    apart = {"collectives": False}
    assert save(planned(tmp_path / "1", states(), memories, **apart), **apart) == [0, 0, 0]
    memories[2] = SaveMemory()
    assert save(planned(tmp_path / "2", states(changed=1), memories, tmp_path / "1", **apart), **apart) == [2, 0, 0]
    assert_holds(tmp_path / "2", states(changed=1))


def test_ranks_that_cannot_link_name_the_files_of_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "link", fails_with(OSError, errno.EXDEV, "another device"))
    memories: list[SaveMemory] = [SaveMemory() for _ in range(RANKS)]
    for name, base, shared in (("1", None, [0, 0, 0]), ("2", "1", [2, 0, 2]), ("3", "2", [2, 2, 2])):
        made = planned(tmp_path / name, states(changed=1 if base else None), memories, base and tmp_path / base)
        for writer in made.writers:
            writer.pin = pin_base
        assert save(made) == shared
    for name in ("2", "3"):
        assert_holds(tmp_path / name, states(changed=1))
    pins = {folder: [*Pins.of(open_storage(tmp_path / folder)).by] for folder in "12"}
    assert ([*map(sorted, pins.values())], len([*tmp_path.glob("*/.streamxf-pin-*")])) == ([["2", "3"], ["3"]], 3)
