"""`LoadPlanner` plans what DCP's planner plans, and makes no list of all chunks for it."""

import itertools
import math
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import streamxf
from streamxf import torch_private
from streamxf.checkpoint import metadata as stored
from streamxf.checkpoint.opening import ItemPart
from streamxf.dcp import targets
from streamxf.dcp.columns import ReadItems
from streamxf.dcp.metadata import StoredMetadata
from streamxf.dcp.reader import NOTES
from streamxf.dcp.targets import check_filled, check_placed
from streamxf.errors import MetadataError, UnsupportedError
from streamxf.format.index import File, Index
from streamxf.format.items import Chunk, Item, ObjectItem, Place, TensorItem
from streamxf.format.sections import Trailer
from streamxf.format.table import ItemTable
from tests.altered import flipped
from tests.failing import fails_with

from . import shards
from .helpers import KEY, assert_same, blank, full_chain, load_into, refused, save, unwrapped

Box = tuple[tuple[int, ...], tuple[int, ...]]
PLACE = Place("__0_0_00.distcp", 0, 1, ())


def content_of(items: Sequence[Item]) -> StoredMetadata:
    return StoredMetadata.of(stored.Metadata(".metadata", None, {item.name: item for item in items}, None))


def tensor(name: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> TensorItem:
    return TensorItem(name, "float32", shape, tuple(Chunk(*box, PLACE, False) for box in boxes))


def planned(planner: Any, state: dict[str, Any], content: StoredMetadata) -> LoadPlan:
    planner.set_up_planner(state, content, False)
    plan: LoadPlan = planner.create_local_plan()
    assert planner.metadata is content
    return plan


def requests(plan: LoadPlan) -> set[Any]:
    """What a plan asks for, with the hints that two indexes are equal without."""
    found = {(item, item.storage_index.index, item.dest_index.index) for item in plan.items}
    assert len(found) == len(plan.items)
    return found


def assert_planned_alike(state: dict[str, Any], items: Sequence[Item], **options: Any) -> set[Any]:
    content = content_of(items)
    found = requests(planned(streamxf.LoadPlanner(**options), state, content))
    assert not any("chunks" in vars(entry) for entry in content.state_dict_metadata.values()), "it made all chunks"
    assert found == requests(planned(DefaultLoadPlanner(**options), state, content_of(items)))
    return found


# -- any boxes ---------------------------------------------------------------------------------------------


class Boxes(torch.Tensor):
    """A tensor of which this rank has some boxes, which may overlap; DCP asks it for them."""

    boxes: Sequence[Box]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(at), torch.Size(shape)) for at, shape in self.boxes]


def tensor_of(shape: tuple[int, ...], boxes: Sequence[Box]) -> Boxes:
    made = torch.empty(shape).as_subclass(Boxes)
    made.boxes = boxes
    return made


