"""State dicts, checkpoints and files as sources: what counts, and that the very bytes at each place are read."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint._extension import ZStandard as TorchZStandard
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import streamxf
from streamxf import LZ4, Checksum, Encrypt, FloatZip, Key
from streamxf.errors import (
    ContainerError,
    KeyMissingError,
    MetadataError,
    NoCheckpointError,
    ParameterError,
    PolicyError,
    StreamxfError,
    UnsupportedError,
)
from streamxf.stream.encoder import encoding_facts
from streamxf.tuning.sample import BLOCKS, Part, RawFile, Sampled, Span, spans_in, take_sample
from streamxf.tuning.state import StateDict
from streamxf.tuning.tuner import source_of
from tests.altered import flip

KEY = Key(bytes(range(32)))
MIB = 2**20


def whole(source: Sampled, number: int) -> bytes:
    """All bytes of a part."""
    part = source.parts[number]
    return source.read([Span(number, (0,) * len(part.shape), part.shape, 1.0)])[0]


def dtype_of(part: Part) -> str | None:
    return part.identity.dtype if part.identity is not None else None


def row_of(part: Part) -> int | None:
    return encoding_facts(part.identity)[2]


def raw(tensor: torch.Tensor) -> bytes:
    """A tensor's bytes in row-major order."""
    plain = tensor.detach().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def numbered(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape).to(dtype)


# -- state dicts -----------------------------------------------------------------------------------


def test_tensors_are_found_however_deep() -> None:
    state = {
        "model": {"weight": numbered(3, 5), "bias": torch.nn.Parameter(torch.ones(7))},
        "optim": [{"moments": (numbered(4), numbered(2, 2, dtype=torch.bfloat16))}, "text", None],
        "step": 17,
        8: torch.tensor(3.0, dtype=torch.float64),
    }
    source = StateDict(state)
    found = {part.name: (dtype_of(part), part.nbytes) for part in source.parts}
    assert found == {
        "model.weight": ("int32", 60),
        "model.bias": ("float32", 28),
        "optim.0.moments.0": ("int32", 16),
        "optim.0.moments.1": ("bfloat16", 8),
        "8": ("float64", 8),
    }
    assert [row_of(part) for part in source.parts] == [5, None, None, 2, None]
    assert whole(source, 0) == raw(state["model"]["weight"])  # type: ignore[index]
    assert whole(source, 1) == raw(torch.ones(7))


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float64, torch.complex128],
    ids=str,
)
def test_any_dtype_is_read_bit_for_bit(dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 256, (40 * dtype.itemsize,), dtype=torch.uint8)
    tensor = (tensor % 2 if dtype == torch.bool else tensor).view(dtype)
    source = StateDict({"w": tensor})
    assert dtype_of(source.parts[0]) == str(dtype).removeprefix("torch.")
    assert whole(source, 0) == raw(tensor)


