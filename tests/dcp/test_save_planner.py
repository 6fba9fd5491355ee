"""`SavePlanner` plans what DCP's planner plans, and sends columns for it."""

import pickle
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

import streamxf
from streamxf.dcp.columns import PlannedItems, StoredResults
from streamxf.errors import UnsupportedError

from . import planned_ranks
from .helpers import assert_same, needs_gloo, refused, since
from .rank_scenarios import run_ranks


class Part:
    """What a rank has of a tensor: some boxes."""

    def __init__(self, whole: tuple[int, ...], boxes: list[Any], dtype: torch.dtype = torch.float32) -> None:
        self.whole, self.boxes, self.dtype = whole, boxes, dtype

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        made = []
        for offset, shape in self.boxes:
            chunk = ChunkStorageMetadata(torch.Size(offset), torch.Size(shape))
            about = TensorWriteData(chunk, TensorProperties(self.dtype), torch.Size(self.whole))
            made.append(WriteItem(MetadataIndex(name, offset), WriteItemType.SHARD, tensor_data=about))
        return made


@st.composite
def states(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Of each rank: shards along two dimensions, some on several ranks; replicated tensors, empty ones and objects."""
    ranks = draw(st.integers(1, 5))
    made: list[dict[str, Any]] = [{} for _ in range(ranks)]
    for number in range(draw(st.integers(1, 6))):
        name = f"layers.{number}"
        match draw(st.sampled_from(["rows", "grid", "whole", "empty", "object", "scalar"])):
            case "rows":
                rows = draw(st.integers(0, 7))
                cuts = sorted([0, rows, *draw(st.lists(st.integers(0, rows), min_size=ranks - 1, max_size=ranks - 1))])
                for own, begin, end in zip(made, cuts, cuts[1:], strict=False):
                    own[name] = Part((rows, 3), [((begin if begin < end else rows, 0), (end - begin, 3))])
            case "grid":
                copies = draw(st.integers(1, ranks))
                for rank, own in enumerate(made):
                    own[name] = Part(
                        (copies, 4), [((rank % copies, at), (1, 2)) for at in draw(st.permutations([0, 2]))]
                    )
            case kind:
                holders = draw(st.sets(st.integers(0, ranks - 1), min_size=1))
                values = {"whole": torch.ones(3, 2), "empty": torch.empty(0, 2), "scalar": torch.tensor(1)}
                for rank in holders:
                    made[rank][name] = values.get(kind, {"a": 1} if number % 2 else "text")
    return made


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def global_plan(cls: Any, made: list[dict[str, Any]], **options: Any) -> tuple[list[SavePlan], Metadata]:
    planners = [cls(**options) for _ in made]
    for rank, (planner, state) in enumerate(zip(planners, made, strict=True)):
        planner.set_up_planner(state, None, rank == 0)
    plans = [sent(planner.create_local_plan()) for planner in planners]
    plans, metadata = planners[0].create_global_plan(plans)
    return [planner.finish_plan(sent(plan)) for planner, plan in zip(planners, plans, strict=True)], metadata


def entries(metadata: Metadata) -> dict[str, Any]:
    found = {}
    for name, entry in metadata.state_dict_metadata.items():
        found[name] = (
            "object"
            if isinstance(entry, BytesStorageMetadata)
            else (entry.properties, entry.size, sorted((*chunk.offsets, *chunk.sizes) for chunk in entry.chunks))
        )
    return found


def assert_planned_alike(made: list[dict[str, Any]], **options: Any) -> None:
    plans, metadata = global_plan(streamxf.SavePlanner, made, **options)
    expected, stock = global_plan(DefaultSavePlanner, made, **options)
    assert entries(metadata) == entries(stock) == entries(sent(metadata))
    assert metadata.planner_data == stock.planner_data
    assert all(isinstance(plan.items, PlannedItems) for plan in plans)
    if options.get("dedup_save_to_lowest_rank"):
        assert [[*plan.items] for plan in plans] == [plan.items for plan in expected]
    own = global_plan(KeepingAll, made, **options)[0]
    for plan, every in zip(plans, own, strict=True):  # each rank writes some of what it has, in its order
        rest = iter(every.items)
        assert all(item in rest for item in plan.items)
    keys = [item.index for plan in plans for item in plan.items]
    assert len(keys) == len({*keys})
    assert {*keys} == {item.index for plan in own for item in plan.items}


class Own(WriteItem):
    pass


class KeepingAll(DefaultSavePlanner):
    """Plans of ranks as they were."""

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return all_plans, Metadata({})


@given(states(), st.booleans(), st.booleans())
def test_as_torch_plans(made: list[dict[str, Any]], lowest: bool, flatten: bool) -> None:
    assert_planned_alike(made, dedup_save_to_lowest_rank=lowest, flatten_state_dict=flatten)


def test_what_several_ranks_have_is_spread_over_them() -> None:
    replicated = [{f"layers.{number}": torch.empty(100, 10) for number in range(40)} for _ in range(4)]
    plans, _ = global_plan(streamxf.SavePlanner, replicated)
    assert [len(plan.items) for plan in plans] == [10] * 4
    hybrid = [{f"layers.{n}": Part((8, 4), [((rank % 4 * 2, 0), (2, 4))]) for n in range(40)} for rank in range(8)]
    plans, _ = global_plan(streamxf.SavePlanner, hybrid)
    assert [len(plan.items) for plan in plans] == [20] * 8


ROWS = Part((4, 3), [((0, 0), (2, 3))])


@pytest.mark.parametrize("first", [streamxf.SavePlanner, DefaultSavePlanner])
def test_ranks_may_have_either_planner(first: Any) -> None:
    state = [{"x": ROWS, "y": torch.ones(2)}, {"x": Part((4, 3), [((2, 0), (2, 3))]), "y": torch.ones(2)}]
    other = DefaultSavePlanner if first is streamxf.SavePlanner else streamxf.SavePlanner
    planners = [first(dedup_save_to_lowest_rank=True), other()]
    for planner, own in zip(planners, state, strict=True):
        planner.set_up_planner(own, None, planner is planners[0])
    plans, metadata = planners[0].create_global_plan([sent(planner.create_local_plan()) for planner in planners])
    finished = [planner.finish_plan(sent(plan)) for planner, plan in zip(planners, plans, strict=True)]
    expected, stock = global_plan(DefaultSavePlanner, state, dedup_save_to_lowest_rank=True)
    assert [[*plan.items] for plan in finished] == [plan.items for plan in expected]
    assert entries(metadata) == entries(stock)


WRONG = {
    "a gap": ([ROWS, Part((4, 3), [((3, 0), (1, 3))])], "key:x its chunks leave out a part of it, or cover one twice"),
    "an overlap": ([ROWS, Part((4, 3), [((1, 0), (3, 3))])], "key:x its chunks leave out"),
    "beyond": ([ROWS, Part((4, 3), [((2, 0), (3, 3))])], "key:x its chunks reach beyond its end"),
    "an object": ([ROWS, "text"], r"key:x is torch.float32 \(4, 3\) on one rank, and an object on another"),
    "a shape": (
        [ROWS, Part((4, 4), [((2, 0), (2, 3))])],
        r"torch.float32 \(4, 3\) on one rank, and torch.float32 \(4, 4\)",
    ),
    "a dtype": ([ROWS, Part((4, 3), [((2, 0), (2, 3))], torch.int8)], "torch.float32 .* and torch.int8"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str) -> None:
    values, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        global_plan(streamxf.SavePlanner, [{"x": value} for value in values])


@since("2.8", "has a planner that refuses it")
def test_one_rank_may_save_a_part_alone_as_with_torch() -> None:
    _, metadata = global_plan(streamxf.SavePlanner, [{"x": ROWS}])
    assert entries(metadata) == entries(global_plan(DefaultSavePlanner, [{"x": ROWS}])[1])
    with pytest.raises(ValueError, match="its chunks overlap"):
        global_plan(streamxf.SavePlanner, [{"x": Part((4, 3), [((0, 0), (2, 3)), ((1, 0), (2, 3))])}])


def test_ranks_that_have_the_same_layout_share_it() -> None:
    shards = [{f"x.{n}": Part((8, 3), [((rank * 2, 0), (2, 3))]) for n in range(100)} for rank in range(4)]
    plans, _ = global_plan(streamxf.SavePlanner, shards)
    assert len({id(plan.items.layout) for plan in plans}) == 1
    assert len({id(plan.planner_data) for plan in plans}) == 1
    assert len(pickle.dumps(plans)) < 4 * len(pickle.dumps(global_plan(DefaultSavePlanner, shards)[0][0])) / 4


def test_changed_items_are_sent_as_they_were_changed() -> None:
    planner = streamxf.SavePlanner()
    planner.set_up_planner({"x": torch.ones(2), "y": 1}, None, True)
    plan = planner.create_local_plan()
    plan.items[0].tensor_data.properties.dtype = torch.float16
    again = sent(plan)
    assert again.items[0].tensor_data.properties.dtype == torch.float16
    _, metadata = planner.create_global_plan([again])
    assert metadata.state_dict_metadata["x"].properties.dtype == torch.float16


def test_what_columns_cannot_have_is_planned_by_torch() -> None:
    class Planner(streamxf.SavePlanner):
        def create_local_plan(self) -> SavePlan:
            plan = super().create_local_plan()
            return replace(plan, items=[Own(**vars(item)) for item in plan.items])

    plans, metadata = global_plan(Planner, [{"x": ROWS}, {"x": Part((4, 3), [((2, 0), (2, 3))])}])
    assert all(type(item) is Own for plan in plans for item in plan.items)
    assert len(metadata.state_dict_metadata["x"].chunks) == 2


@pytest.mark.skipif(not hasattr(DefaultSavePlanner(), "_enable_plan_caching"), reason="torch caches no plans yet")
def test_plans_are_cached_as_torch_does() -> None:
    Cached: Any = type("Cached", (streamxf.SavePlanner,), {})  # whose name is the key
    state = {"x": torch.ones(3), "y": 1}
    found = [global_plan(Cached, [state], enable_plan_caching=True) for _ in range(2)]
    changed, metadata = global_plan(Cached, [{**state, "7": torch.ones(2)}], enable_plan_caching=True)
    assert [[item.index.fqn for item in plans[0].items] for plans, _ in found] == [["x", "y"]] * 2
    assert [item.index.fqn for item in changed[0].items] == ["x", "y", "7"]
    assert metadata.state_dict_metadata.keys() == {"x", "y", "7"}
    for key, is_sent in ("7", False), (7, True):  # of the same name, also where no save is under way
        (planner := Cached(enable_plan_caching=True)).set_up_planner({**state, key: torch.ones(2)}, None, True)
        assert planner.create_local_plan().usable == is_sent


@pytest.mark.skipif(not hasattr(DefaultSavePlanner(), "_enable_plan_caching"), reason="torch caches no plans yet")
def test_a_cached_plan_is_made_anew_where_dtypes_or_nesting_have_changed(tmp_path: Path) -> None:
    class Changing(streamxf.SavePlanner):
        pass

    flat, nested = {"a.b": torch.ones(2), "x": torch.ones(3)}, {"a": {"b": torch.ones(2)}, "x": torch.ones(3)}
    states: list[dict[Any, Any]] = [flat, flat, {**flat, "x": torch.ones(3).half()}, nested, nested]
    states += [{7: torch.ones(2), "x": torch.ones(3)}] * 2 + [{"7": torch.ones(2), "x": torch.ones(3)}]
    for number, state in enumerate(states):
        path, planner = tmp_path / str(number), Changing(enable_plan_caching=True)
        dcp.save(state, storage_writer=streamxf.FileSystemWriter(path), planner=planner, no_dist=True)
        found = streamxf.load_intact(path).state_dict
        assert_same(found, state)


@pytest.mark.skipif(not hasattr(DefaultSavePlanner(), "_enable_plan_caching"), reason="torch caches no plans yet")
def test_the_error_for_a_cached_plan_of_torch_names_the_cache(tmp_path: Path) -> None:
    class Keeping(DefaultSavePlanner):
        pass

    cases: list[dict[str, Any]] = [{"x": torch.ones(3)}, {"x": torch.ones(3).half()}]
    cases += [{"a.b": torch.ones(2)}, {"a": {"b": torch.ones(2)}}]
    for number, state in enumerate(cases):
        writer = streamxf.FileSystemWriter(tmp_path / str(number))
        with refused(UnsupportedError, "enable_plan_caching", "SavePlanner") if number % 2 else nullcontext():
            dcp.save(state, storage_writer=writer, planner=Keeping(enable_plan_caching=True), no_dist=True)


# -- results -------------------------------------------------------------------------------------------------------


def results(path: Path, state: dict[str, Any], planner: Any, **options: Any) -> tuple[Any, Any]:
    """What a rank reports, and what was planned."""
    writer: Any = streamxf.FileSystemWriter(path, sync_files=False, **options)
    planner.set_up_planner(state, writer.storage_meta(), True)
    writer.set_up_storage_writer(True, rank=0, use_collectives=True)
    plans, _ = planner.create_global_plan([sent(writer.prepare_local_plan(planner.create_local_plan()))])
    (plan,) = writer.prepare_global_plan(plans)
    plan = planner.finish_plan(sent(plan))
    found = writer.write_data(plan, planner).wait()
    writer.reset()
    return found, plan


STATE = {"b": torch.arange(6.0).reshape(2, 3), "a": {"text": "x"}, "c": torch.tensor(1), "d": torch.empty(0, 3)}


SIGNED = streamxf.Encrypt(streamxf.PrivateKey.generate().public, signer=streamxf.SigningKey.generate())


@pytest.mark.parametrize("planner", [streamxf.SavePlanner, DefaultSavePlanner])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("chain", ["zstd", "raw", [], [SIGNED]], ids=["zstd", "raw", "plain", "signed"])
def test_results_cross_as_columns_and_are_objects_where_somebody_looks(
    tmp_path: Path, planner: Any, threads: int, chain: Any
) -> None:
    own, plan = results(tmp_path, STATE, planner(), thread_count=threads, chain=chain)
    found = sent(own)
    assert isinstance(found, StoredResults)
    assert found[:] == own[:]
    items = {item.index: item for item in plan.items}
    assert {result.index for result in found} == items.keys()
    for result in found:
        (shard, _), data = result.storage_data, items[result.index].tensor_data
        assert shard[:2] == ((result.index.offset, data.chunk.sizes) if data else ((), ()))
        assert shard.place.size == result.size_in_bytes
        assert shard.framed == (data is not None and chain == [])
        assert (shard.place.number is None) == (shard.place.crcs is not None) == (chain in ("raw", []))
        assert (shard.place.digest is not None) == (chain == [SIGNED])
    records = [result.storage_data[1] for result in found if result.storage_data[1]]
    assert (threads, records, records) == (len(records), found.records, own.records)
    assert {record.path for record in records} == {result.storage_data[0].place.file for result in found}


def test_a_rank_that_writes_nothing_reports_nothing(tmp_path: Path) -> None:
    found, _ = results(tmp_path, {}, streamxf.SavePlanner())
    assert [*sent(found)] == found.records == []


# -- real ranks ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_gloo
@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks_save_what_torch_would_and_it_loads_however_it_is_cut(tmp_path: Path, count: int) -> None:
    scenarios = ["rows", "columns", "both", "hybrid"] if count == 4 else ["rows", "columns"]
    for report in run_ranks(count, tmp_path, *scenarios, module=planned_ranks.__name__):
        found = [*report.pop("rows").values(), *report.pop("hybrid", {}).values(), *report.values()]
        assert len(found) == (6 if count == 4 else 3)
        for each in found:
            assert each.pop("names") == 11
            assert [*each.values()] == [True] * 7, each


@pytest.mark.slow
@needs_gloo
def test_in_the_background_alone_and_when_ranks_contradict_each_other(tmp_path: Path) -> None:
    for report in run_ranks(2, tmp_path, "background", "contradiction", module=planned_ranks.__name__):
        assert report["background"] == {"thread": True, "process": True}
        message, alone = report["contradiction"]
        assert alone
        assert message == "key:x is an object on one rank, and torch.float32 (3,) on another"
