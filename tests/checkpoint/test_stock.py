"""The metadata of torch's own writers: read without running anything, as items that are whole."""

import builtins
import gc
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

import streamxf
from streamxf.errors import MetadataError
from streamxf.format.items import Chunk, ObjectItem, Place, TensorItem
from streamxf.format.limits import MAX_CODECS, MAX_METADATA, MAX_NDIM, MAX_STEP, MAX_STEPS
from streamxf.torchsave.unpickler import StockMetadata, read_stock

SIZE = torch.Size([4, 3])
ZERO = torch.Size([0, 0])
LEFT_OUT = object()


def content(**changes: Any) -> Metadata:
    """Metadata of a tensor and an object, with some of it changed."""
    chunk = made(ChunkStorageMetadata, {"offsets": ZERO, "sizes": SIZE}, changes.get("chunk"))
    values = {"properties": TensorProperties(), "size": SIZE, "chunks": [chunk]}
    tensor = made(TensorStorageMetadata, values, changes.get("tensor"))
    index = made(MetadataIndex, {"fqn": "w", "offset": ZERO, "index": 0}, changes.get("index"))
    place = made(_StorageInfo, {"relative_path": "a", "offset": 0, "length": 9}, changes.get("place"))
    values = {
        "state_dict_metadata": {"w": tensor, "o": BytesStorageMetadata()},
        "planner_data": {"w": ("w",), "o": ("list", 1)},
        "storage_data": {MetadataIndex("o"): _StorageInfo("a", 9, 9), index: place},
        "storage_meta": made(StorageMeta, vars(StorageMeta(Path("/somewhere"))), changes.get("meta")),
        "version": "1.0.0",
    }
    return made(Metadata, values, changes.get("metadata"))


def made(cls: type, values: dict[str, Any], changes: dict[str, Any] | None) -> Any:
    """An instance with any attributes; what is `LEFT_OUT` is not among them."""
    instance = object.__new__(cls)
    kept = {name: value for name, value in {**values, **(changes or {})}.items() if value is not LEFT_OUT}
    vars(instance).update(kept)
    return instance


def read(value: Metadata, protocol: int = 4, rank: int | None = None) -> StockMetadata:
    return read_stock(pickle.dumps(value, protocol), rank)


WHOLE_CHUNK = ChunkStorageMetadata(ZERO, SIZE)
WHOLE = Chunk((0, 0), (4, 3), Place("a", 0, 9, ()), framed=True)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_torch_writes(protocol: int) -> None:
    found = read(content(), protocol)
    assert found.items == {
        "w": TensorItem("w", "float32", (4, 3), (WHOLE,), ("w",)),
        "o": ObjectItem("o", Place("a", 9, 9, ()), ("list", 1)),
    }
    assert gc.isenabled()


def test_plans_that_megatron_adds_are_not_looked_at() -> None:
    item = WriteItem(MetadataIndex("w"), WriteItemType.TENSOR, TensorWriteData(WHOLE_CHUNK, TensorProperties(), SIZE))
    plans = [SavePlan([item], storage_data=None, planner_data={"w": ("w",)})]
    assert read(content(metadata={"all_local_plans": plans, "mcore_data": {"w": {}}})).items == read(content()).items


def test_descriptors_come_in_save_order() -> None:
    found = read(content(place={"transform_descriptors": ["streamxf.zstd/1#level=3", "toy.xor/90"]}))
    assert found.items["w"].places[0].descriptors == ("toy.xor/90", "streamxf.zstd/1#level=3")


def test_packages_are_those_of_an_attached_writer() -> None:
    assert read(content(meta={"modules": ["acme==1.0", 7]})).modules == ("acme==1.0",)
    for other in ({"modules": "acme"}, {"modules": LEFT_OUT}):
        assert read(content(meta=other)).modules == ()
    assert read(content(metadata={"storage_meta": None})).modules == ()


PROPERTIES = [
    (TensorProperties(), {}),
    (TensorProperties(requires_grad=True, pin_memory=True), {"requires_grad": True, "pin_memory": True}),
    (TensorProperties(memory_format=torch.channels_last), {"memory_format": "channels_last"}),
    (TensorProperties(memory_format=torch.preserve_format), {"memory_format": "preserve"}),
    (TensorProperties(layout=torch.sparse_coo), {"layout": "sparse_coo"}),
]