@pytest.mark.parametrize(
    "view",
    [
        numbered(4, 6).t(),
        numbered(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        numbered(6, 8)[:, ::2],
        numbered(6, 8)[1:, 3:5],
        numbered(5, 1).expand(5, 9),
        numbered(9)[::3],
        numbered(4, 4).to(torch.complex64).conj()[:, :2],
    ],
    ids=["transposed", "channels last", "every second", "inner", "expanded", "strided", "conj"],
)
def test_views_are_read_in_row_major_order(view: torch.Tensor) -> None:
    source = StateDict({"w": view})
    assert source.parts[0].shape == tuple(view.shape)
    assert source.parts[0].nbytes == view.numel() * view.element_size()
    assert whole(source, 0) == raw(view.resolve_conj())


def test_blocks_come_from_their_places() -> None:
    flat = numbered(9 * MIB // 4)
    gaps = numbered(5, 3 * MIB // 4 + 8)[:, 8:]  # a row is larger than a block
    state = {"flat": flat, "gaps": gaps, "shifted": flat[3:]}
    source = StateDict(state)
    spans = spans_in(source.parts)
    assert {span.part for span in spans} == {0, 1, 2}
    for span, data in zip(spans, source.read(spans), strict=True):
        assert data == raw(list(state.values())[span.part][slices_of(span)])


def slices_of(span: Span) -> tuple[slice, ...]:
    return tuple(slice(start, start + length) for start, length in zip(span.offset, span.lengths, strict=True))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantized_tensors_are_their_integers() -> None:
    tensor = torch.quantize_per_tensor(torch.arange(12.0), 0.5, 3, torch.qint8)
    source = StateDict({"w": tensor})
    assert (dtype_of(source.parts[0]), source.parts[0].nbytes) == ("qint8", 12)
    assert whole(source, 0) == raw(tensor.int_repr())


def test_only_the_sampled_pieces_go_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    real = torch.Tensor.cpu

    def cpu(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor.nbytes)
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    state = {"dense": torch.zeros(40 * MIB, dtype=torch.uint8), "gaps": torch.zeros(1000, 90_000, dtype=torch.uint8)}
    state["gaps"] = state["gaps"][:, : 80 * 1000]
    blocks = take_sample(StateDict(state))
    assert copied == [len(block.data) for block in blocks]
    assert len(copied) == BLOCKS
    assert max(copied) <= MIB


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_tensors_of_an_accelerator_are_sampled() -> None:
    tensor = torch.arange(30 * MIB, dtype=torch.int32)
    on_host, on_device = StateDict({"w": tensor}), StateDict({"w": tensor.cuda()})
    before = torch.cuda.memory_allocated()
    assert take_sample(on_device) == take_sample(on_host)
    assert torch.cuda.max_memory_allocated() - before <= 2 * MIB
    gaps = tensor.reshape(-1, 1024)[:, :1000]
    assert take_sample(StateDict({"w": gaps.cuda()})) == take_sample(StateDict({"w": gaps}))


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """As rank 0 of 2, where rank 1 does not exist and collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_of_sharded_tensors_the_shards_of_this_rank_count() -> None:
    mesh = init_device_mesh("cpu", (2,))
    matrix = numbered(8, 6)
    sharded = distribute_tensor(matrix, mesh, [Shard(0)], src_data_rank=None)
    replicated = distribute_tensor(matrix, mesh, [Replicate()], src_data_rank=None)
    source = StateDict({"sharded": sharded, "replicated": torch.nn.Parameter(replicated.float())})
    assert [(part.name, part.nbytes) for part in source.parts] == [("sharded", 96), ("replicated", 192)]
    assert whole(source, 0) == raw(matrix[:4])
    assert whole(source, 1) == raw(matrix.float())


@pytest.mark.usefixtures("two_ranks")
def test_of_sharded_tensor_the_local_shards_count() -> None:
    from torch.distributed._shard.sharded_tensor import Shard as LocalShard
    from torch.distributed._shard.sharded_tensor import ShardedTensor, ShardMetadata
    from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties

    rows = numbered(4, 6, dtype=torch.float32)
    shards = [ShardMetadata([0, 0], [4, 6], "rank:0/cpu"), ShardMetadata([4, 0], [4, 6], "rank:1/cpu")]
    properties = TensorProperties(dtype=torch.float32)
    layout = ShardedTensorMetadata(shards, torch.Size([8, 6]), properties)
    sharded = ShardedTensor._init_from_local_shards_and_global_metadata([LocalShard(rows, shards[0])], layout)
    source = StateDict({"sharded": sharded})
    assert [(part.name, dtype_of(part), part.nbytes) for part in source.parts] == [("sharded", "float32", 96)]
    assert whole(source, 0) == raw(rows)


def test_a_subclass_is_sampled_by_what_it_wraps() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    first, second = torch.ones(3), torch.full((3,), 2.0)
    source = StateDict({"w": TwoTensor(first, second)})
    assert [part.nbytes for part in source.parts] == [12, 12]
    assert whole(source, 0) + whole(source, 1) == raw(first) + raw(second)


def test_what_dcp_cannot_save_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="sparse") as caught:
        StateDict({"layer": {"w": torch.eye(4).to_sparse()}})
    assert caught.value.item == "layer.w"
    with pytest.raises(ParameterError, match="meta device") as missing:
        StateDict({"w": torch.empty(4, device="meta")})
    assert missing.value.item == "w"


# -- checkpoints -----------------------------------------------------------------------------------


def training_state() -> dict[str, Any]:
    return {
        "model": {
            "wide": numbered(2, 600_000, dtype=torch.float32),  # a row is larger than a block
            "deep": numbered(3000, 7, 40, dtype=torch.float32),
            "scalar": torch.tensor(5),
            "empty": torch.empty(0, 4),
            "half": numbered(300_000).to(torch.bfloat16),
        },
        "step": 17,
    }


def writers(folder: Path) -> dict[str, Any]:
    return {
        "stock": dcp.FileSystemWriter(folder),
        "stock zstd": dcp.FileSystemWriter(folder, _extensions=[TorchZStandard()]),
        "default": streamxf.FileSystemWriter(folder),
        "plain": streamxf.FileSystemWriter(folder, _extensions=[]),
        "lz4": streamxf.FileSystemWriter(folder, _extensions=[LZ4(), Checksum()]),
        "full": streamxf.FileSystemWriter(folder, _extensions=[FloatZip(), Checksum(), Encrypt(KEY)]),
    }


@pytest.mark.parametrize("name", ["stock", "stock zstd", "default", "plain", "lz4", "full"])
def test_a_checkpoint_gives_the_bytes_of_its_tensors(tmp_path: Path, name: str) -> None:
    state = training_state()
    dcp.save(state, storage_writer=writers(tmp_path / "saved")[name])
    source = source_of(str(tmp_path / "saved"), KEY if name == "full" else None)
    tensors = {f"model.{key}": tensor for key, tensor in state["model"].items()}
    assert {part.name: (dtype_of(part), part.shape) for part in source.parts} == {
        key: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for key, tensor in tensors.items()
    }
    rows = {part.name.removeprefix("model."): row_of(part) for part in source.parts}
    assert rows == {"wide": 600_000, "deep": 280, "scalar": None, "empty": 4, "half": None}
    spans = spans_in(source.parts)
    assert {source.parts[span.part].name for span in spans} >= {"model.wide", "model.deep"}
    for span, data in zip(spans, source.read(spans), strict=True):
        assert data == raw(tensors[source.parts[span.part].name][slices_of(span)])


def test_each_chunk_of_a_sharded_tensor_is_a_part(tmp_path: Path) -> None:
    matrix = numbered(8, 6)
    halves = {0: matrix[:4], 4: matrix[4:]}
    dcp.save({str(row): half for row, half in halves.items()}, storage_writer=dcp.FileSystemWriter(tmp_path))
    # as two ranks would have saved them: two chunks of one tensor
    content = dcp.FileSystemReader(tmp_path).read_metadata()
    tensors = content.state_dict_metadata
    chunks = [ChunkStorageMetadata(torch.Size([row, 0]), torch.Size([4, 6])) for row in halves]
    content.state_dict_metadata = {"w": TensorStorageMetadata(tensors["0"].properties, matrix.size(), chunks)}
    content.storage_data = {
        MetadataIndex("w", torch.Size([int(index.fqn), 0])): place for index, place in content.storage_data.items()
    }
    (tmp_path / ".metadata").write_bytes(pickle.dumps(content))
    source = source_of(str(tmp_path), None)
    assert [part.shape for part in source.parts] == [(4, 6), (4, 6)]
    assert source.read([Span(number, (0, 0), (4, 6), 1.0) for number in (0, 1)]) == [
        raw(half) for half in halves.values()
    ]


def test_a_checkpoint_needs_its_key(tmp_path: Path) -> None:
    dcp.save(training_state(), storage_writer=writers(tmp_path)["full"])
    with pytest.raises(KeyMissingError, match="encrypted"):
        source_of(str(tmp_path), None)
    with pytest.raises(StreamxfError, match="key"):
        source_of(str(tmp_path), Key(bytes(range(200, 232))))


def test_a_checkpoint_that_is_not_encrypted_takes_no_key(tmp_path: Path) -> None:
    dcp.save(training_state(), storage_writer=writers(tmp_path)["default"])
    with pytest.raises(PolicyError, match="leave the keys out if you know that it was not encrypted"):
        source_of(str(tmp_path), KEY)


def test_damage_is_found_and_placed(tmp_path: Path) -> None:
    dcp.save({"w": torch.arange(100_000)}, storage_writer=writers(tmp_path)["default"])
    (file,) = tmp_path.glob("*.distcp")
    flip(file)
    source = source_of(str(tmp_path), None)
    with pytest.raises(StreamxfError, match="damaged") as caught:
        source.read(spans_in(source.parts))
    assert caught.value.item == "w"
    assert str(file) == caught.value.file


def test_damaged_metadata_is_named(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(MetadataError) as caught:
        source_of(str(tmp_path), None)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError):
        source_of(str(tmp_path), None)
    (tmp_path / "__0.metadata").write_bytes(b"")
    with pytest.raises(MetadataError):
        source_of(str(tmp_path), None)


def test_a_file_of_tensors_is_taken_by_its_tensors(tmp_path: Path) -> None:
    save_file({"w": numbered(500, 30).to(torch.bfloat16)}, tmp_path / "model.safetensors")
    source = source_of(tmp_path / "model.safetensors", None)
    assert [(part.name, dtype_of(part), part.shape, row_of(part)) for part in source.parts] == [
        ("w", "bfloat16", (500, 30), 30)
    ]
    assert whole(source, 0) == raw(numbered(500, 30).to(torch.bfloat16))


def test_any_other_file_is_taken_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "anything").write_bytes(bytes(range(256)))
    source = source_of(tmp_path / "anything", None)
    assert [(dtype_of(part), part.nbytes) for part in source.parts] == [(None, 256)]
    with pytest.raises(FileNotFoundError):
        source_of(tmp_path / "nothing", None)


# -- files -----------------------------------------------------------------------------------------


def test_a_file_is_bytes(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    data = os.urandom(5 * MIB + MIB // 2)
    file.write_bytes(data)
    source = RawFile(str(file))
    assert (dtype_of(source.parts[0]), source.parts[0].nbytes) == (None, len(data))
    spans = spans_in(source.parts)
    assert len(spans) == 6
    found = dict(zip((span.offset[0] for span in spans), source.read(spans), strict=True))
    assert b"".join(found[start] for start in sorted(found)) == data


def test_a_file_that_is_cut_meanwhile_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1000))
    source = RawFile(str(file))
    os.truncate(file, 10)
    with pytest.raises(ContainerError, match="was cut") as caught:
        source.read(spans_in(source.parts))
    assert caught.value.file == str(file)


def test_devices_and_pipes_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MetadataError, match="not a regular file"):
        RawFile(str(tmp_path / "pipe"))
    with pytest.raises(FileNotFoundError, match="missing"):
        RawFile(str(tmp_path / "missing"))
