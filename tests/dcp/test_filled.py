"""A rank's own metadata has this rank's shards: a load that would leave a part of a target as it was is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

import streamxf
from streamxf.dcp.targets import check_filled
from streamxf.errors import MetadataError
from streamxf.format.items import Chunk, Place, TensorItem

from .helpers import KEY

SIZE = torch.Size([8])
HALVES = [(torch.Size([0]), torch.Size([4])), (torch.Size([4]), torch.Size([4]))]


class Whole:
    """A planner that tells nothing of its targets."""


class Asked(Whole):
    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return torch.empty(8)


class OwnState(Asked):
    def __init__(self) -> None:
        self.state_dict = {"w": torch.empty(8)}


PLANNERS: list[Any] = [Whole(), Asked(), OwnState()]


def described(*chunks: tuple[torch.Size, torch.Size]) -> dict[str, Any]:
    place = Place("file", 0, 16, ())
    made = tuple(Chunk(tuple(offset), tuple(shape), place, framed=True) for offset, shape in chunks)
    return {"w": TensorItem("w", "float32", tuple(SIZE), made)}


def reads(*chunks: tuple[torch.Size, torch.Size]) -> LoadPlan:
    index, zero = MetadataIndex("w", torch.Size([0])), torch.Size([0])
    return LoadPlan(
        [
            ReadItem(LoadItemType.TENSOR, index, offset, MetadataIndex("w", offset), zero, length)
            for offset, length in chunks
        ]
    )


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: type(planner).__name__)
def test_a_part_that_is_not_there_is_an_error(planner: Any) -> None:
    check_filled(reads(*HALVES), planner, described(*HALVES))
    for half in HALVES:
        with pytest.raises(MetadataError, match="shards of other ranks are missing"):
            check_filled(reads(half), planner, described(half))


def test_a_target_of_which_nothing_is_read_is_an_error() -> None:
    with pytest.raises(MetadataError, match="shards of other ranks are missing"):
        check_filled(LoadPlan([]), OwnState(), described(HALVES[1]))  # type: ignore[arg-type]
    check_filled(LoadPlan([]), OwnState(), {})  # type: ignore[arg-type]  # DCP says itself that a key is missing


def test_the_readers_check_it_for_metadata_of_one_rank(tmp_path: Path) -> None:
    """Through the reader: its metadata says a rank's, the target is larger than what the plan reads."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        writer = streamxf.FileSystemWriter(tmp_path, _extensions=[streamxf.Encrypt(KEY)])
        dcp.save({"w": torch.ones(8)}, storage_writer=writer, use_collectives=False)
    finally:
        dist.destroy_process_group()
    reader = streamxf.FileSystemReader(tmp_path, keys=KEY)
    metadata = reader.read_metadata(rank=0)
    reader.set_up_storage_reader(metadata, True)
    target = torch.full((8,), -1.0)
    planner = DefaultLoadPlanner()
    planner.set_up_planner({"w": target}, metadata, True)
    plan = planner.create_local_plan()
    reader.read_data(plan, planner).wait()
    assert torch.equal(target, torch.ones(8))
    target.fill_(-1.0)
    with pytest.raises(MetadataError, match="shards of other ranks are missing"):
        reader.read_data(LoadPlan([]), planner)
    assert torch.equal(target, torch.full((8,), -1.0))