@st.composite
def cuts(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    """A dimension in pieces, of which some may be empty."""
    ends = sorted(draw(st.lists(st.integers(0, size), max_size=4)))
    return [(begin, end - begin) for begin, end in itertools.pairwise([0, *ends, size])]


@st.composite
def grids(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    pieces = [draw(cuts(size)) for size in shape]
    boxes: dict[tuple[int, ...], Box] = {}
    for spans in itertools.product(*pieces):
        box = tuple(at for at, _ in spans), tuple(size for _, size in spans)
        if box[0] not in boxes or 0 in boxes[box[0]][1]:  # a checkpoint has no two chunks of one offset
            boxes[box[0]] = box
    return draw(st.permutations([*boxes.values()]))


@st.composite
def some_boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Any boxes: overlapping ones, equal ones, and some without elements."""
    boxes = []
    for _ in range(draw(st.integers(0, 4))):
        begin = tuple(draw(st.integers(0, size)) for size in shape)
        boxes.append((begin, tuple(draw(st.integers(0, size - at)) for size, at in zip(shape, begin, strict=True))))
    return list(dict.fromkeys(boxes))


@st.composite
def shardings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box], list[Box]]:
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    return shape, draw(grids(shape)), draw(st.one_of(some_boxes(shape), grids(shape)))


@given(shardings=st.lists(shardings(), min_size=1, max_size=3))
def test_any_boxes_of_any_tiling(shardings: list[tuple[tuple[int, ...], list[Box], list[Box]]]) -> None:
    items = [tensor(str(number), shape, grid) for number, (shape, grid, _) in enumerate(shardings)]
    state = {str(number): tensor_of(shape, boxes) for number, (shape, _, boxes) in enumerate(shardings)}
    assert_planned_alike(state, items)


PATH = f"__0_0_{'0' * 32}.distcp"


def in_parts(items: Sequence[TensorItem], rows: int) -> StoredMetadata:
    """The same as they are read from a large index, with parts of a few rows."""
    numbers, chain = itertools.count(), ("streamxf.lz4/1?level=0",)
    made = {}
    for item in items:
        chunks = [Chunk(*box[:2], Place(PATH, 0, 1, chain, None, next(numbers)), False) for box in item.chunks]
        made[item.name] = replace(item, chunks=chunks)
    index = Index("ab" * 16, None, (), (chain,), {PATH: File(1, bytes(16))}, made)
    with patch("streamxf.format.index._ROWS", rows), patch("streamxf.format.index._SMALL", 0):
        root, parts = index.pack()
        read = Index.parse(memoryview(root), lambda at, size: parts[at : at + size], len(parts))
    assert isinstance(read.items, ItemTable)
    return StoredMetadata.of(stored.Metadata(".metadata", None, read.items, read))


@given(shardings=st.lists(shardings(), min_size=1, max_size=3), rows=st.integers(1, 9))
def test_any_boxes_of_a_large_index(shardings: list[tuple[tuple[int, ...], list[Box], list[Box]]], rows: int) -> None:
    items = [tensor(str(number), shape, grid) for number, (shape, grid, _) in enumerate(shardings)]
    state = {str(number): tensor_of(shape, boxes) for number, (shape, _, boxes) in enumerate(shardings)}
    found = requests(planned(streamxf.LoadPlanner(), state, in_parts(items, rows)))
    content = in_parts(items, rows)
    assert found == requests(planned(DefaultLoadPlanner(), state, content))
    for item in items:
        chunks = content.state_dict_metadata[item.name].chunks
        assert sorted((*chunk.offsets, *chunk.sizes) for chunk in chunks) == sorted(
            (*chunk.offset, *chunk.shape) for chunk in item.chunks
        )


def test_of_a_large_index_few_parts_are_read() -> None:
    boxes = [((row, 0), (1, 6)) for row in range(512)]
    content = in_parts([tensor("a", (512, 6), boxes), tensor("b", (512, 6), boxes)], 32)
    table = content._found.items
    assert isinstance(table, ItemTable)
    state = {name: tensor_of((512, 6), [((300, 0), (3, 6))]) for name in "ab"}
    plan = planned(streamxf.LoadPlanner(), state, content)
    assert {item.storage_index.index for item in plan.items} == {300, 301, 302}
    assert len(table.parts._known) <= 3
    assert not planned(streamxf.LoadPlanner(), {"b": tensor_of((512, 6), [((512, 0), (0, 6))])}, content).items
    assert len(table.parts._known) <= 3


def test_of_each_band_only_the_part_with_the_shards_of_a_rank_is_read() -> None:
    boxes = [((row, 0), (1, 6)) for row in range(512)]
    names = "abcd"
    with patch("streamxf.format.index._ITEMS", 1):
        content = in_parts([tensor(name, (512, 6), boxes) for name in names], 32)
    table = content._found.items
    assert isinstance(table, ItemTable)
    planned(streamxf.LoadPlanner(), {name: tensor_of((512, 6), [((300, 0), (3, 6))]) for name in names}, content)
    assert set(table.parts._known) == {(0, 0), *((band, 300 // 32) for band in range(4))}
    assert content.state_dict_metadata["c"].properties.dtype == torch.float32
    assert (2, 0) in table.parts._known


def test_a_load_reads_of_each_band_what_its_rank_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the reader's first request to its last, whatever part of the planner or the reader asks for names."""
    monkeypatch.setattr("streamxf.format.index._SMALL", 0)
    monkeypatch.setattr("streamxf.format.index._ITEMS", 1)
    monkeypatch.setattr("streamxf.format.index._ROWS", 4)
    whole = {name: torch.randn(64, 5) for name in "abcd"}
    shards.save_shards(
        tmp_path, [{name: shards.rows(value, rank, 32) for name, value in whole.items()} for rank in range(32)]
    )
    reader: Any = streamxf.FileSystemReader(tmp_path)
    planner = streamxf.LoadPlanner()
    with as_rank(5, 8):
        mesh = init_device_mesh("cpu", (8,))
        state = {name: distribute_tensor(torch.zeros(64, 5), mesh, [Shard(0)], src_data_rank=None) for name in whole}
        content = reader.read_metadata()
        planner.set_up_planner(state, content, False)
        reader.set_up_storage_reader(content, False)
        plan = reader.prepare_local_plan(planner.create_local_plan())
        reader.read_data(planner.finish_plan(plan), planner).wait()
        for name, value in whole.items():
            assert torch.equal(state[name].to_local(), value[40:48])
    assert set(content._found.items.parts._known) == {(0, 0), *((band, 5) for band in range(4))}


@pytest.mark.parametrize("planner", [streamxf.LoadPlanner, DefaultLoadPlanner])
def test_a_part_that_is_damaged_is_told_as_other_metadata_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planner: Any
) -> None:
    monkeypatch.setattr("streamxf.format.index._SMALL", 0)
    monkeypatch.setattr("streamxf.format.index._ITEMS", 1)
    folder = tmp_path / "run" / "step-1"
    (tmp_path / "run" / NOTES).mkdir(parents=True)
    save({"a": torch.zeros(8, 2), "b": torch.ones(8, 2)}, folder, full_chain())
    file = folder / ".metadata"
    data = file.read_bytes()
    trailer = Trailer.parse(data, len(data))
    assert trailer is not None
    last = len(data) - trailer.size - 1  # byte of the last part
    file.write_bytes(flipped(data, last))
    with pytest.raises(CheckpointException) as caught:
        dcp.load(
            {"b": torch.zeros(8, 2)}, storage_reader=streamxf.FileSystemReader(folder, keys=KEY), planner=planner()
        )
    error = unwrapped(caught.value)
    assert isinstance(error, MetadataError)
    assert error.file == str(file)
    (told,) = error.__notes__
    assert told.startswith("next: restore this file")
    assert [note.name[:7] for note in (tmp_path / "run" / NOTES).iterdir()] == ["damage-"]


class StoreError(ConnectionError):
    """Cannot be pickled and read again, so that it would leave the other ranks waiting."""

    def __init__(self, answer: str, status: int) -> None:
        super().__init__(f"{answer} {status}")


@pytest.mark.parametrize("planner", [streamxf.LoadPlanner, DefaultLoadPlanner])
def test_an_error_of_a_storage_reaches_all_ranks_while_a_planner_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planner: Any
) -> None:
    monkeypatch.setattr("streamxf.format.index._SMALL", 0)
    save({"a": torch.zeros(8, 2)}, tmp_path)
    reader: Any = streamxf.FileSystemReader(tmp_path, keys=KEY)
    content = reader.read_metadata()
    content._found.items.parts._read = fails_with(StoreError, "the store answered", 503)
    with pytest.raises(ConnectionError) as caught:
        planned(planner(), {"a": torch.zeros(8, 2)}, content)
    arrived = pickle.loads(pickle.dumps(caught.value))
    assert "StoreError: the store answered 503" in str(arrived)
    assert caught.value.__notes__ == [f"while {str(tmp_path / '.metadata')!r} was read"]


