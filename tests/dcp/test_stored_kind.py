"""The requirement "dtype, shape and kind of the stored item must match the metadata", for every way of storing one."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

import streamxf
from streamxf import Checksum
from streamxf.errors import IdentityError, MetadataError, StreamxfError, UnsupportedError

from . import helpers
from .test_loads_like_stock import Into

SIZES = {"small": (6, 4), "large": (600, 400)}
ALTERED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "another dtype": lambda tensor: tensor.to(torch.float64),
    "another dtype of the same size": lambda tensor: tensor.view(torch.int32),
    "more rows": lambda tensor: torch.cat([tensor, tensor]),
    "fewer rows": lambda tensor: tensor[:-1].clone(),
    "another order of dimensions": lambda tensor: tensor.t().contiguous(),
    "a dimension more": lambda tensor: tensor[None],
    "nothing": lambda tensor: tensor[:0],
}


def reader_of(path: Path) -> Any:
    registry = streamxf.Registry()
    registry.register(helpers.Xor)
    return streamxf.FileSystemReader(path, registry)


def rewrite(path: Path, writer: str, index: Callable[[Any], None], content: Callable[[Any], None]) -> None:
    """Change what the metadata says, which without a key anyone can: an index, or the pickle of torch's own writers."""
    if writer.startswith("own"):
        helpers.rewrite_index(path, index)
    else:
        helpers.rewrite_pickle(path, content)


def describe(path: Path, writer: str, tensor: torch.Tensor) -> None:
    """Have the metadata say that "t" is such a tensor."""
    dtype, shape, none = str(tensor.dtype).removeprefix("torch."), [*tensor.shape], [0] * tensor.ndim

    def index(found: Any) -> None:
        found["items"]["t"].update(dtype=dtype, shape=shape)
        found["items"]["t"]["chunks"][0].update(offset=none, shape=shape)

    def content(found: Any) -> None:
        item = found.state_dict_metadata["t"]
        item.properties.dtype, item.size = tensor.dtype, tensor.size()
        (chunk,) = item.chunks
        chunk.offsets, chunk.sizes = torch.Size(none), tensor.size()
        ((old, info),) = found.storage_data.items()
        found.storage_data = {MetadataIndex("t", chunk.offsets, old.index): info}

    rewrite(path, writer, index, content)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ALTERED)
@pytest.mark.parametrize("writer", helpers.WRITERS)
def test_a_stored_tensor_that_is_another_than_the_metadata_says(
    checkpoint: Path, writer: str, how: str, size: str
) -> None:
    described = torch.rand(SIZES[size])
    stored = ALTERED[how](described)
    dcp.save({"t": stored}, storage_writer=helpers.WRITERS[writer](checkpoint))
    describe(checkpoint, writer, described)
    target = {"t": torch.full(SIZES[size], 7.0)}
    error = helpers.error_of(lambda: dcp.load(target, storage_reader=reader_of(checkpoint)))
    bound = writer in ("own", "attached")  # a container says itself what it holds
    assert isinstance(error, IdentityError if bound else MetadataError), repr(error)
    for shape in (SIZES[size], stored.shape):
        assert str(list(shape) if bound else tuple(shape)) in str(error), str(error)
    for dtype in (described.dtype, stored.dtype):
        assert str(dtype).removeprefix("torch.") in str(error), str(error)
    assert bool((target["t"] == 7).all())


@pytest.mark.parametrize("writer", helpers.WRITERS)
def test_a_part_of_a_tensor_is_compared_too(checkpoint: Path, writer: str) -> None:
    """Silently narrowed, a larger tensor would give rows of another place."""
    dcp.save({"t": torch.rand(600, 400)}, storage_writer=helpers.WRITERS[writer](checkpoint))
    describe(checkpoint, writer, torch.rand(500, 400))
    reader = reader_of(checkpoint)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    zero, start = torch.Size([0, 0]), torch.Size([490, 0])
    index = MetadataIndex("t", zero, 0)
    request = ReadItem(LoadItemType.TENSOR, MetadataIndex("t", index=0), zero, index, start, torch.Size([5, 400]))
    target = torch.zeros(5, 400)
    bound = writer in ("own", "attached")
    with helpers.refused(IdentityError if bound else MetadataError, "600, 400", "500, 400"):
        reader.read_data(LoadPlan([request]), Into([target]))
    assert not target.any()


