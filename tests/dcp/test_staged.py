"""What `dcp.async_save` stores is, byte for byte, what `dcp.save` would have stored at the call; or neither saves."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper
from torch.utils._python_dispatch import return_and_correct_aliasing

import streamxf
from streamxf.errors import UnsupportedError

from .helpers import error_of, run_as_main, since
from .rank_scenarios import run_ranks
from .test_more_than_elements import ZEROS, per_tensor

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.quantize:UserWarning", "ignore:torch.ao:DeprecationWarning", "ignore:Please use DTensor"
)


def quantized(storage: int | None = None) -> torch.Tensor:
    tensor = per_tensor(ZEROS, 0.5, 3)
    if storage is not None:
        tensor.untyped_storage().resize_(storage)
    return tensor


def save(state: dict[str, Any], path: Path, **options: Any) -> None:
    dcp.async_save(state, **{"storage_writer": streamxf.FileSystemWriter(path, chain=[])} | options).result(300)  # type: ignore[union-attr]


def stored(path: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(path.glob("*.distcp"))]


def check_alike(folder: Path, make: Callable[[], dict[str, Any]], **options: Any) -> None:
    """Each of a new state: what was made of one by a save could be in the next."""
    front = streamxf.FileSystemWriter(folder / "front", chain=[])
    dcp.save(make(), storage_writer=front, planner=options.get("planner"))
    save(make(), folder / "back", **options)
    assert stored(folder / "back") == stored(folder / "front") != []
    one, other = (dcp.FileSystemReader(folder / each).read_metadata() for each in ("back", "front"))
    assert one.state_dict_metadata == other.state_dict_metadata


class Sampler:
    """Says in its state how often it was resumed, as seeds of workers are made of."""

    def __init__(self) -> None:
        self.resumed = 0

    def __setstate__(self, state: dict[str, int]) -> None:
        self.resumed = state["resumed"] + 1


class Sub(torch.Tensor):
    tensor = "an attribute"


class Wrapper(torch.Tensor):
    """Codes and a scale, as quantized weights have them."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)  # type: ignore[attr-defined]
        made.codes, made.scale = codes, scale
        return made

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return return_and_correct_aliasing(func, args, kwargs or {}, cls(args[0].codes, args[0].scale))
        return func(*[each.codes * each.scale if isinstance(each, cls) else each for each in args], **kwargs or {})


def objects() -> dict[str, Any]:
    return {
        "sampler": Sampler(),
        "with a tensor": (torch.ones(3), Sampler()),
        "list": [quantized(), quantized()],
        "nested": [{"list": [Sampler()], "weights": [quantized()]}, 1],
        "sub": torch.ones(3).as_subclass(Sub),
        "wrapper": Wrapper(torch.ones(4, dtype=torch.int8), torch.ones(1)),
        "trained": torch.nn.Parameter(torch.ones(2)),
        "parameter": torch.nn.Parameter(Wrapper(torch.ones(2, dtype=torch.int8), torch.ones(1)), requires_grad=False),
    }


@pytest.mark.parametrize("planner", [None, streamxf.SavePlanner])
def test_it_is_what_a_save_in_the_foreground_stores(tmp_path: Path, planner: Any) -> None:
    check_alike(tmp_path, objects, planner=planner and planner())


def test_so_it_is_by_a_planner_that_makes_one_item_of_a_dictionary(tmp_path: Path) -> None:
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    check_alike(tmp_path, lambda: {"deep": {"n": [1], "w": quantized()}, "list": [quantized()]}, planner=planner)


def shards() -> dict[str, Any]:
    """What ranks have parts of, in ways of which torch's own staging (2.13.0) copies few, and sends one less."""
    mesh, spec = init_device_mesh("cpu", (1,)), ChunkShardingSpec(dim=0, placements=["rank:0/cpu"])
    of = partial(DTensor.from_local, device_mesh=mesh, placements=[Shard(0)])
    rows = LocalShardsWrapper([torch.full((2, 3), 1.0), torch.full((1, 3), -1.0)], [(0, 0), (2, 0)])
    return {
        "within rows": of(torch.arange(40.0).view(4, 10)[:, 2:5]),
        "computed": 2 * torch.nn.Parameter(of(torch.ones(2))),
        "trained": torch.nn.Parameter(of(torch.ones(2))),
        "imaginary": of(conjugates()["imaginary"]),
        "wrapper": of(Wrapper(torch.ones(4, dtype=torch.int8), torch.ones(1))),
        "scalar": of(torch.ones(()), placements=[Replicate()]),
        "table": of(rows, shape=torch.Size((3, 3)), stride=(3, 1)),
        "sharded": sharded_tensor.ones(spec, 4, 3),
    }


