"""A target that keeps more than its elements, or has others than its metadata says, is loaded right or refused."""

import multiprocessing
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._async_process_executor import _AsyncCheckpointProcess
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import streamxf
from streamxf import torch_private
from streamxf.errors import UnsupportedError

from .helpers import KEY, error_of, refused, since
from .rank_scenarios import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning", "ignore:torch.ao:DeprecationWarning")


def per_tensor(values: torch.Tensor, scale: float, zero: int, dtype: torch.dtype = torch.qint8) -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):
        return torch.quantize_per_tensor(values, scale, zero, dtype)


def per_channel(values: torch.Tensor, scale: float, axis: int = 0) -> torch.Tensor:
    scales = torch.linspace(scale, 2 * scale, values.size(axis), dtype=torch.float64)
    with warnings.catch_warnings(action="ignore"):
        return torch.quantize_per_channel(values, scales, torch.zeros(len(scales), dtype=int), axis, torch.qint8)


VALUES = torch.arange(-8.0, 8.0).reshape(4, 4)
ZEROS = torch.zeros(4, 4)
SAME = {
    "per tensor": (per_tensor(VALUES, 0.5, 3), per_tensor(ZEROS, 0.5, 3)),
    "per channel": (per_channel(VALUES, 0.5), per_channel(ZEROS, 0.5)),
    "transposed": (per_tensor(VALUES, 0.5, 3).t().contiguous().t(), per_tensor(ZEROS, 0.5, 3)),
    "a view": (per_tensor(VALUES, 0.5, 3), per_tensor(torch.zeros(8, 4), 0.5, 3)[2:6]),
}
OTHERS = {
    "another scale": (per_tensor(VALUES, 0.5, 3), per_tensor(ZEROS, 0.25, 3)),
    "another zero point": (per_tensor(VALUES, 0.5, 3), per_tensor(ZEROS, 0.5, 0)),
    "other scales": (per_channel(VALUES, 0.5), per_channel(ZEROS, 0.25)),
    "another axis": (per_channel(VALUES, 0.5), per_channel(ZEROS, 0.5, axis=1)),
    "a part": (per_tensor(VALUES, 0.5, 3), per_tensor(torch.zeros(8, 4), 0.25, 0)[2:6]),
    "another scheme": (per_tensor(VALUES, 0.5, 3), per_channel(ZEROS, 0.5)),
    "not quantized": (per_tensor(VALUES, 0.5, 3), ZEROS.clone()),
    "quantized, of floats": (VALUES * 1000, per_tensor(ZEROS, 0.5, 3)),
    "quantized, of integers": (VALUES.int(), per_tensor(ZEROS, 0.5, 3)),
    "of another type": (per_tensor(VALUES, 0.5, 3), per_tensor(ZEROS, 0.5, 3, torch.quint8)),
}


def saved(folder: Path, tensor: torch.Tensor, chain: str, **options: Any) -> streamxf.FileSystemReader:
    keys = {"keys": KEY} if "encrypt" in chain else {}
    dcp.save({"w": tensor}, storage_writer=streamxf.FileSystemWriter(folder, chain=chain, **keys))
    return streamxf.FileSystemReader(folder, **keys, **options)


@pytest.mark.parametrize("chain", ["checksum", "floatzip+encrypt", "raw"])
@pytest.mark.parametrize("case", SAME)
def test_a_quantized_tensor_loads_into_one_of_its_scale(tmp_path: Path, case: str, chain: str) -> None:
    tensor, target = SAME[case]
    reader, keys = saved(tmp_path, tensor, chain), KEY if "encrypt" in chain else None
    intact = partial(streamxf.load_intact, tmp_path, {"w": target}, keys=keys)
    for load in (partial(dcp.load, {"w": target}, storage_reader=reader), intact):
        target.copy_(ZEROS)
        load()
        assert torch.equal(target.dequantize(), tensor.dequantize())


