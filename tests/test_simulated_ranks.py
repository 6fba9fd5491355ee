"""Ranks simulated in one process save what real ones would, and the benchmark of many items notices what is missing."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks import many_items, many_ranks
from benchmarks.many_items import CLEAN, CLEAN_LEFT, LAYOUTS, READ, VERIFY
from benchmarks.simulated import COLUMNS, ROWS, Shard, plan, sent, states, write

ITEMS, RANKS = 60, 3
ONE, LOCAL, _ = LAYOUTS

linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux's /proc")


def saved(path: Path, *, collectives: bool) -> list[dict[str, Any]]:
    """What the ranks had, once they have saved it."""
    state = states(ITEMS, RANKS)
    planned = plan(path, state, lambda path: streamxf.FileSystemWriter(path, _extensions=[]), collectives=collectives)
    results = write(planned)
    reports = [sent(results)] if collectives else [[own] for own in sent(results)]
    for writer, metadata, reported in zip(planned.writers, planned.metadata, reports, strict=False):
        writer.finish(metadata, reported)
    return state


def test_simulated_ranks_save_one_checkpoint(tmp_path: Path) -> None:
    state = saved(tmp_path, collectives=True)
    shard = next(item for item in state[0].values() if isinstance(item, Shard)).data
    wanted: dict[str, Any] = {}
    for rank, own in enumerate(state):
        for name, item in own.items():
            if isinstance(item, Shard):
                whole = wanted.setdefault(name, torch.empty(RANKS * ROWS, COLUMNS, dtype=shard.dtype))
                whole[rank * ROWS : (rank + 1) * ROWS] = item.data
            else:
                assert wanted.setdefault(name, item) is item
    assert {type(item) for item in wanted.values()} == {torch.Tensor, dict}
    assert sum(len(own) for own in state) == ITEMS
    target = {name: torch.zeros_like(item) if torch.is_tensor(item) else {"step": -1} for name, item in wanted.items()}
    dcp.load(target, storage_reader=streamxf.FileSystemReader(tmp_path))
    for name, item in wanted.items():
        assert torch.equal(target[name], item) if torch.is_tensor(item) else target[name] == item


def test_simulated_ranks_save_each_for_itself(tmp_path: Path) -> None:
    state = saved(tmp_path, collectives=False)
    assert not (tmp_path / ".metadata").exists()
    for rank, own in enumerate(state):
        found = streamxf.FileSystemReader(tmp_path).read_metadata(rank=rank)
        # what DCP flattens has a longer name than the state that it comes from
        assert {path[0] for path in found.planner_data.values()} == set(own)
        assert len(found.storage_data) == len(own)
    assert streamxf.verify(tmp_path).items == ITEMS


@linux
def test_each_operation_of_the_benchmark_finds_its_items(tmp_path: Path) -> None:
    """In one of its layouts; make bench-smoke tries all."""
    layout = LAYOUTS[LOCAL]
    costs = many_items.save(tmp_path, layout, ITEMS, RANKS, 1)
    assert len(list((tmp_path / "streamxf").glob("*.metadata"))) == RANKS
    for name in layout.operations:
        costs[name] = many_items.operation(tmp_path, name, layout, ITEMS, RANKS, 1)
        assert len(costs[name]["cpu"]) == len(costs[name]["wall"]) == 1
    assert set(layout.operations) < set(costs)
    assert len(list((tmp_path / "streamxf").glob("*.distcp"))) == RANKS


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the benchmark saves in the first of its layouts."""
    path = tmp_path_factory.mktemp("one")
    many_items.save(path, LAYOUTS[ONE], ITEMS, RANKS, 1)
    return path


@linux
@pytest.mark.parametrize("name", [READ, VERIFY, CLEAN, CLEAN_LEFT])
def test_the_benchmark_notices_another_checkpoint(name: str, one: Path, tmp_path: Path) -> None:
    layout = LAYOUTS[ONE]
    shutil.copytree(one, tmp_path, dirs_exist_ok=True)
    (tmp_path / "streamxf" / f"__0_0_{'0' * 32}.distcp").touch()
    many = ITEMS if name in (CLEAN, CLEAN_LEFT) else ITEMS + 1
    with pytest.raises(AssertionError, match=name):
        many_items.operation(tmp_path, name, layout, many, RANKS, 1)


@linux
def test_one_rank_of_many_finishes_and_plans(tmp_path: Path) -> None:
    """And each operation finds what that rank has."""
    sent_bytes = {}
    for name in (many_ranks.FINISH, many_ranks.STOCK_FINISH):
        costs = many_ranks.finish(tmp_path, name, 6, ITEMS, 1)
        assert len(costs["cpu"]) == len(costs["wall"]) == 1
        sent_bytes[name] = costs["sent"][0]
    assert sent_bytes[many_ranks.FINISH] < 1024 < sent_bytes[many_ranks.STOCK_FINISH]
    with streamxf.Checkpoint(tmp_path / "streamxf") as checkpoint:
        assert len(checkpoint) == ITEMS
        assert {len(item.chunks) for item in checkpoint.stored.values()} == {6}
    for name in (many_ranks.PLAN, many_ranks.TORCH_PLAN, many_ranks.STOCK_PLAN):
        assert many_ranks.plan(tmp_path, name, 6, ITEMS, 1)["added"]
        with pytest.raises(RuntimeError, match="Missing key"):
            many_ranks.plan(tmp_path, name, 6, ITEMS + 1, 1)


@pytest.mark.parametrize(("power", "exponent"), [(0, 0.0), (1, 1.0), (2, 2.0)])
def test_growth_is_an_exponent(power: int, exponent: float) -> None:
    costs = {items: 0.25 * items**power for items in (10, 30, 100)}
    assert many_items._exponent(costs) == pytest.approx(exponent, abs=1e-9)