@pytest.mark.usefixtures("group")
@since("2.8", "cannot make such shards")
def test_so_it_is_of_shards_that_change_at_once(tmp_path: Path) -> None:
    check_alike(tmp_path, shards)
    future: Any = dcp.async_save(state := shards(), storage_writer=streamxf.FileSystemWriter(tmp_path, chain=[]))
    for value in state.values():
        local = value.to_local() if isinstance(value, DTensor) else value
        for part in local.local_shards() if hasattr(local, "local_shards") else [local]:
            getattr(part, "tensor", part).detach().zero_()
    future.result(300)
    assert stored(tmp_path) == stored(tmp_path / "front")
    save({"w": AsyncCollectiveTensor(torch.ones(3))}, tmp_path / "under way")
    save({"w": torch.ones(3)}, tmp_path / "done")
    assert stored(tmp_path / "under way") == stored(tmp_path / "done")


def conjugates() -> dict[str, Any]:
    return {"conjugate": torch.tensor([1j]).conj(), "imaginary": torch.tensor([1j, 2j]).conj().imag[1:]}


def check_alike_by_path(folder: Path, make: Callable[[], dict[str, Any]], **options: Any) -> None:
    with streamxf.install([]):
        dcp.save(make(), checkpoint_id=folder / "front by path")
        save(make(), folder, storage_writer=None, checkpoint_id=folder / "by path", **options)
    assert stored(folder / "by path") == stored(folder / "front by path") != []


def test_after_install_so_it_is_by_a_path(tmp_path: Path) -> None:
    """torch copies before it makes the writer, with other numbers for some of these."""
    check_alike_by_path(tmp_path, lambda: objects() | conjugates())


class Looking(dcp.DefaultSavePlanner):
    """Stores how often what it is asked for was resumed."""

    def transform_object(self, write_item: Any, object: Any) -> Any:
        return super().transform_object(write_item, [object.resumed] if isinstance(object, Sampler) else object)


def test_a_planner_of_its_own_gets_the_object_itself(tmp_path: Path) -> None:
    save({"sampler": Sampler(), "with a tensor": (Sampler(),)}, tmp_path, planner=Looking())
    with streamxf.Checkpoint(tmp_path, safe_globals=[Sampler]) as checkpoint:
        assert checkpoint["sampler"].read() == [1]
        assert checkpoint["with a tensor"].read()[0].resumed == 2  # once more by this load


def main_states_by_process(folder: Path) -> None:
    """Run by the next test. Classes of the main script are imported there again, under another name."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    import __main__

    check_alike(folder, __main__.state, async_checkpointer_type=AsyncCheckpointerType.PROCESS)
    check_alike_by_path(folder, __main__.state, async_checkpointer_type=AsyncCheckpointerType.PROCESS)
    dist.destroy_process_group()


MAIN = """
import torch
from tests.dcp import test_background, test_staged
class Config:
    rate = 0.1
class Own(torch.Tensor):
    pass
def state():
    others = test_background.objects(), test_staged.shards()
    return {**test_staged.objects(), "others": [*others], "config": Config(), "own": torch.ones(3).as_subclass(Own)}