@pytest.mark.parametrize("writer", ["own, bare", "own, foreign", "stock", "stock with a codec"])
def test_an_object_where_a_tensor_belongs(checkpoint: Path, writer: str) -> None:
    """Where no container says what it holds."""

    class Slips(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            file = io.BytesIO()
            torch.save([1, 2, 3], file)
            return file if write_item.index.fqn == "o" else super().resolve_data(write_item)

    state = {"o": "text", "t": torch.zeros(3)}
    dcp.save(state, storage_writer=helpers.WRITERS[writer](checkpoint), planner=Slips())

    def index(found: Any) -> None:
        one, other = found["items"]["o"], found["items"]["t"]["chunks"][0]
        places = [{name: each[name] for name in ("file", "at", "bytes", "crc32c")} for each in (one, other)]
        one.update(places[1])
        other.update(places[0])

    def content(found: Any) -> None:
        places = {index.fqn: info for index, info in found.storage_data.items()}
        found.storage_data = {index: places["o" if index.fqn == "t" else "t"] for index in found.storage_data}

    rewrite(checkpoint, writer, index, content)
    with helpers.refused(MetadataError, "holds a list, the metadata says a tensor"):
        helpers.load_with({"t": torch.zeros(3)}, reader_of(checkpoint))
    found = {"o": "untouched"}
    with helpers.refused(MetadataError, "holds a tensor, the metadata says an object"):
        dcp.load(found, storage_reader=reader_of(checkpoint))
    assert found == {"o": "untouched"}


@pytest.mark.parametrize("wanted", ["t", "o"])
def test_an_item_that_is_asked_for_as_another_kind(checkpoint: Path, wanted: str) -> None:
    helpers.save({"o": "text", "t": torch.zeros(3)}, checkpoint, [])
    reader = reader_of(checkpoint)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    index = next(index for index in metadata.storage_data if index.fqn == wanted)
    kind = LoadItemType.BYTE_IO if wanted == "t" else LoadItemType.TENSOR
    none = torch.Size([0])
    request = ReadItem(kind, MetadataIndex(wanted, index=0), none, index, none, torch.Size([3]))
    with helpers.refused(MetadataError, "and the metadata says it is not one"):
        reader.read_data(LoadPlan([request]), Into([torch.zeros(3)]))


@pytest.mark.parametrize("wanted", ["t", "o"])
def test_an_item_that_the_metadata_describes_as_another_kind(checkpoint: Path, wanted: str) -> None:
    state = {"o": "text", "t": torch.zeros(3)}
    dcp.save(state, storage_writer=helpers.WRITERS["stock"](checkpoint))

    def change(content: Any) -> None:
        items = content.state_dict_metadata
        tensor = next(item for item in items.values() if isinstance(item, TensorStorageMetadata))
        items[wanted] = BytesStorageMetadata() if wanted == "t" else tensor

    helpers.rewrite_pickle(checkpoint, change)
    target = {wanted: "text" if wanted == "t" else torch.zeros(3)}
    error = helpers.error_of(lambda: dcp.load(target, storage_reader=reader_of(checkpoint)))
    assert isinstance(error, StreamxfError), repr(error)


@pytest.mark.parametrize("chain", [[], [Checksum()]])
def test_a_save_that_would_not_load_is_refused(checkpoint: Path, chain: list[Any]) -> None:
    """A planner that converts what it saves, after the metadata was made."""

    class Converts(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return super().resolve_data(write_item).to(torch.bfloat16)

    writer = streamxf.FileSystemWriter(checkpoint, _extensions=chain, sync_files=False)
    with helpers.refused(UnsupportedError, "torch.bfloat16", "torch.float32", "item t"):
        dcp.save({"t": torch.zeros(3)}, storage_writer=writer, planner=Converts())
    assert not (checkpoint / ".metadata").exists()
    assert helpers.data_files(checkpoint) == []


def test_what_is_not_altered_loads(checkpoint: Path) -> None:
    """Scalars, empty ones, and views whose frame is not the usual one."""
    state = {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(3, 0),
        "conj": torch.randn(3, dtype=torch.complex64).conj(),
        "neg": torch.randn(3, dtype=torch.complex64).conj().imag,
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    for name, writer in helpers.WRITERS.items():
        dcp.save(state, storage_writer=writer(checkpoint / name))
        found = helpers.load_with(state, reader_of(checkpoint / name))
        assert all(torch.equal(found[key], value.resolve_conj().resolve_neg()) for key, value in state.items()), name
    helpers.save(state, checkpoint / "keyed")
    assert set(helpers.load(state, checkpoint / "keyed", helpers.KEY)) == set(state)