class Quantized(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.register_buffer("w", per_tensor(torch.arange(6.0), scale, 0))


def test_a_model_never_keeps_its_scale_for_the_stored_numbers(tmp_path: Path) -> None:
    """The tensors of `state_dict` share its memory, and are no views."""
    model, state = Quantized(1.0), {"model": Quantized(0.1).state_dict()}
    with streamxf.CheckpointManager(tmp_path, save=1) as manager:
        manager.save(1, state)
        reader = streamxf.FileSystemReader(path := tmp_path / "step-1")
        for target in ({"model": model.state_dict()}, {"model": model}):
            for load in (partial(dcp.load, target, storage_reader=reader), partial(manager.resume, target)):
                with refused(UnsupportedError, "another scale", "item model.w]"):
                    load()
            assert streamxf.load_intact(path, target).lost == ("model.w",)
            assert torch.equal(model.w.dequantize(), torch.arange(6.0))
    with streamxf.Checkpoint(path) as checkpoint:
        model.load_state_dict({"w": checkpoint["model.w"].read()})
    assert torch.equal(model.w.dequantize(), state["model"]["w"].dequantize())


@pytest.mark.parametrize("case", OTHERS)
def test_a_target_of_another_scale_is_refused(tmp_path: Path, case: str) -> None:
    tensor, target = OTHERS[case]
    before = target.dequantize().clone()
    with refused(UnsupportedError, "the stored tensor is", "item w]"):
        dcp.load({"w": target}, storage_reader=saved(tmp_path, tensor, "checksum"))
    result = streamxf.load_intact(tmp_path, state_dict={"w": target})
    assert (result.loaded, result.damaged, len(result.refused)) == ((), (), 1)
    assert torch.equal(target.dequantize(), before)


class Scaled(torch.Tensor):
    """Elements that stand for others, as a subclass may have them without `__tensor_flatten__`."""

    scale: Any

    def detach(self) -> Any:
        made = super().detach()
        made.scale = self.scale
        return made


def scaled(value: float, scale: Any) -> Scaled:
    tensor: Scaled = torch.full((3, 3), value).as_subclass(Scaled)
    tensor.scale = scale
    return tensor


@pytest.mark.parametrize("scale", [2.0, torch.tensor([1.0, 2.0, 3.0])])
def test_attributes_of_a_subclass_are_the_same_or_refused(tmp_path: Path, scale: Any) -> None:
    reader = saved(tmp_path, scaled(1.0, scale), "checksum", safe_globals=[Scaled])
    same, other = scaled(0.0, scale), scaled(0.0, scale * 2)
    dcp.load({"w": same}, storage_reader=reader)
    assert bool((same == 1).all())
    with refused(UnsupportedError, "the stored Scaled has other attributes", "item w]"):
        dcp.load({"w": other}, storage_reader=reader)
    assert not bool(other.any())


# -- tensors that say of which they are a part ---------------------------------------------------


class Part(torch.Tensor):
    """Rows from the fourth on, by the methods that DCP asks any tensor for."""

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size((4, 0)), torch.Size(self.shape))]


def rows(first: int, value: float = 0.0) -> Any:
    """Four of eight rows, as torch has them said from 2.14.1 on."""
    tensor: Any = torch.full((4, 6), value)
    tensor.global_shape, tensor.global_offsets = (8, 6), ((first, 0),)
    tensor.local_offsets, tensor.local_sizes = ((0, 0),), ((4, 6),)
    return tensor


class Pair(NamedTuple):
    name: str
    tensor: torch.Tensor


BEFORE = since("2.14.1", "has no tensors that say by attributes of which they are a part")
SAYING = [
    pytest.param(torch.ones(4, 6).as_subclass(Part), id="methods"),
    pytest.param(scaled(1.0, 2.0), id="a scale"),
    pytest.param(rows(0), id="the first rows", marks=BEFORE),
    pytest.param(rows(4), id="other rows", marks=BEFORE),
]


@pytest.mark.parametrize("tensor", SAYING)
def test_what_torch_drops_in_the_background_is_copied_with_what_it_says(tmp_path: Path, tensor: Any) -> None:
    writer = streamxf.FileSystemWriter(tmp_path)
    state = {"deep": [{"w": tensor, 0: torch.ones(2)}, 5], "pair": Pair("a", tensor), "w": tensor}
    for _ in range(2):
        staged = writer.stage(state)
        assert [*staged["deep"][0]] == ["w", 0]
        pair = staged["pair"].made()
        assert (staged["deep"][1], type(pair), pair.name) == (5, Pair, "a")
        for found in (staged["deep"][0]["w"].made(), pair.tensor, staged["w"].made()):
            assert type(found) is type(tensor)
            assert torch.equal(found, tensor)
            assert found.data_ptr() != tensor.data_ptr()
            assert vars(found) == vars(tensor)
            assert torch_private.create_chunk_list(found) == torch_private.create_chunk_list(tensor)


