"""A save whose index readers would refuse is refused before anything is written."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import streamxf
from streamxf import Checksum, Encrypt, SigningKey, budget
from streamxf.dcp import plans as bounds
from streamxf.errors import AbortedError, MetadataError, UnsupportedError
from streamxf.format import fields, limits

from .helpers import KEY, assert_same, load, refused, save
from .shards import Shard, rows, save_shards

OLD = {"old": torch.arange(9.0)}
MANY: dict[str, Any] = {f"layers.{number}.weight": torch.zeros(3, 5) for number in range(3000)}


def test_it_is_refused_and_nothing_is_written(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(OLD, checkpoint)
    before = {path: path.stat().st_mtime_ns for path in checkpoint.iterdir()}
    monkeypatch.setattr(limits, "MAX_INDEX", 300_000)
    asked = []
    planner = dcp.DefaultSavePlanner()
    monkeypatch.setattr(planner, "resolve_data", asked.append)
    with refused(MetadataError, "the index of this save may take", "300,000 are allowed; nothing was written"):
        dcp.save(MANY, storage_writer=streamxf.FileSystemWriter(checkpoint), planner=planner)
    assert not asked
    assert {path: path.stat().st_mtime_ns for path in checkpoint.iterdir()} == before
    assert_same(load(OLD, checkpoint), OLD)


MODEL = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.Linear(50, 2))
STATES: dict[str, dict[str, Any]] = {
    "many tensors": MANY,
    "nested, with objects": {"model": MODEL.state_dict(), "deep": {"a": [{"b": 1, "c": torch.ones(2)}] * 9}},
    "parameters": dict(MODEL.named_parameters()),
    "names that JSON escapes": {f'"\\\x07é\u2028😀{number}' * 30: torch.ones(1) for number in range(50)},
    "no dimensions, no elements": {"none": torch.ones(()), "empty": torch.ones(3, 0), "deep": torch.ones([1] * 60)},
    "channels last": {"c": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)},
    "nothing": {},
}
CHAINS = {
    "none": list,
    "signed": lambda: [Checksum(), Encrypt(KEY, signer=SigningKey.generate())],
}


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was expected of each index at the most, and what it took."""
    found: list[int] = []
    bound, pack = bounds.index_bound, fields.pack_json

    def noted(*arguments: Any) -> int:
        found.append(bound(*arguments))
        return found[-1]

    def packed(content: Any, *rest: Any) -> bytes:
        found.append(len(json.dumps(content, separators=(",", ":"))))
        return pack(content, *rest)

    monkeypatch.setattr(bounds, "index_bound", noted)
    monkeypatch.setattr(fields, "pack_json", packed)
    return found


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("single", [True, False])
def test_no_index_is_larger_than_its_bound(checkpoint: Path, sizes: list[int], state: str, chain: str, single: bool):
    state_dict = dict(list(STATES[state].items())[: None if single else 50])
    writer = streamxf.FileSystemWriter(
        checkpoint, chain=CHAINS[chain](), single_file_per_rank=single, thread_count=3, sync_files=False
    )
    dcp.save(state_dict, storage_writer=writer)
    bound, size = sizes
    assert size <= bound <= 2 * size + 2**18


def test_so_it_is_with_shards(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    tensor = torch.arange(4000.0).reshape(1000, 4)
    states = [{f"t{number}": rows(tensor, rank, 8) for number in range(100)} for rank in range(8)]
    plans = []
    prepare = streamxf.FileSystemWriter.prepare_local_plan

    def kept(self: Any, plan: Any) -> Any:
        plans.append(prepare(self, plan))
        return plans[-1]

    monkeypatch.setattr(streamxf.FileSystemWriter, "prepare_local_plan", kept)
    save_shards(checkpoint, states)
    (size,) = sizes
    assert size <= bounds.index_bound(plans, 1, False) <= 2 * size + 2**18


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


def test_what_planners_tell_in_their_plans_counts(checkpoint: Path, sizes: list[int]) -> None:
    told = {"seen": [*range(100_000)], "of": (-1.5, b"bytes" * 1000, {"é": "😀" * 1000})}
    dcp.save(OLD, storage_writer=streamxf.FileSystemWriter(checkpoint), planner=Telling(told))
    bound, size = sizes
    assert size <= bound <= 2 * size + 2**18
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
    monkeypatch.setattr(limits, "MAX_INDEX", 300_000)
    writer = streamxf.FileSystemWriter(checkpoint)
    with refused(MetadataError, "the index would have", "300000 are allowed", "or put less into DCP's metadata"):
        dcp.save(OLD, storage_writer=writer, planner=Telling({}, "x" * 300_000))
    assert set(checkpoint.iterdir()) == before
    assert_same(load(OLD, checkpoint), OLD)


def test_what_readers_take_too_long_to_compare_is_not_published(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut along six dimensions, and not as a whole along the first, as hardly any tensor is."""
    save(OLD, checkpoint)
    before = set(checkpoint.iterdir())
    monkeypatch.setattr(budget, "FREE_STEPS", 0)
    states = []
    for number, spot in enumerate(product(range(2), repeat=5)):
        cut = 1 if number else 2
        for begin, end in ((0, cut), (cut, 3)):
            states.append({"t": Shard(torch.ones([end - begin, *[1] * 5]), (begin, *spot), (3, *[2] * 5))})
    with pytest.raises(UnsupportedError, match="its 64 chunks are cut as no writer cuts a tensor"):
        save_shards(checkpoint, states)
    assert set(checkpoint.iterdir()) == before


def test_a_save_that_cannot_be_prepared_leaves_nothing(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of all ranks go: nothing will ever name them."""
    save(OLD, checkpoint)
    before = set(checkpoint.iterdir())
    states = [{"t": rows(torch.arange(8.0), rank, 2)} for rank in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_INDEX", 100)
        with pytest.raises(MetadataError, match="the index would have"):
            save_shards(checkpoint, states)
    assert set(checkpoint.iterdir()) == before
    with monkeypatch.context() as patch:
        patch.setattr("streamxf.storage.lock.PATIENCE", 0.0)
        with streamxf.storage.lock.locked(streamxf.storage.opening.open_storage(checkpoint)):
            with pytest.raises(AbortedError, match="another process is publishing"):
                save_shards(checkpoint, states)
            before.add(checkpoint / ".streamxf.lock")
            assert set(checkpoint.iterdir()) == before
    assert_same(load(OLD, checkpoint), OLD)
