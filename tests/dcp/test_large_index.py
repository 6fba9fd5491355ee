"""A save whose index readers would refuse is refused before anything is written."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.dcp import plans
from streamxf.errors import AbortedError, MetadataError, UnsupportedError
from streamxf.format import limits, tiling

from .helpers import assert_same, load, refused, save
from .shards import Planner, Shard, rows, save_shards

OLD = {"old": torch.arange(9.0)}
LONG: dict[str, dict[str, Any]] = {
    "a name": {"a" * 4097: torch.zeros(3)},
    "a path": {"a": {str(number) * 3000: {"b": 1} for number in range(3)}},
    "the name of an object": {"é" * 2049: "value"},
}


@pytest.mark.parametrize("state", LONG)
def test_it_is_refused_and_nothing_is_written(checkpoint: Path, state: str) -> None:
    save(OLD, checkpoint)
    before = {path: path.stat().st_mtime_ns for path in checkpoint.iterdir()}
    asked = []
    planner = dcp.DefaultSavePlanner()
    planner.resolve_data = asked.append  # type: ignore[method-assign, assignment]
    if state == "a path":
        save(LONG[state], checkpoint)  # names of 3,000 bytes are no trouble
        return
    with refused(MetadataError, "a name of", "4,096 are allowed; nothing was written"):
        dcp.save(LONG[state], storage_writer=streamxf.FileSystemWriter(checkpoint), planner=planner)
    assert not asked
    assert {path: path.stat().st_mtime_ns for path in checkpoint.iterdir()} == before
    assert_same(load(OLD, checkpoint), OLD)


class Telling(dcp.DefaultSavePlanner):
    """Puts something into each rank's plan, and into DCP's metadata."""

    def __init__(self, in_plan: dict[str, Any], beside: Any = None) -> None:
        super().__init__()
        self._in_plan, self._beside = in_plan, beside

    def create_local_plan(self) -> dcp.SavePlan:
        plan = super().create_local_plan()
        return replace(plan, planner_data={**plan.planner_data, **self._in_plan})

    def create_global_plan(self, all_plans: list[dcp.SavePlan]) -> Any:
        plans, metadata = super().create_global_plan(all_plans)
        if self._beside is not None:
            metadata.beside = self._beside  # type: ignore[attr-defined]
        return plans, metadata


def test_what_planners_tell_in_their_plans_counts(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"seen": [*range(100_000)], "of": (-1.5, b"bytes" * 1000, {"é": "😀" * 1000})}
    with monkeypatch.context() as patch:
        patch.setattr(plans, "_EXTRA", 500_000)
        with refused(MetadataError, "planner data of", "500,000 are allowed; nothing was written"):
            dcp.save(OLD, storage_writer=streamxf.FileSystemWriter(checkpoint), planner=Telling(told))
        assert not checkpoint.exists() or not any(checkpoint.iterdir())
    dcp.save(OLD, storage_writer=streamxf.FileSystemWriter(checkpoint), planner=Telling(told))
    assert streamxf.FileSystemReader(checkpoint).read_metadata().planner_data["seen"] == told["seen"]


def test_what_cannot_be_stored_may_be_left_out_by_the_planner(checkpoint: Path) -> None:
    class Forgetting(Telling):
        def create_global_plan(self, all_plans: list[dcp.SavePlan]) -> Any:
            plans, metadata = super().create_global_plan(all_plans)
            return plans, replace(metadata, planner_data=None)

    writer = streamxf.FileSystemWriter(checkpoint)
    dcp.save(OLD, storage_writer=writer, planner=Forgetting({"an object": object()}))
    assert_same(load(OLD, checkpoint, None), OLD)


def test_what_they_tell_may_compress_to_nothing(checkpoint: Path) -> None:
    planner = Telling({}, [0] * 1_000_000)
    dcp.save(OLD, storage_writer=streamxf.FileSystemWriter(checkpoint), planner=planner)
    assert streamxf.FileSystemReader(checkpoint).read_metadata().beside == [0] * 1_000_000  # type: ignore[attr-defined]
    assert_same(load(OLD, checkpoint, None), OLD)


def test_what_they_tell_beside_their_plans_is_refused_before_it_is_published(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(OLD, checkpoint)
    before = set(checkpoint.iterdir())
    monkeypatch.setattr(limits, "MAX_ROOT", 300_000)
    writer = streamxf.FileSystemWriter(checkpoint)
    with refused(MetadataError, "the index would have", "300000 are allowed", "or put less into DCP's metadata"):
        dcp.save(OLD, storage_writer=writer, planner=Telling({}, "x" * 300_000))
    assert set(checkpoint.iterdir()) == before
    assert_same(load(OLD, checkpoint), OLD)


def test_what_readers_take_too_long_to_compare_is_not_published(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes that no dimension parts, as hardly any tensor is cut."""
    save(OLD, checkpoint)
    before = set(checkpoint.iterdir())
    monkeypatch.setattr(tiling, "MAX_CORNERS", 19)
    wheel = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))]
    states = [{"t": Shard(torch.ones(shape), offset, (3, 3))} for offset, shape in wheel]
    with pytest.raises(UnsupportedError, match="its 5 chunks are cut as no writer cuts a tensor"):
        save_shards(checkpoint, states)
    assert set(checkpoint.iterdir()) == before
    monkeypatch.undo()
    save_shards(checkpoint, states)


def test_a_cut_that_readers_may_refuse_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """More corners than any reader has to count, and no grid. Shards without elements do not count."""
    monkeypatch.setattr(plans, "MAX_GROUP", 4)
    monkeypatch.setattr(plans, "MAX_CORNERS", 16)

    def check(*boxes: tuple[tuple[int, int], tuple[int, int]]) -> None:
        states = [{"t": Shard(torch.ones(shape), offset, (3, 2))} for offset, shape in boxes]
        planners = [Planner() for _ in states]
        for planner, state in zip(planners, states, strict=True):
            planner.set_up_planner(state, is_coordinator=True)
        plans.check_index([planner.create_local_plan() for planner in planners])

    cells = [((row, column), (1, 1)) for row in range(3) for column in range(2)]
    check(*cells, ((3, 0), (0, 2)))
    check(*cells[:2], ((1, 0), (1, 2)), ((2, 0), (1, 2)), ((3, 0), (0, 2)))
    with refused(MetadataError, "its 5 shards are no grid", "nothing was written"):
        check(*cells[:4], ((2, 0), (1, 2)))


def test_a_save_that_cannot_be_prepared_leaves_nothing(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of all ranks go: nothing will ever name them."""
    save(OLD, checkpoint)
    before = set(checkpoint.iterdir())
    states = [{"t": rows(torch.arange(8.0), rank, 2)} for rank in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_ROOT", 100)
        with pytest.raises(MetadataError, match="the index would have"):
            save_shards(checkpoint, states)
    assert set(checkpoint.iterdir()) == before
    with monkeypatch.context() as patch:
        patch.setattr("streamxf.storage.lock.PATIENCE", 0.0)
        with streamxf.storage.lock.locked(streamxf.storage.opening.open_storage(checkpoint)):
            with pytest.raises(AbortedError, match="another process is publishing"), ThreadPoolExecutor(1) as pool:
                pool.submit(save_shards, checkpoint, states).result()
            before.add(checkpoint / ".streamxf.lock")
            assert set(checkpoint.iterdir()) == before
    assert_same(load(OLD, checkpoint), OLD)
