"""Planners that keep values of their own in plans, or make plans anew, load what torch's reader loads."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlan

import streamxf
from streamxf.errors import MetadataError

from .helpers import KEY, assert_same, blank, load_into, refused, save

STATE = {"w": torch.arange(6.0), "n": 3}


class Plain(DefaultLoadPlanner):
    """Has nothing of its own."""


class OwnValues(DefaultLoadPlanner):
    """Finds again what it put into a plan, which is nothing that could be put into a set."""

    def create_local_plan(self) -> LoadPlan:
        return replace(super().create_local_plan(), storage_data={"mine": [1]}, planner_data=[2])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        assert all((plan.storage_data, plan.planner_data) == ({"mine": [1]}, [2]) for plan in global_plan)
        return [replace(plan, storage_data=[number]) for number, plan in enumerate(global_plan)]

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        assert central_plan.storage_data == [0]
        return central_plan


class MadeAnew(DefaultLoadPlanner):
    """Makes new plans of the same items at every step."""

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return [LoadPlan(list(plan.items)) for plan in global_plan]

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return LoadPlan(list(central_plan.items))


class OneMadeAnew(DefaultLoadPlanner):
    """Leaves the coordinator's own plan as it was."""

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return [global_plan[0], *(LoadPlan(list(plan.items)) for plan in global_plan[1:])]


class OwnPlan(LoadPlan):
    """A plan with more than torch's has."""

    more = "kept"


class OwnPlans(DefaultLoadPlanner):
    """Its plans are of a class of its own, and it keeps the first for all loads."""

    kept: OwnPlan | None = None

    def create_local_plan(self) -> LoadPlan:
        plan = super().create_local_plan()
        OwnPlans.kept = OwnPlans.kept or OwnPlan(plan.items, plan.storage_data, plan.planner_data)
        return OwnPlans.kept

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        assert type(central_plan) is OwnPlan
        return central_plan


PLANNERS = [Plain, OwnValues, MadeAnew, OneMadeAnew, OwnPlans]


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("reader", [dcp.FileSystemReader, streamxf.FileSystemReader])
def test_it_loads(tmp_path: Path, reader: Any, planner: Any) -> None:
    OwnPlans.kept = None
    for name in ("first", "second"):
        save(STATE, tmp_path / name, [])
        assert_same(load_into(blank(STATE), reader(tmp_path / name), planner=planner()), STATE)


def plans_of(paths: list[Path], planner: DefaultLoadPlanner) -> list[LoadPlan]:
    """What the coordinator gives out, where each rank reads another path."""
    plans = []
    for path in paths:
        reader: Any = streamxf.FileSystemReader(path, keys=KEY)
        metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, True)
        planner.set_up_planner(blank(STATE), metadata, True)
        plans.append(pickle.loads(pickle.dumps(reader.prepare_local_plan(planner.create_local_plan()))))
    return reader.prepare_global_plan(planner.create_global_plan(plans))


@pytest.mark.parametrize("planner", PLANNERS)
def test_ranks_that_read_the_same_save_are_never_stopped(tmp_path: Path, planner: Any) -> None:
    OwnPlans.kept = None
    save(STATE, tmp_path)
    assert len(plans_of([tmp_path] * 3, planner())) == 3


@pytest.mark.parametrize("planner", [Plain, OwnPlans])
def test_ranks_that_read_different_saves_are_stopped(tmp_path: Path, planner: Any) -> None:
    OwnPlans.kept = None
    for name in ("one", "two"):
        save(STATE, tmp_path / name)
    with pytest.raises(MetadataError, match=f"different saves: rank 0 in {tmp_path}/one, rank 1 in {tmp_path}/two"):
        plans_of([tmp_path / "one", tmp_path / "two"], planner())


def test_ranks_of_which_one_reads_a_save_of_torch_are_stopped(tmp_path: Path) -> None:
    save(STATE, tmp_path / "own", [])
    dcp.save(STATE, storage_writer=dcp.FileSystemWriter(tmp_path / "stock", sync_files=False))
    plans = []
    for name in ("own", "stock"):
        reader: Any = streamxf.FileSystemReader(tmp_path / name)
        reader.set_up_storage_reader(reader.read_metadata(), True)
        plans.append(reader.prepare_local_plan(LoadPlan([])))
    with pytest.raises(MetadataError, match="different saves"):
        reader.prepare_global_plan(plans)


class AsksForMore(DefaultLoadPlanner):
    """Its plan has a part of a tensor that was never saved."""

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        items = [
            replace(item, storage_index=replace(item.storage_index, offset=torch.Size([1]), index=index))
            for item in super().finish_plan(central_plan).items
            if item.storage_index.fqn == "w"
            for index in (None, 0, 7)
        ]
        return replace(central_plan, items=items)


def test_a_part_that_the_metadata_does_not_have(tmp_path: Path) -> None:
    save(STATE, tmp_path)
    with refused(MetadataError, "does not describe this part", "w"):
        dcp.load(blank(STATE), storage_reader=streamxf.FileSystemReader(tmp_path, keys=KEY), planner=AsksForMore())


@pytest.mark.parametrize("name", ["resolve_data", "lookup_object", "transform_object"])
@pytest.mark.parametrize("place", ["object", "class"])
def test_a_method_in_the_place_of_torchs_is_asked_for_objects(
    tmp_path: Path, name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, own = DefaultSavePlanner(), DefaultSavePlanner.transform_object

    def changed(*arguments: Any) -> Any:
        return 45 if name == "lookup_object" else own(planner, arguments[0], 45)

    if place == "object":
        monkeypatch.setattr(planner, name, changed)
    else:
        monkeypatch.setattr(DefaultSavePlanner, name, lambda _, *arguments: changed(*arguments))
    dcp.save({"n": 3}, storage_writer=streamxf.FileSystemWriter(tmp_path), planner=planner)
    assert load_into({"n": 0}, streamxf.FileSystemReader(tmp_path)) == {"n": 45}
