"""What a load leaves as it was. A rank's own metadata has this rank's shards: to leave a part of a target is refused.
What is not asked for is named by the report, and an empty dictionary in its place is warned of.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

import streamxf
from streamxf import FileSystemReader, FileSystemWriter
from streamxf.dcp.targets import check_filled, empty_targets
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


NAMES = ["model.weight", "optimizer.state.0.exp_avg", "optimizer.param_groups", "step"]


def state() -> dict[str, Any]:
    moments = {"0": {"exp_avg": torch.ones(9)}}
    return {"model": {"weight": torch.ones(9), "none": torch.ones(0)}, "optimizer": {"state": moments, "lr": 1}, "a": 1}


def load(path: Path, target: dict[str, Any]) -> Any:
    reader = FileSystemReader(path)
    dcp.load(target, storage_reader=reader, no_dist=True)
    return reader.report


@pytest.fixture
def path(tmp_path: Path) -> Path:
    dcp.save(state(), storage_writer=FileSystemWriter(tmp_path, chain=[]), no_dist=True)
    return tmp_path


@pytest.fixture
def strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the state to load")
        yield


@pytest.mark.usefixtures("strict")
def test_the_report_names_what_was_not_asked_for(path: Path):
    report = load(path, state())
    assert report.left == ()
    assert "left out" not in str(report)
    report = load(path, {"model": state()["model"]})
    assert set(report.left) == {"optimizer.state.0.exp_avg", "optimizer.lr", "a"}
    line = next(line for line in str(report).splitlines() if "left out" in line)
    assert line.split()[:4] == ["items", "left", "out", "3"]
    assert "optimizer.state.0.exp_avg" in line


def test_only_a_few_names_are_shown(tmp_path: Path):
    many = {f"item{number}\n": number for number in range(1000)}
    dcp.save(many, storage_writer=FileSystemWriter(tmp_path, chain=[]), no_dist=True)
    report = load(tmp_path, {"item7\n": 0})
    assert len(report.left) == 999
    assert "999  item0\\n, item1\\n, item10\\n, ..." in str(report)


@pytest.mark.parametrize(("optimizer", "where"), [({}, "'optimizer'"), ({"state": {}, "lr": 1}, "'optimizer.state'")])
def test_an_optimizer_without_state_is_warned_of(optimizer: dict[str, Any], where: str, path: Path):
    target = {**state(), "optimizer": optimizer}
    with pytest.warns(UserWarning, match=f"the state to load is empty at {where}, "):
        load(path, target)
    assert target["optimizer"] == optimizer


@pytest.mark.usefixtures("strict")
def test_what_the_checkpoint_does_not_have_may_be_empty(path: Path):
    load(path, {**state(), "scheduler": {}, "optimizer": state()["optimizer"] | {"extra": {}}})


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"optimizer": {}}, ["optimizer"]),
        ({"optimizer": {"state": {}, "param_groups": []}, "model": {}}, ["optimizer.state", "model"]),
        ({"optimizer": {"state": {0: {}}}}, ["optimizer.state.0"]),
        ({"optimizer.state": {}}, ["optimizer.state"]),
        ({"opt": {}, "step": {}, "optimizer": None, "model": {"weight": 1}}, []),
        ({}, []),
    ],
    ids=repr,
)
def test_which_keys_are_empty(given: dict[str, Any], found: list[str]):
    assert empty_targets(given, NAMES) == found
    within = [f"all.1.0.{name}" for name in found] if given else ["all.1.0"]
    assert empty_targets({"all": [7, [given]]}, [f"all.1.0.{name}" for name in NAMES]) == within