@pytest.mark.parametrize(("properties", "wanted"), PROPERTIES)
@pytest.mark.parametrize("protocol", [2, 4])
def test_properties_of_tensors(properties: TensorProperties, wanted: dict[str, Any], protocol: int) -> None:
    item = read(content(tensor={"properties": properties}), protocol).items["w"]
    assert isinstance(item, TensorItem)
    assert item.properties == wanted


@pytest.mark.parametrize("dtype", [value for value in vars(torch).values() if isinstance(value, torch.dtype)], ids=str)
def test_every_dtype_of_this_torch(dtype: torch.dtype) -> None:
    item = read(content(tensor={"properties": TensorProperties(dtype)})).items["w"]
    assert isinstance(item, TensorItem)
    assert item.dtype == str(dtype).removeprefix("torch.")


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
sizes = st.integers(0, 300) | st.integers(0, 2**62)
paths = st.lists(names | st.integers(0, 50), min_size=1, max_size=5).map(tuple)


@st.composite
def metadata(draw: st.DrawFn) -> tuple[Metadata, dict[str, Any]]:
    """Metadata as DCP makes it, and the items that it describes."""
    entries: dict[str, Any] = {}
    stored: dict[MetadataIndex, _StorageInfo] = {}
    planned: dict[str, tuple[Any, ...]] = {}
    items: dict[str, Any] = {}
    for name in draw(st.lists(names, max_size=5, unique=True)):
        place = Place(f"{draw(st.integers(0, 3))}.distcp", draw(sizes), draw(sizes), ())
        info = _StorageInfo(place.file, place.at, place.size)
        path = draw(st.none() | paths)
        if path is not None:
            planned[name] = path
        if draw(st.booleans()):
            entries[name] = BytesStorageMetadata()
            stored[MetadataIndex(name)] = info
            items[name] = ObjectItem(name, place, path)
            continue
        row, count = tuple(draw(st.lists(st.integers(1, 40), max_size=4))), draw(st.integers(1, 4))
        chunks = []
        for number in range(count):
            chunk = Chunk((number, *[0] * len(row)), (1, *row), place, framed=True)
            chunks.append(chunk)
            stored[MetadataIndex(name, torch.Size(chunk.offset), draw(st.none() | st.just(number)))] = info
        parts = [ChunkStorageMetadata(torch.Size(chunk.offset), torch.Size(chunk.shape)) for chunk in chunks]
        properties = TensorProperties(torch.bfloat16)
        entries[name] = TensorStorageMetadata(properties, torch.Size([count, *row]), parts)
        items[name] = TensorItem(name, "bfloat16", (count, *row), tuple(chunks), path)
    return Metadata(entries, planned, stored, StorageMeta()), items


PICKLERS: dict[str, Callable[[Any, int], bytes]] = {"C": pickle.dumps, "Python": pickle._dumps}  # type: ignore[attr-defined]


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("pickler", PICKLERS)
@given(case=metadata())
def test_any_metadata(pickler: str, protocol: int, case: tuple[Metadata, dict[str, Any]]) -> None:
    assert read_stock(PICKLERS[pickler](case[0], protocol), None).items == case[1]


# -- damage and malice ---------------------------------------------------------------------------


def test_nothing_follows_it() -> None:
    with pytest.raises(MetadataError, match="something follows"):
        read_stock(pickle.dumps(content()) + b"N.", None)


def test_every_change_is_read_or_refused() -> None:
    pickled = pickle.dumps(content())
    for at in range(len(pickled)):
        for mask in (0x01, 0x20, 0x80, 0xFF):
            altered = bytearray(pickled)
            altered[at] ^= mask
            try:
                read_stock(bytes(altered), None)
            except MetadataError:
                """As it should be; anything else fails the test."""


class Calls:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