def test_a_dtype_that_this_torch_lacks_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"a": torch.zeros(8, 2)}, tmp_path / "step-1")
    (tmp_path / NOTES).mkdir()
    monkeypatch.delattr(torch, "float32")
    for small in (0, 2**20):
        monkeypatch.setattr("streamxf.format.index._SMALL", small)
        content = streamxf.FileSystemReader(tmp_path / "step-1", keys=KEY).read_metadata()
        with pytest.raises(UnsupportedError, match="has no dtype float32") as caught:
            _ = content.state_dict_metadata["a"].properties
        assert caught.value.item == "a"
    assert not [*(tmp_path / NOTES).iterdir()]


def test_what_is_wanted_is_compared_without_a_look_at_other_chunks() -> None:
    boxes = [((row, 0), (1, 6)) for row in range(512)]
    with patch("streamxf.format.index._ITEMS", 1):
        table = in_parts([tensor(name, (512, 6), boxes) for name in "ab"], 32)._found.items
    assert isinstance(table, ItemTable)
    one, two = (ItemPart(item, item.chunks[300]) for item in (table["a"], table["a"]) if isinstance(item, TensorItem))
    assert one == two
    item = two.item
    assert isinstance(item, TensorItem)
    assert two.chunk is not None
    assert one != ItemPart(item, item.chunks[301])
    for other in ({"name": "b"}, {"dtype": "int32"}, {"shape": (513, 6)}):
        assert one != ItemPart(replace(TensorItem("a", "float32", (512, 6), ()), **other), two.chunk)
    assert set(table.parts._known) == {(0, 0), (0, 300 // 32)}


def test_tensors_with_holes_are_refused() -> None:
    holes = {"hole": [((0, 0), (4, 6)), ((8, 0), (8, 6))], "twice": [((0, 0), (9, 6)), ((8, 0), (8, 6))]}
    for boxes in holes.values():
        for planner in (streamxf.LoadPlanner(), DefaultLoadPlanner()):
            with pytest.raises(MetadataError, match="leave out a part of it, or cover one twice"):
                planned(
                    planner, {"a": tensor_of((16, 6), [((0, 0), (16, 6))])}, in_parts([tensor("a", (16, 6), boxes)], 1)
                )


# -- DTensors ----------------------------------------------------------------------------------------------


@contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


ROWS = [((at, 0), (4, 6)) for at in range(0, 16, 4)]  # as four ranks saved a tensor of 16 x 6
BLOCKS = [((at, to), (8, 2)) for at in (0, 8) for to in (0, 2, 4)]  # as 2 x 3 did
MESHES = {
    "rows": ((3,), [Shard(0)]),
    "more ranks than rows": ((20,), [Shard(0)]),
    "columns": ((4,), [Shard(1)]),
    "whole": ((2,), [Replicate()]),
    "2-D": ((2, 3), [Shard(0), Shard(1)]),
    "2-D, one dimension": ((2, 3), [Shard(0), Shard(0)]),
    "HSDP": ((2, 4), [Replicate(), Shard(0)]),
}


@pytest.mark.parametrize("name", MESHES)
def test_where_a_shard_begins_is_found_as_torch_finds_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By arithmetic, for shapes that no mesh divides, and shards without elements."""
    monkeypatch.setattr(targets, "_MANY", 0)
    mesh_shape, placements = MESHES[name]
    ranks = math.prod(mesh_shape)
    for rank in range(ranks):
        with as_rank(rank, ranks):
            mesh = init_device_mesh("cpu", mesh_shape)
            for shape in (16, 6), (7, 5), (3, 3), (1, 1), (0, 4), (41, 2):
                value = distribute_tensor(torch.empty(shape), mesh, placements, src_data_rank=None)
                (found,), (wanted,) = targets.chunks_here(value), torch_private.create_chunk_list(value)
                assert found == wanted
                assert value.to_local().shape == wanted.sizes


def test_a_large_shard_takes_no_integer_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, arange = 2**20, torch.arange

    def counted(*args: Any, **options: Any) -> torch.Tensor:
        made = arange(*args, **options)
        assert made.numel() < rows
        return made

    with as_rank(1, 2):
        mesh = init_device_mesh("cpu", (2,))
        local = torch.empty(rows, dtype=torch.uint8)
        state = {"a": DTensor.from_local(local, mesh, [Shard(0)]), "b": torch.empty(3)}
        content = [tensor("a", (2 * rows,), [((0,), (2 * rows,))]), tensor("b", (3,), [((0,), (3,))])]
        wanted = requests(planned(DefaultLoadPlanner(), state, content_of(content)))
        monkeypatch.setattr(torch, "arange", counted)
        planner = streamxf.LoadPlanner()
        assert requests(planned(planner, state, content_of(content))) == wanted
        assert planner.state_dict == state
        check_filled(planned(planner, state, content_of(content)), planner, {item.name: item for item in content})
        check_placed(planned(planner, state, content_of(content)), planner, {item.name: item for item in content})
        monkeypatch.undo()
        plans = []
        for planner in DefaultSavePlanner(), streamxf.SavePlanner():
            planner.set_up_planner(state, is_coordinator=True)
            plans.append(planner.create_local_plan())
            assert planner.state_dict == state
            monkeypatch.setattr(torch, "arange", counted)
        assert [*plans[0].items] == [*plans[1].items]
        assert plans[0].planner_data == plans[1].planner_data


@pytest.mark.parametrize("name", MESHES)
def test_dtensors_on_any_rank(name: str) -> None:
    mesh_shape, placements = MESHES[name]
    ranks = mesh_shape[0] * (mesh_shape[1] if len(mesh_shape) > 1 else 1)
    items = [tensor("a", (16, 6), ROWS), tensor("b", (16, 6), BLOCKS), ObjectItem("n", PLACE)]
    counts = []
    for rank in range(ranks):
        with as_rank(rank, ranks):
            mesh = init_device_mesh("cpu", mesh_shape)
            state: dict[str, Any] = {
                name: distribute_tensor(torch.empty(16, 6), mesh, placements, src_data_rank=None) for name in "ab"
            }
            found = assert_planned_alike(state | {"n": 1}, items)
            counts.append(len(found))
    assert max(counts) > 1
    if name != "whole":
        assert min(counts) < len(ROWS) + len(BLOCKS) + 1, "no rank needed less than everything"


def test_a_mesh_that_a_rank_is_not_in() -> None:
    with as_rank(3, 4):
        mesh = init_device_mesh("cpu", (4,))
        part = dist.device_mesh.DeviceMesh("cpu", [0, 1])
        state = {"a": DTensor.from_local(torch.empty(0, 6), part, [Shard(0)], run_check=False)}
        with_other = {"b": distribute_tensor(torch.empty(16, 6), mesh, [Shard(0)], src_data_rank=None)}
        items = [tensor("a", (0, 6), [((0, 0), (0, 6))]), tensor("b", (16, 6), ROWS)]
        assert_planned_alike(state | with_other, items)


# -- everything else that the planner does -----------------------------------------------------------------

NESTED = {"model": {"w": torch.zeros(16, 6)}, "n": 3}
ITEMS = [tensor("model.w", (16, 6), ROWS), ObjectItem("n", PLACE)]


def test_options_and_errors_are_torchs() -> None:
    assert len(assert_planned_alike(NESTED, ITEMS)) == len(ROWS) + 1
    assert_planned_alike({"model.w": torch.zeros(16, 6)}, ITEMS, flatten_state_dict=False)
    assert_planned_alike(NESTED, ITEMS, flatten_sharded_tensors=False)
    more = NESTED | {"more": torch.zeros(2)}
    assert len(assert_planned_alike(more, ITEMS, allow_partial_load=True)) == len(ROWS) + 1
    wrong = {
        "more": more,
        "size": {"model": {"w": torch.zeros(16, 7)}},
        "dimensions": {"model": {"w": torch.zeros(96)}},
        "kind": {"model": {"w": 3}},
    }
    for state in wrong.values():
        errors = []
        for planner in (streamxf.LoadPlanner(), DefaultLoadPlanner()):
            with pytest.raises((RuntimeError, ValueError)) as caught:
                planned(planner, dict(state), content_of(ITEMS))
            errors.append((type(caught.value), str(caught.value).replace("LazyTensor", "TensorStorageMetadata")))
        assert errors[0] == errors[1]


def test_names_of_torch_2_3() -> None:
    """Flattened lists had other names then, which torch's planner tries if it misses some."""
    state = {"layers": [{"w": torch.zeros(16, 6)}]}
    items = [tensor("layers.0.w", (16, 6), ROWS), tensor("other", (2,), [((0,), (2,))])]
    assert len(assert_planned_alike(state, items)) == len(ROWS)


def test_what_somebody_changed_counts() -> None:
    """A planner of one's own may take chunks out, or put other entries in."""
    content, stock = content_of(ITEMS), content_of(ITEMS)
    for each in (content, stock):
        each.state_dict_metadata["model.w"].chunks.pop()
    found = requests(planned(streamxf.LoadPlanner(), NESTED, content))
    assert found == requests(planned(DefaultLoadPlanner(), NESTED, stock))
    assert len(found) == len(ROWS)
    content, stock = content_of(ITEMS), content_of(ITEMS)
    for each in (content, stock):
        entries = each.state_dict_metadata
        each.state_dict_metadata = {f"v2.{name}": entry for name, entry in entries.items()}
    found = requests(planned(streamxf.LoadPlanner(), {"v2": NESTED}, content))
    assert found == requests(planned(DefaultLoadPlanner(), {"v2": NESTED}, stock))
    assert len(found) == len(ROWS) + 1


def test_a_plan_that_fails_leaves_the_metadata(tmp_path: Path) -> None:
    planner, content = streamxf.LoadPlanner(), content_of(ITEMS)
    with pytest.raises(RuntimeError, match="Missing key"):
        planned(planner, NESTED | {"more": torch.zeros(2)}, content)
    assert planner.metadata is content


@pytest.mark.usefixtures("size_of_index")
@pytest.mark.parametrize("reader", ["streamxf", "stock"])
def test_it_loads(tmp_path: Path, reader: str) -> None:
    state = {"w": torch.randn(40, 3), "scalar": torch.tensor(2.5), "n": {"m": [1, 2]}, "empty": torch.empty(0, 3)}
    save(state, tmp_path, [] if reader == "stock" else full_chain())
    found = blank(state)
    how: Any = dcp.FileSystemReader(tmp_path) if reader == "stock" else streamxf.FileSystemReader(tmp_path, keys=KEY)
    dcp.load(found, storage_reader=how, planner=streamxf.LoadPlanner())
    assert_same(found, state)


@pytest.mark.usefixtures("size_of_index")
def test_shards_load_whole_and_only_what_is_needed_is_read(tmp_path: Path) -> None:
    whole = torch.randn(64, 5)
    shards.save_shards(tmp_path, [{"w": shards.rows(whole, rank, 8)} for rank in range(8)])
    found = load_into({"w": torch.zeros(64, 5)}, streamxf.FileSystemReader(tmp_path), planner=streamxf.LoadPlanner())
    assert torch.equal(found["w"], whole)
    with as_rank(1, 4):
        mesh = init_device_mesh("cpu", (4,))
        state = {"w": distribute_tensor(torch.zeros(64, 5), mesh, [Shard(0)], src_data_rank=None)}
        reader: Any = streamxf.FileSystemReader(tmp_path)
        content, planner = reader.read_metadata(), streamxf.LoadPlanner()
        plan = planned(planner, state, content)
        reader.set_up_storage_reader(content, True)
        reader.read_data(plan, planner).wait()
        assert {item.storage_index.index for item in plan.items} == {2, 3}
        assert torch.equal(state["w"].to_local(), whole[16:32])
        assert "chunks" not in vars(content.state_dict_metadata["w"])


# -- from rank to rank ---------------------------------------------------------------------------------------------


def test_what_a_rank_reads_is_sent_as_it_is() -> None:
    """Of other ranks nobody makes the objects, which for very many ranks take minutes and gigabytes."""
    plan = planned(streamxf.LoadPlanner(), {"x": torch.ones(3)}, content_of([tensor("x", (3,), [((0,), (3,))])]))
    again = pickle.loads(pickle.dumps(plan))
    further = pickle.loads(pickle.dumps(again))
    assert "_items" not in vars(again.items)
    for found in (plan, again, further):
        assert len(found.items) == 1
        assert [*found.items] == [found.items[0]] == [plan.items[0]]
    assert [*pickle.loads(pickle.dumps(ReadItems([])))] == []


def test_a_request_that_was_changed_is_sent_as_it_was_changed() -> None:
    plan = planned(streamxf.LoadPlanner(), {"x": torch.ones(3)}, content_of([tensor("x", (3,), [((0,), (3,))])]))
    arrived = pickle.loads(pickle.dumps(plan))
    object.__setattr__(arrived.items[0], "lengths", torch.Size([2]))
    assert pickle.loads(pickle.dumps(arrived)).items[0].lengths == torch.Size([2])


@pytest.mark.parametrize("planner", [DefaultLoadPlanner, streamxf.LoadPlanner])
def test_a_load_that_fails_leaves_nothing_to_the_next(tmp_path: Path, planner: Any) -> None:
    """Torch's planner flattens a state as torch before 2.4 did, and if that fails, the process goes on so (2.13.0)."""
    good = {"m": {"x": 1, 3: 2, "l": [3, {"q": 4}]}, "t": torch.ones(1)}
    bad = {"a.b": {"x": 1}, "a": {"t": torch.ones(1), "b": {"y": 1}}}  # with these names it has a.b twice
    save(good, tmp_path / "good", [])
    save({**bad, "more": 1}, tmp_path / "bad", [])
    with refused(ValueError, "duplicated flatten key a.b"):
        dcp.load(blank(bad), storage_reader=streamxf.FileSystemReader(tmp_path / "bad"), planner=planner())
    left = torch_private.flattening
    assert left._derived_version == (None if planner is streamxf.LoadPlanner else "2_3")
    left._derived_version = "2_3"
    found = load_into(blank(good), streamxf.FileSystemReader(tmp_path / "good"), planner=planner())
    assert_same(found, good)
    left._derived_version = "2_3"
    found = blank(good)
    assert not streamxf.load_intact(tmp_path / "good", found).missing
    assert_same(found, good)
    left._derived_version = "2_3"
    save(good, tmp_path / "again", [])
    assert set(streamxf.Checkpoint(tmp_path / "again")) == set(streamxf.Checkpoint(tmp_path / "good"))
    assert left._derived_version is None