"""


@pytest.mark.slow
@since("2.8", "cannot make such shards")
def test_by_process_it_names_classes_of_the_main_script_as_they_are(tmp_path: Path) -> None:
    run_as_main(main_states_by_process, tmp_path, MAIN)


# -- what cannot be stored ------------------------------------------------------------------------


class Growing:
    """Another thread adds to it."""

    def __reduce__(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


def freed(size: int) -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(size)
    return tensor


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an object": (Growing, "changed size during iteration"),
    "freed": (lambda: freed(0), "the tensor's storage was freed or cut: it has 0 bytes"),
    "cut": (lambda: freed(12), "the tensor's storage was freed or cut: it has 12 bytes"),
    "freed, quantized": (lambda: quantized(storage=0), "freed or cut"),
    "meta": (lambda: torch.ones(4, device="meta"), "on the device 'meta'"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "of layout torch.sparse_coo"),
    "compressed": (lambda: torch.eye(3).to_sparse_csr(), "of layout torch.sparse_csr"),
    "not copied": (lambda: torch.ones(4, dtype=torch.uint8).view(torch.uint4), "not implemented for 'UInt4'"),
    "uninitialized": (torch.nn.UninitializedParameter, "an uninitialized parameter"),
}


def says(error: BaseException | None, text: str) -> bool:
    told = "\n".join([str(error), *getattr(error, "__notes__", [])])
    return text in told and "item deep.w" in told


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_save_would_refuse_is_refused_at_the_call_by_name(tmp_path: Path, case: str) -> None:
    make, text = REFUSED[case]
    writer = streamxf.FileSystemWriter(tmp_path)
    assert says(error_of(lambda: dcp.async_save({"deep": {"w": make()}, "v": 1}, storage_writer=writer)), text)
    assert not [*tmp_path.iterdir()]
    save({"v": 1}, tmp_path, storage_writer=writer)


def refused_on_one_rank(folder: Path) -> dict[str, Any]:
    found = {}
    for kind in AsyncCheckpointerType:
        for case in ("an object", "freed", "not copied"):
            make, text = REFUSED[case]
            state = {"deep": {"w": make() if dist.get_rank() else [1]}}
            path = folder / f"{kind.value} {case}"
            error = error_of(lambda: save(state, path, async_checkpointer_type=kind))  # noqa: B023
            found[f"{kind.value} {case}"] = says(error, text) and not [*path.glob(".metadata")]
    return found


@pytest.mark.slow
@since("2.9", "has a background process that ends with a failed save, and the next save waits for it forever")
def test_if_one_rank_has_it_the_save_fails_on_every_rank(tmp_path: Path) -> None:
    for report in run_ranks(2, tmp_path, "refused_on_one_rank", module=__name__):
        assert [*report["refused_on_one_rank"].values()] == [True] * 6


def differing_in_the_background(folder: Path) -> list[str]:
    shared = [1, 2]
    rank = dist.get_rank()
    state = {"rank": [rank], "one": {"a": (shared, shared)} if rank else {"a": ([1, 2], [1, 2])}}
    with warnings.catch_warnings(record=True, action="always") as caught:
        save(state, folder / "saved")
    return [str(one.message) for one in caught if "different values" in str(one.message)]


@pytest.mark.slow
def test_objects_of_ranks_are_compared(tmp_path: Path) -> None:
    first, _ = run_ranks(2, tmp_path, "differing_in_the_background", module=__name__)
    (text,) = first["differing_in_the_background"]
    assert "under the same names: rank. Of each" in text


class Silent(streamxf.FileSystemWriter):
    def storage_meta(self) -> Any:
        return None


@pytest.mark.parametrize("state", [{"o": [1]}, {"w": quantized()}, {"l": [quantized()]}])
def test_what_was_staged_is_stored_by_the_writer_that_staged_it_or_refused(tmp_path: Path, state: Any) -> None:
    stager, writer = streamxf.FileSystemWriter(tmp_path), dcp.FileSystemWriter(tmp_path / "torch")
    error = error_of(lambda: dcp.save(stager.stage(state), storage_writer=writer))
    assert isinstance(error, UnsupportedError)
    assert "one of streamxf's writers staged this for itself" in str(error)
    assert error.item == {"o": "o", "w": "w", "l": "l.0"}[next(iter(state))]
    if "o" in state:
        save(state, tmp_path, storage_writer=Silent(tmp_path))
        assert streamxf.Checkpoint(tmp_path)["o"].read() == [1]
    else:
        assert isinstance(error_of(lambda: save(state, tmp_path, storage_writer=Silent(tmp_path))), UnsupportedError)


CHANGES: dict[str, tuple[Any, Any]] = {
    "an object before": ([1], torch.ones(3)),
    "no dimensions": (torch.zeros(3), torch.tensor(5.0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_that_torch_keeps_is_no_other_value(tmp_path: Path, change: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    writer = streamxf.FileSystemWriter(tmp_path, chain=[], cache_staged_state_dict=True)
    for value in CHANGES[change]:
        save({"v": torch.ones(2), "x": value}, tmp_path, storage_writer=writer)
    with streamxf.Checkpoint(tmp_path) as checkpoint:
        found, wanted = checkpoint["x"].read(), CHANGES[change][1]
    assert torch.equal(found, wanted) if isinstance(wanted, torch.Tensor) else found == wanted