HOSTILE: dict[str, tuple[Callable[[str], Any], str]] = {
    "os.system": (lambda mark: Calls(os.system, f"touch {mark}"), "system"),
    "builtins.eval": (lambda mark: Calls(eval, f"open({mark!r}, 'w')"), ".eval"),
    "builtins.open": (lambda mark: Calls(open, mark, "w"), "open"),
    "builtins.getattr": (lambda mark: Calls(getattr, Path(mark), "touch"), ".getattr"),
    "__import__": (lambda mark: Calls(builtins.__import__, "os"), ".__import__"),
    "torch.load": (lambda mark: Calls(torch.load, mark), "torch.serialization.load"),
    "torch function": (lambda mark: Calls(torch.save, 3, mark), "torch.serialization.save"),
    "a tensor": (lambda mark: torch.ones(2), "torch._utils"),
    "numpy": (lambda mark: torch.ones(2).numpy(), "numpy"),
    "a path's method": (lambda mark: Path(mark).touch, ".getattr"),
    "a class of the test": (lambda mark: Calls, "Calls"),
    "codec": (lambda mark: streamxf.Checksum(), "streamxf"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_pickles_run_nothing(tmp_path: Path, attack: str) -> None:
    mark = tmp_path / "it ran"
    make, named = HOSTILE[attack]
    value = make(str(mark))
    for pickled in (
        pickle.dumps(value),
        pickle.dumps(Metadata(state_dict_metadata={"w": value}, planner_data=value)),
        pickle.dumps([value], protocol=2),
    ):
        with pytest.raises(MetadataError, match="refused, and nothing was run") as caught:
            read_stock(pickled, None)
        assert named in str(caught.value)
        assert not mark.exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"\x80\x04\x8c\x05torch\x8c\x0bserialization\x93.",
        b"\x80\x04\x8c\x05torch\x8c\x13serialization.os.system\x93.",
        b"\x80\x04\x8c\x0btorch.Size\x8c\x00\x93.",
        b"ctorch.distributed.checkpoint.filesystem\nos\n.",
        b"ctorch.distributed.checkpoint.metadata\nMetadata.__init__.__globals__\n.",
        b"Pnowhere\n.",
        b"\x80\x02\x82\x01.",
        b"",
        b"no pickle at all",
        b"N.",
        b"\x80\x04}.",
        b"\x80\x04K\x01",
        b"\0" * 5000,
        # attributes of a class that stands for one of DCP's
        b"ctorch.distributed.checkpoint.metadata\nMetadata\n}S'__setstate__'\nNsb.",
        b"ctorch.distributed.checkpoint.metadata\nMetadata\n}S'state'\n}ssb.",
    ],
)
def test_what_is_not_dcps(pickled: bytes) -> None:
    with pytest.raises(MetadataError):
        read_stock(pickled, None)
    assert read(content()).items["w"].places == (WHOLE.place,)


@pytest.mark.parametrize("protocol", [2, 4])
def test_one_that_was_cut_does_not_look_like_an_attack(protocol: int) -> None:
    """What is left of a name, where it was cut, is none that anybody wrote."""
    pickled = pickle.dumps(content(), protocol)
    for size in range(len(pickled)):
        with pytest.raises(MetadataError) as caught:
            read_stock(pickled[:size], None)
        assert "wants" not in str(caught.value)


def test_names_are_shown_in_characters_that_do_nothing_to_a_terminal() -> None:
    with pytest.raises(MetadataError) as caught:
        read_stock("c\x1b[31mevil\nname\u202e\n.".encode(), None)
    assert str(caught.value).isprintable()


FAULTS: dict[tuple[str, str], tuple[Any, ...]] = {
    ("index", "fqn"): (7, b"w", None, "", "other"),
    ("index", "offset"): ("00", (0, 1), (0, 0), (0, True), (0, -1)),
    ("chunk", "offsets"): ((0, 0),),
    ("chunk", "sizes"): ([4, 3], None, LEFT_OUT, torch.Size([12])),
    ("tensor", "size"): ((4, 3), [4, 3], torch.Size([2**32, 2**32]), torch.Size([1] * (MAX_NDIM + 1))),
    ("tensor", "properties"): ({}, None, LEFT_OUT),
    ("tensor", "chunks"): (
        *((), {}, [SIZE], ["chunk"], [BytesStorageMetadata()], [object.__new__(ChunkStorageMetadata)]),
        [ChunkStorageMetadata(ZERO, SIZE)] * 2,
    ),
    ("place", "relative_path"): (7, ["a"], {"a": 1}, ("a", "b"), LEFT_OUT, "x" * 5000),
    ("place", "offset"): (-1, 2**63, 0.0),
    ("place", "length"): (None, False),
    ("place", "transform_descriptors"): (
        *("zstd/1", [7], (), ("x/1",), 0, {"a": 1}, ["x/1"] * (MAX_CODECS + 1), ["x" * 40_000]),
    ),
    ("metadata", "state_dict_metadata"): (
        *([], LEFT_OUT, {7: BytesStorageMetadata()}, {"w": "tensor"}, {"w": object.__new__(TensorStorageMetadata)}),
    ),
    ("metadata", "storage_data"): (
        *([], {"w": _StorageInfo("a", 0, 9)}, {MetadataIndex("o"): "a"}, {("o", None): 1}),
        {MetadataIndex("o"): object.__new__(_StorageInfo)},
    ),
}
WRONG = [(part, {name: value}) for (part, name), values in FAULTS.items() for value in values]