@BEFORE
def test_nothing_goes_to_the_process_that_saves_without_its_attributes(tmp_path: Path) -> None:
    """Which `DefaultStager` keeps, and pickling drops."""
    process: Any = _AsyncCheckpointProcess.__new__(_AsyncCheckpointProcess)
    process._send, process._save_process = pickle.dumps, multiprocessing.Process()
    with refused(UnsupportedError, "would be lost", "[item w]"):
        process.save({"w": rows(0), "other": torch.ones(2)}, storage_writer=streamxf.FileSystemWriter(tmp_path))


def test_attributes_that_say_nothing_to_dcp_do_not_matter(tmp_path: Path) -> None:
    weight: Any = torch.nn.Parameter(torch.ones(3))
    weight.tensor_model_parallel = True
    dcp.async_save({"w": weight}, storage_writer=streamxf.FileSystemWriter(tmp_path)).result()  # type: ignore[union-attr]
    assert streamxf.verify(tmp_path).ok


@pytest.mark.parametrize("tensor", [torch.ones(4, 6).as_subclass(Part), rows(4)], ids=["methods", "attributes"])
def test_a_part_is_no_item_of_a_single_process(tmp_path: Path, tensor: Any) -> None:
    with refused(UnsupportedError, "a part of another one"), streamxf.CheckpointWriter(tmp_path) as writer:
        writer["w"] = tensor


@BEFORE
def test_a_part_loads_from_the_whole(tmp_path: Path) -> None:
    whole = torch.arange(48.0).reshape(8, 6)
    reader = saved(tmp_path, whole, "checksum")
    for load in (
        lambda state: dcp.load(state, storage_reader=reader),
        lambda state: streamxf.load_intact(tmp_path, state_dict=state),
    ):
        state = {"w": rows(4)}
        load(state)
        assert torch.equal(state["w"], whole[4:])


# -- what ranks have of a DTensor --------------------------------------------------------------


def targets_that_are_not_what_they_say(folder: Path) -> dict[str, Any]:
    """Of a tensor that ranks cut in its inner dimension and then see flat, each has pieces, and DCP plans one."""
    whole, path = torch.arange(24.0), folder / "checkpoint"
    if dist.get_rank() == 0:
        dcp.save({"w": whole}, storage_writer=streamxf.FileSystemWriter(path), no_dist=True)
    dist.barrier()
    mesh = init_device_mesh("cpu", (2,))
    larger = torch.full((12 + 4 * dist.get_rank(),), -1.0)
    found: dict[str, Any] = {}
    for name, target in {
        "rows": distribute_tensor(torch.zeros(4, 6), mesh, [Shard(0)]).view(24),
        "columns": distribute_tensor(torch.zeros(4, 6), mesh, [Shard(1)]).view(24),
        "larger": DTensor.from_local(larger, mesh, [Shard(0)], shape=(24,), stride=(1,), run_check=False),
    }.items():
        for read in ("each",) if name == "larger" else ("each", "once"):  # where one rank fails, others wait to meet it
            reader = streamxf.FileSystemReader(path, read=read)
            error = error_of(lambda: dcp.load({"w": target}, storage_reader=reader))  # noqa: B023
            found[f"{name}, {read}"] = error and f"{type(error).__name__}: {error}"
        if name == "rows":
            assert torch.equal(target.full_tensor(), whole)
        intact = streamxf.load_intact(path, state_dict={"w": target})
        found[f"{name}, intact"] = "" if intact.loaded else str(intact)
    return found


@since("2.8", "has the whole of such a tensor on each rank")
def test_a_target_that_is_not_what_its_metadata_says_is_refused_by_name(tmp_path: Path) -> None:
    for rank, report in enumerate(run_ranks(2, tmp_path, "targets_that_are_not_what_they_say", module=__name__)):
        found = report["targets_that_are_not_what_they_say"]
        assert not any(found[f"rows, {way}"] for way in ("each", "once", "intact"))
        apart = "pieces of the tensor that are apart"
        for case, text in (("columns, each", apart), ("columns, once", apart), ("larger, each", "16 elements")):
            assert found[case].startswith("UnsupportedError")
            assert text in found[case]
            assert "item w]" in found[case]
        assert "apart" in found["columns, intact"]
        assert ("16 elements" in found["larger, intact"]) == (rank == 1)
