"""T2: nothing in metadata has another type, or another value, than DCP gives it; and what is there is all of it."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from streamxf.dcp.metadata.limits import MAX_DEPTH, MAX_DESCRIPTORS, MAX_LIST, MAX_NAME, MAX_NDIM
from streamxf.dcp.metadata.unpickle import load_metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from streamxf.dcp.metadata import file as metadata_file
from streamxf.errors import MetadataError, UnsupportedError
from streamxf.keys import KeyRing

from .helpers import load, refused, save

SIZE = torch.Size([4, 3])
ZERO = torch.Size([0, 0])


def content(**changes: Any) -> Metadata:
    """Metadata of a tensor and an object, with some of it changed."""
    chunk = made(ChunkStorageMetadata, {"offsets": ZERO, "sizes": SIZE}, changes.get("chunk"))
    values = {"properties": TensorProperties(), "size": SIZE, "chunks": [chunk]}
    tensor = made(TensorStorageMetadata, values, changes.get("tensor"))
    index = made(MetadataIndex, {"fqn": "w", "offset": ZERO, "index": 0}, changes.get("index"))
    place = made(_StorageInfo, {"relative_path": "a", "offset": 0, "length": 9}, changes.get("place"))
    meta = made(StorageMeta, vars(StorageMeta("x")), changes.get("meta"))
    values = {
        "state_dict_metadata": {"w": tensor, "o": BytesStorageMetadata()},
        "planner_data": {"w": ("w",), "o": ("o",)},
        "storage_data": {MetadataIndex("o"): _StorageInfo("a", 9, 9), index: place},
        "storage_meta": meta,
        "version": "1.0.0",
    }
    return made(Metadata, values, changes.get("metadata"))


def made(cls: type, values: dict[str, Any], changes: dict[str, Any] | None) -> Any:
    """An instance with any attributes; what is `LEFT_OUT` is not among them."""
    instance = object.__new__(cls)
    kept = {name: value for name, value in {**values, **(changes or {})}.items() if value is not LEFT_OUT}
    vars(instance).update(kept)
    return instance


LEFT_OUT = object()


def read(value: Any) -> Metadata:
    return metadata_file.load(pickle.dumps(value), KeyRing())


def test_what_is_changed_here_passes_unchanged() -> None:
    assert read(content()) == content()


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


LONG = "x" * (MAX_NAME + 1)
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("index", {"fqn": 7}),
    ("index", {"fqn": b"w"}),
    ("index", {"fqn": None}),
    ("index", {"fqn": LONG}),
    ("index", {"offset": (0, 0)}),
    ("index", {"offset": "00"}),
    ("index", {"index": "0"}),
    ("index", {"index": True}),
    ("chunk", {"offsets": (0, 0)}),
    ("chunk", {"offsets": [0, 0]}),
    ("chunk", {"sizes": None}),
    ("chunk", {"sizes": LEFT_OUT}),
    ("chunk", {"sizes": torch.Size([12])}),
    ("tensor", {"properties": {}}),
    ("tensor", {"properties": None}),
    ("tensor", {"properties": LEFT_OUT}),
    ("tensor", {"size": (4, 3)}),
    ("tensor", {"size": torch.Size([2**32, 2**32])}),
    ("tensor", {"size": torch.Size([0, 2**40, 2**40])}),
    ("tensor", {"chunks": ()}),
    ("tensor", {"chunks": {}}),
    ("tensor", {"chunks": [SIZE]}),
    ("tensor", {"chunks": ["chunk"]}),
    ("tensor", {"chunks": [BytesStorageMetadata()]}),
    ("tensor", {"chunks": [object.__new__(ChunkStorageMetadata)]}),
    ("place", {"relative_path": 7}),
    ("place", {"relative_path": LEFT_OUT}),
    ("place", {"relative_path": LONG}),
    ("place", {"offset": -1}),
    ("place", {"offset": 2**63}),
    ("place", {"offset": 0.0}),
    ("place", {"length": None}),
    ("place", {"length": False}),
    ("place", {"transform_descriptors": "zstd/1"}),
    ("place", {"transform_descriptors": [7]}),
    ("place", {"transform_descriptors": {"a": 1}}),
    ("place", {"transform_descriptors": ["x/1"] * (MAX_DESCRIPTORS + 1)}),
    ("place", {"transform_descriptors": ["x" * 40_000]}),
    ("meta", {"checkpoint_id": 7}),
    ("meta", {"save_id": b"x"}),
    ("meta", {"load_id": LONG}),
    ("meta", {"modules": "torch"}),
    ("meta", {"modules": [7]}),
    ("metadata", {"state_dict_metadata": []}),
    ("metadata", {"state_dict_metadata": LEFT_OUT}),
    ("metadata", {"state_dict_metadata": {7: BytesStorageMetadata()}}),
    ("metadata", {"state_dict_metadata": {"w": "tensor"}}),
    ("metadata", {"state_dict_metadata": {"w": object.__new__(TensorStorageMetadata)}}),
    ("metadata", {"state_dict_metadata": {LONG: BytesStorageMetadata()}}),
    ("metadata", {"storage_data": []}),
    ("metadata", {"storage_data": {"w": _StorageInfo("a", 0, 9)}}),
    ("metadata", {"storage_data": {MetadataIndex("o"): "a"}}),
    ("metadata", {"storage_data": {MetadataIndex("o"): object.__new__(_StorageInfo)}}),
    ("metadata", {"storage_data": {("o", None): 1}}),
    ("metadata", {"storage_meta": {}}),
    ("metadata", {"version": 1}),
    ("metadata", {"planner_data": {(1, 2): 3}}),
    ("metadata", {"planner_data": Metadata({})}),
    ("metadata", {"planner_data": [StorageMeta()]}),
    ("metadata", {"planner_data": nested(MAX_DEPTH + 1)}),
    ("metadata", {"planner_data": {"w": ("w",) * 300}}),
    ("metadata", {"planner_data": {"w": ()}}),
    ("metadata", {"planner_data": {"w": ["w", 3]}}),
    ("metadata", {"planner_data": {"w": ("w", 3.0)}}),
    ("metadata", {"planner_data": {"w": ("w", 3, None)}}),
    ("metadata", {"planner_data": {"w": ("x" * 60_000, "x" * 60_000)}}),
    ("metadata", {"planner_data": OrderedDict({"w": ("w", MAX_LIST)})}),
    ("metadata", {"planner_data": {"extra": (TWICE := ["w", 3]), "w": TWICE}}),
    ("tensor", {"chunks": [ChunkStorageMetadata(ZERO, SIZE)] * 2}),
    ("metadata", {"planner_data": {"w": ("w", MAX_LIST)}}),
    ("metadata", {"planner_data": {"w": ("w", -1)}}),
    ("metadata", {"planner_data": {str(number): (str(number), MAX_LIST - 1) for number in range(3)}}),
    ("metadata", {"planner_data": {1, 2}}),
    ("metadata", {"planner_data": 2**80}),
]


@pytest.mark.parametrize(
    ("part", "changes"), WRONG, ids=lambda value: value if isinstance(value, str) else "".join(value)
)
def test_wrong_types_and_values_are_refused(part: str, changes: dict[str, Any]) -> None:
    with pytest.raises(MetadataError):
        read(content(**{part: changes}))


@pytest.mark.parametrize(
    "state",
    [
        (),
        None,
        {},
        (torch.float32,),
        ("float32", torch.strided, False, 0, False),
        (torch.float32, "strided", False, 0, False),
        (torch.float32, torch.strided, 0, 0, False),
        (torch.float32, torch.strided, False, 0, False),
    ],
)
def test_properties_of_the_wrong_types_are_refused(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorProperties, "__getstate__", lambda _: state)
    with pytest.raises(MetadataError):
        read(content())


def test_what_newer_versions_append_to_properties_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    state = TensorProperties().__getstate__()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(TensorProperties, "__getstate__", lambda _: (*state, (3, 1)))
    assert read(content()) == content()


def test_unknown_attributes_that_are_plain_data_are_kept() -> None:
    extra = {"strides": (3, 1), "note": {"a": [1.5, None, True, "x"]}}
    for part in ("chunk", "tensor", "index", "place", "meta", "metadata"):
        found = read(content(**{part: extra}))
        assert found == content()
        holder: dict[str, Callable[[Metadata], Any]] = {
            "chunk": lambda m: m.state_dict_metadata["w"].chunks[0],
            "tensor": lambda m: m.state_dict_metadata["w"],
            "index": lambda m: list(m.storage_data)[1],
            "place": lambda m: m.storage_data[MetadataIndex("w", ZERO)],
            "meta": lambda m: m.storage_meta,
            "metadata": lambda m: m,
        }
        assert {name: vars(holder[part](found))[name] for name in extra} == extra


@pytest.mark.parametrize(
    "extra",
    [
        {"__class__": "x"},
        {"_private": 1},
        {"__setstate__": 1},
        {"no identifier": 1},
        {7: 1},
        {"list": [nested(MAX_DEPTH)]},
        {"object": Metadata({})},
        {"index": MetadataIndex("x")},
    ],
    ids=repr,
)
@pytest.mark.parametrize("part", ["chunk", "tensor", "place", "meta", "metadata"])
def test_unknown_attributes_that_are_more_are_refused(part: str, extra: dict[Any, Any]) -> None:
    with pytest.raises(MetadataError):
        read(content(**{part: extra}))


def test_attributes_do_not_hide_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(content(tensor={"method": 1}))
    load_metadata(memoryview(pickled))
    monkeypatch.setattr(TensorStorageMetadata, "method", lambda self: self, raising=False)
    with pytest.raises(MetadataError, match="sets 'method' on a TensorStorageMetadata"):
        load_metadata(memoryview(pickled))


def test_data_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    table: dict[str, Any] = {}
    table["table"] = [table]
    for value in (loop, table):
        with pytest.raises(MetadataError, match="deeper"):
            read(content(metadata={"planner_data": value}))


def test_an_instance_is_filled_in_once() -> None:
    pickled = pickle.dumps(content(), 2)
    assert pickled.endswith(b"ub.")
    with pytest.raises(MetadataError, match="fills in a Metadata twice"):
        load_metadata(memoryview(pickled[:-1] + b"}b."))


@pytest.mark.parametrize("value", [-(2**64), 2**64 - 1])
def test_numbers_have_64_bits_and_a_sign(value: int) -> None:
    assert read(content(metadata={"planner_data": value})).planner_data == value
    with pytest.raises(MetadataError, match="more than 64 bits"):
        read(content(metadata={"planner_data": value + (1 if value > 0 else -1)}))


def test_a_tensor_under_many_names_is_charged_for_each() -> None:
    """Its chunks are looked at for each name, so they are paid for each name."""
    one = torch.Size([1])
    chunks = [ChunkStorageMetadata(torch.Size([at]), one) for at in range(1000)]
    tensor = TensorStorageMetadata(TensorProperties(), torch.Size([1000]), chunks)
    with pytest.raises(MetadataError, match="far more memory than its size explains"):
        read(Metadata({str(name): tensor for name in range(1000)}, None, {}))


def test_a_key_without_a_name_is_refused() -> None:
    named = f"c{MetadataIndex.__module__}\nMetadataIndex\n".encode()
    with pytest.raises(MetadataError, match="an item has no name"):
        load_metadata(memoryview(b"\x80\x02}" + named + b")\x81Ns."))


def test_dimensions_have_a_limit() -> None:
    ones = torch.Size([1] * (MAX_NDIM + 1))
    with pytest.raises(MetadataError, match="shape"):
        read(content(tensor={"size": ones}))


# -- whole items ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stock", [True, False])
def test_a_missing_chunk_is_refused_not_skipped(tmp_path: Path, stock: bool) -> None:
    """DCP copies what chunks there are, and would leave the rest of the target as it was."""
    state = {"w": torch.arange(12.0).reshape(4, 3)}
    if stock:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path))
    else:
        save(state, tmp_path, [])
    file = tmp_path / ".metadata"

    def shorten(found: Any) -> None:
        found.state_dict_metadata["w"].chunks[0].sizes = torch.Size([3, 3])

    rewrite(file, shorten)
    with refused(MetadataError, "leave out a part", "item w"):
        load(state, tmp_path, None)


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([((0, 0), (4, 3)), ((0, 0), (4, 3))], "twice"),
        ([((0, 0), (2, 3))], "leave out"),
        ([((0, 0), (2, 3)), ((1, 0), (3, 3))], "twice"),
        ([((0, 0), (5, 3))], "beyond"),
        ([((1, 0), (4, 3))], "beyond"),
        ([((0,), (12,))], "number of dimensions"),
        ([], "leave out"),
    ],
)
def test_chunks_that_do_not_tile(chunks: list[Any], words: str) -> None:
    parts = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in chunks]
    with pytest.raises(MetadataError, match=words) as caught:
        read(content(tensor={"chunks": parts}))
    assert caught.value.item == "w"


def test_a_ranks_own_metadata_need_not_hold_all_of_a_tensor() -> None:
    half = ChunkStorageMetadata(ZERO, torch.Size([2, 3]))
    pickled = pickle.dumps(content(tensor={"chunks": [half]}))
    assert metadata_file.load(pickled, KeyRing(), rank=1).state_dict_metadata["w"].chunks == [half]
    both = ChunkStorageMetadata(torch.Size([1, 0]), torch.Size([2, 3]))
    with pytest.raises(MetadataError, match="overlap"):
        metadata_file.load(pickle.dumps(content(tensor={"chunks": [half, both]})), KeyRing(), rank=1)


@pytest.mark.parametrize("name", ["w", "o"])
def test_every_item_has_a_place(name: str) -> None:
    found = content()
    found.storage_data = {index: place for index, place in found.storage_data.items() if index.fqn != name}
    with pytest.raises(MetadataError, match="does not say where") as caught:
        read(found)
    assert caught.value.item == name


def test_a_chunk_without_a_place() -> None:
    halves = [ChunkStorageMetadata(torch.Size([row, 0]), torch.Size([2, 3])) for row in (0, 2)]
    with pytest.raises(MetadataError, match="does not say where"):
        read(content(tensor={"chunks": halves}))


def test_a_save_that_nobody_could_load_is_not_published(tmp_path: Path) -> None:
    """By a planner of somebody's own, which does not check what DCP's own planner does."""

    class Careless(dcp.DefaultSavePlanner):
        def create_global_plan(self, all_plans: Any) -> Any:
            plans, found = super().create_global_plan(all_plans)
            found.state_dict_metadata["w"].size = torch.Size([5])
            return plans, found

    import streamxf

    writer = streamxf.FileSystemWriter(tmp_path, sync_files=False)
    with refused(UnsupportedError, "leave out a part"):
        dcp.save({"w": torch.ones(4)}, storage_writer=writer, planner=Careless())
    assert not (tmp_path / ".metadata").exists()


def rewrite(file: Path, change: Callable[[Any], None]) -> None:
    """Alter metadata without a manifest that vouches for it."""
    found = pickle.loads(file.read_bytes())
    change(found)
    file.write_bytes(pickle.dumps(found))