@pytest.mark.parametrize(
    ("part", "changes"), WRONG, ids=lambda value: value if isinstance(value, str) else "".join(value)
)
def test_wrong_types_and_values_are_refused(part: str, changes: dict[str, Any]) -> None:
    with pytest.raises(MetadataError):
        read(content(**{part: changes}))


@pytest.mark.parametrize("state", [(), {}, (torch.float32,), ("float32", torch.strided, False, 0, False)])
def test_properties_of_the_wrong_types_are_refused(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorProperties, "__getstate__", lambda _: state)
    with pytest.raises(MetadataError):
        read(content())


def test_what_newer_versions_append_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = read(content())
    state = TensorProperties().__getstate__()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(TensorProperties, "__getstate__", lambda _: (*state, (3, 1)))
    assert read(content()) == wanted
    more = {"strides": (3, 1), "note": {"a": [1.5, None, True, "x"]}}
    for part in ("chunk", "tensor", "index", "place", "meta", "metadata"):
        assert read(content(**{part: more})) == wanted


@pytest.mark.parametrize(
    "path",
    [(), ["w", 3], ("w", 3.0), ("w", None), ("w", -1), ("w", MAX_STEP + 1), ("w",) * (MAX_STEPS + 1), "w", 7],
    ids=lambda path: repr(path)[:30],
)
def test_paths_that_are_not_dcps_are_left_out(path: Any) -> None:
    for data in ({"w": path}, OrderedDict({"w": path})):
        assert read(content(metadata={"planner_data": data})).items["w"].path is None


def test_planner_data_that_is_not_paths_does_not_matter() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for data in (None, loop, {1, 2}, 2**80, [StorageMeta()]):
        assert read(content(metadata={"planner_data": data})).items["w"].path is None


# -- whole items ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([((0, 0), (4, 3)), ((0, 0), (4, 3))], "same offset"),
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
    found = content(tensor={"chunks": parts})
    found.storage_data |= {MetadataIndex("w", part.offsets): _StorageInfo("a", 0, 1) for part in parts}
    with pytest.raises(MetadataError, match=words) as caught:
        read(found)
    assert caught.value.item == "w"


def test_a_ranks_own_metadata_need_not_hold_all_of_a_tensor() -> None:
    half = ChunkStorageMetadata(ZERO, torch.Size([2, 3]))
    item = read(content(tensor={"chunks": [half]}), rank=1).items["w"]
    assert isinstance(item, TensorItem)
    assert [(chunk.offset, chunk.shape) for chunk in item.chunks] == [((0, 0), (2, 3))]
    both = ChunkStorageMetadata(torch.Size([1, 0]), torch.Size([2, 3]))
    found = content(tensor={"chunks": [half, both]})
    found.storage_data[MetadataIndex("w", both.offsets)] = _StorageInfo("a", 0, 1)
    with pytest.raises(MetadataError, match="overlap"):
        read(found, rank=1)


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


def test_all_fields_of_dcps_classes_are_known() -> None:
    """A newer torch that stores more has to be looked at."""
    known = {
        Metadata: {"state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"},
        StorageMeta: {"checkpoint_id", "save_id", "load_id", "modules"},
        ChunkStorageMetadata: {"offsets", "sizes"},
        TensorStorageMetadata: {"properties", "size", "chunks"},
        _StorageInfo: {"relative_path", "offset", "length", "transform_descriptors"},
    }
    for cls, wanted in known.items():
        assert {field.name for field in fields(cls)} <= wanted  # type: ignore[arg-type]


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    """A file of holes takes nothing to make."""
    (tmp_path / ".metadata").write_bytes(pickle.dumps(content()))
    os.truncate(tmp_path / ".metadata", MAX_METADATA + 1)
    with pytest.raises(MetadataError, match=f"{MAX_METADATA} are allowed"):
        streamxf.Checkpoint(tmp_path)


def test_metadata_that_is_a_hole_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".metadata").touch()
    os.truncate(tmp_path / ".metadata", 2**30)
    with pytest.raises(MetadataError, match="holes"):
        streamxf.Checkpoint(tmp_path)
