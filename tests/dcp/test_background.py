"""Saves by `dcp.async_save`: what they capture, how their failures are told, and saves that overlap."""

import gc
import inspect
import io
import threading
import warnings
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint import staging
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

import streamxf
from streamxf.dcp.staged import StagedObject
from tests.failing import fails_with
from tests.polling import wait_until

from .helpers import KEY, Told, full_chain, load

LIMIT = 300


class Held(dcp.DefaultSavePlanner):
    """Waits before each item is written, until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.go_on = threading.Event(), threading.Event()

    def resolve_data(self, write_item: Any) -> Any:
        self.waits.set()
        assert self.go_on.wait(LIMIT)
        return super().resolve_data(write_item)


class Failing(dcp.DefaultSavePlanner):
    """Raises in one of its methods."""

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__()
        setattr(self, method, fails_with(lambda: error))


class Uncopied(AsyncStager):
    """Stages the caller's own tensors."""

    _synchronize_after_execute = False

    def stage(self, state_dict: Any, **_: Any) -> Any:
        return state_dict

    def close(self) -> None:
        pass


def in_background(state: dict[str, Any], **options: Any) -> Future[Any]:
    future = dcp.async_save(state, **options)
    assert isinstance(future, Future)
    return future


def writer_for(path: Path, **options: Any) -> streamxf.FileSystemWriter:
    return streamxf.FileSystemWriter(path, chain=full_chain(), sync_files=False, **options)


# -- what is captured ------------------------------------------------------------------------------


def sharded(*shape: int) -> DTensor:
    return DTensor.from_local(torch.zeros(shape), init_device_mesh("cpu", (1,)), [Replicate()])


def changing_state() -> dict[str, Any]:
    return {
        **{"tensor": torch.zeros(5000), "scalar": torch.zeros(()), "parameter": torch.nn.Parameter(torch.zeros(50))},
        **{"view": torch.zeros(10)[2:4], "gaps": torch.zeros(10, 10)[:, ::3], "array": np.zeros(3)},
        "nested": {"list": [torch.zeros(2)], "tuple": (torch.zeros(()), io.BytesIO(b"0"))},
        "file": io.BytesIO(b"0"),
    }


def change(state: dict[str, Any]) -> None:
    with torch.no_grad():
        for value in [*state.values(), *state["nested"]["list"], *state["nested"]["tuple"]]:
            if isinstance(value, io.BytesIO):
                value.write(b"1")
            elif not isinstance(value, dict):
                value += 1


def zeros(value: Any) -> bool:
    """Whether there is nothing but zeros in it."""
    match value:
        case dict():
            return all(map(zeros, value.values()))
        case list() | tuple():
            return all(map(zeros, value))
        case io.BytesIO():
            return value.getvalue() == b"0"
        case StagedObject():
            return zeros(value.made())
    return not value.any()


def test_staging_copies_whatever_may_change(tmp_path: Path) -> None:
    for writer in (writer_for(tmp_path), streamxf.FsspecWriter("memory://staged")):
        state = changing_state()
        staged = writer.stage(state)
        change(state)
        assert not zeros(state)
        assert zeros(staged)
        assert type(staged["nested"]["tuple"].made()) is tuple


class Row(NamedTuple):
    left: Any
    right: Any


class Own(dict[str, Any]):
    """It has attributes, too."""


def objects() -> dict[str, Any]:
    """Objects of which torch's staging (2.13.0) makes others, or fails to make a copy."""
    whole, ring, own = torch.arange(4.0), list[Any]([1]), Own(a=1)
    ring.append((ring,))
    own.mark = whole.mark = "mark"  # type: ignore[attr-defined]
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    return {
        **{"size": torch.Size([3, 4]), "list": [torch.Size([2]), 1], "row": Row([1], {"s": torch.Size([1])})},
        **{"dicts": (Counter("aab"), OrderedDict(b=1, a=2), defaultdict(list, a=[1]), own), "ring": (ring,)},
        **{"views": (whole, whole[1:3]), "parameter": (torch.nn.Parameter(torch.ones(2)),), "quantized": quantized},
        **{"deep": [torch.ones(1), {"sparse": (torch.eye(2).to_sparse(), quantized)}]},
    }


def check_objects(path: Path) -> None:
    allowed = [Row, Own, list, defaultdict]
    found: Any = streamxf.load_intact(path, keys=KEY, safe_globals=allowed).state_dict
    given: Any = objects()
    for name in ("size", "list", "row", "dicts"):
        assert found[name] == given[name]
        assert list(map(type, found[name])) == list(map(type, given[name]))
    assert type(found["row"].right["s"]) is type(found["list"][0]) is type(found["size"]) is torch.Size
    whole, view = found["views"]
    assert found["dicts"][3].mark == whole.mark == "mark"
    assert found["ring"][0][1][0] is found["ring"][0]
    assert whole.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()
    assert whole.tolist() == [0, 1, 2, 3]
    assert type(found["parameter"][0]) is torch.nn.Parameter
    sparse, quantized = found["deep"][1]["sparse"]
    assert sparse.to_dense().equal(torch.eye(2))
    assert quantized.equal(given["quantized"])
    assert found["quantized"].equal(given["quantized"])


@pytest.mark.usefixtures("group")
def test_objects_are_stored_as_a_save_in_the_foreground_stores_them(tmp_path: Path) -> None:
    dcp.save(objects(), storage_writer=writer_for(tmp_path / "save"))
    check_objects(tmp_path / "save")
    state = objects()
    future = in_background(state, storage_writer=writer_for(tmp_path / "thread"))
    state["list"].append(2)
    state["row"].left.append(2)
    state["dicts"][0]["a"] = 9
    state["views"][0].zero_()
    state["deep"][1]["sparse"][0].values().zero_()
    future.result(LIMIT)
    check_objects(tmp_path / "thread")


def default_stager(share_memory: bool = False) -> Any:
    return staging.DefaultStager(staging.StagingOptions(False, share_memory, False, False))


STAGERS: dict[str, Callable[[], dict[str, Any]]] = {
    "the writer": dict,
    "DefaultStager": lambda: {"async_stager": default_stager()},
    "shared memory": lambda: {"async_stager": default_stager(share_memory=True)},
}


def takes(option: str) -> pytest.MarkDecorator:
    known = inspect.signature(dcp.async_save).parameters
    return pytest.mark.skipif(option not in known, reason=f"this torch's async_save takes no {option}")


takes_stagers = takes("async_stager")
stagers = [pytest.param(name, marks=[takes_stagers] if name != "the writer" else []) for name in STAGERS]


@pytest.mark.parametrize("stager", stagers)
def test_what_tensors_hold_when_the_call_returns_is_saved_without_a_warning(tmp_path: Path, stager: str) -> None:
    state = {"weight": torch.zeros(5000), "step": torch.zeros(()), "count": 0}
    planner = Held()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        future = in_background(state, storage_writer=writer_for(tmp_path), planner=planner, **STAGERS[stager]())
        assert planner.waits.wait(LIMIT)
        state["weight"] += 1
        state["step"] += 1
        planner.go_on.set()
        future.result(LIMIT)
    found = load(state, tmp_path)
    assert not found["weight"].any()
    assert not found["step"].any()


def changed_meanwhile(path: Path, state: dict[str, Any], change: Callable[[], object], thread: bool = False) -> None:
    """Save tensors without a copy, and change them before the first is written."""
    planner, writer = Held(), writer_for(path)
    with ThreadPoolExecutor(1) as pool:
        if thread:
            future = pool.submit(dcp.save, state, storage_writer=writer, planner=planner)
        else:
            future = in_background(state, storage_writer=writer, planner=planner, async_stager=Uncopied())
        assert planner.waits.wait(LIMIT)
        change()
        planner.go_on.set()
        future.result(LIMIT)


@pytest.mark.parametrize("thread", [True, pytest.param(False, marks=takes_stagers)])
def test_tensors_that_change_while_they_are_saved_are_named_in_a_warning(tmp_path: Path, thread: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, bias=False))

    def train() -> None:
        model(torch.ones(1, 8)).sum().backward()
        torch.optim.AdamW(model.parameters()).step()

    state = {"model": model.state_dict(), "frozen": torch.zeros(9), "step": 3}
    with pytest.warns(UserWarning, match="dcp.async_save makes") as caught:
        changed_meanwhile(tmp_path, state, train, thread)
    (text,) = [str(one.message) for one in caught if "changed while" in str(one.message)]
    assert text.startswith("tensors changed while they were saved: model.0.bias, model.0.weight, model.1.weight. This ")
    assert (tmp_path / ".metadata").exists()


@takes_stagers
@pytest.mark.usefixtures("group")
def test_so_are_sharded_ones(tmp_path: Path) -> None:
    state = {"weight": sharded(50), "bias": sharded(), "frozen": sharded(50)}

    def change() -> None:
        state["weight"].add_(1)
        state["bias"].to_local().add_(1)

    with pytest.warns(UserWarning, match="saved: bias, weight. This"):
        changed_meanwhile(tmp_path, state, change)


@takes_stagers
@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:Please use DTensor")
def test_so_are_the_shards_of_a_sharded_tensor(tmp_path: Path) -> None:
    """Which refuses to be asked for its version, as other classes of tensors may."""
    spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu"])
    state = {name: sharded_tensor.zeros(spec, 4, 3) for name in ("weight", "frozen")}
    with pytest.warns(UserWarning, match="saved: weight. This"):
        changed_meanwhile(tmp_path, state, lambda: state["weight"].local_shards()[0].tensor.add_(1))


@takes_stagers
def test_many_of_them_are_counted(tmp_path: Path) -> None:
    state = {f"{number}\n": torch.zeros(2) for number in range(5)}
    with pytest.warns(UserWarning, match=r": 0\\n, 1\\n, 2\\n and 2 more\."):
        changed_meanwhile(tmp_path, state, lambda: torch._foreach_add_(list(state.values()), 1))


@takes_stagers
def test_the_warning_fails_the_save_where_warnings_are_errors(tmp_path: Path) -> None:
    state = {"weight": torch.zeros(50)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        with pytest.raises(CheckpointException, match="tensors changed while they were saved: weight"):
            changed_meanwhile(tmp_path, state, lambda: state["weight"].add_(1))
    assert not list(tmp_path.iterdir())


def test_inference_tensors_are_not_counted_by_torch(tmp_path: Path) -> None:
    with torch.inference_mode():
        state = {"weight": torch.ones(50)}
    dcp.save(state, storage_writer=writer_for(tmp_path))
    assert load({"weight": torch.zeros(50)}, tmp_path)["weight"].all()


# -- failures --------------------------------------------------------------------------------------


@pytest.fixture
def told() -> Iterator[Told]:
    with Told() as handler:
        yield handler


@pytest.mark.parametrize("method", ["set_up_planner", "create_local_plan", "resolve_data", "finish_plan"])
def test_a_failure_that_nobody_asks_for_is_logged_once(tmp_path: Path, told: Told, method: str) -> None:
    writer = writer_for(tmp_path)
    for checkpoint_id in (None, str(tmp_path / "other")):
        planner = Failing(method, ValueError("torn\ncable"))
        in_background({"weight": torch.ones(5)}, storage_writer=writer, planner=planner, checkpoint_id=checkpoint_id)
        text = told.wait()
        assert text.startswith(r"a save in the background failed: rank 0: ValueError: torn\ncable")
        if method == "resolve_data":
            assert "; while writing item weight of file __0_0_" in text
    assert [record.levelname for record in told.records] == ["ERROR"] * 2
    in_background({"weight": torch.ones(5)}, storage_writer=writer).result(LIMIT)
    assert len(told.records) == 2
    assert load({"weight": torch.zeros(5)}, tmp_path / "other")["weight"].all()


@takes("use_collectives")
def test_an_error_that_no_rank_exchanged_is_logged(tmp_path: Path, told: Told) -> None:
    planner = Failing("resolve_data", KeyboardInterrupt("stop"))
    writer = writer_for(tmp_path)
    dcp.async_save({"weight": torch.ones(5)}, storage_writer=writer, planner=planner, use_collectives=False)
    assert told.wait().startswith("a save in the background failed: KeyboardInterrupt: stop; while writing item weight")


def test_a_save_that_somebody_waits_for_is_not_logged(tmp_path: Path, told: Told) -> None:
    def training() -> None:
        for _ in range(2):
            with pytest.raises(CheckpointException):
                dcp.save({"w": torch.ones(5)}, storage_writer=writer, planner=Failing("resolve_data", ValueError()))
        in_background({"w": torch.ones(5)}, storage_writer=writer).result(LIMIT)
        raise RuntimeError("of the training itself")

    writer = writer_for(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(training).exception(LIMIT)
    assert str(error) == "of the training itself"
    nobody_waits: Any = Failing("resolve_data", ValueError("of the last save"))
    in_background({"w": torch.ones(5)}, storage_writer=writer_for(tmp_path / "other"), planner=nobody_waits)
    assert "of the last save" in told.wait()  # what was to be logged before has been
    assert len(told.records) == 1
    assert load({"w": torch.zeros(5)}, tmp_path)["w"].all()


def test_a_writer_keeps_no_memory_of_a_save_that_failed(tmp_path: Path, told: Told) -> None:
    writer = writer_for(tmp_path)
    staged: list[Any] = []
    stage = writer.stage
    writer.stage = lambda state: staged.append(stage(state)) or staged[-1]  # type: ignore[method-assign, func-returns-value]
    planner: Any = Failing("resolve_data", ValueError("x"))
    in_background({"weight": torch.ones(5)}, storage_writer=writer, planner=planner)
    told.wait()
    gone = weakref.ref(staged.pop()["weight"])
    del planner
    told.records.clear()

    def is_gone() -> bool:
        gc.collect()
        return gone() is None

    wait_until(is_gone)  # the pool's thread may be about to let go of it


# -- two at the same time --------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["async", "sync", pytest.param("other stager", marks=takes_stagers), "reset"])
def test_a_save_through_a_writer_that_is_at_work_waits(tmp_path: Path, way: str) -> None:
    writer, planner = writer_for(tmp_path / "none"), Held()
    first, second = tmp_path / "first", tmp_path / "second"
    state = {"weight": torch.full((5000,), 1.0)}
    one = in_background(state, storage_writer=writer, planner=planner, checkpoint_id=first)
    assert planner.waits.wait(LIMIT)
    state["weight"] += 1

    def go_on() -> None:
        order.append("first")
        planner.go_on.set()

    order: list[str] = []
    timer = threading.Timer(0.3, go_on)
    timer.start()
    if way == "reset":
        writer.reset(second)
        dcp.save(state, storage_writer=writer)
    elif way == "sync":
        dcp.save(state, storage_writer=writer, checkpoint_id=second)
    else:
        options = STAGERS["DefaultStager" if way == "other stager" else "the writer"]()
        in_background(state, storage_writer=writer, checkpoint_id=second, **options).result(LIMIT)
    order.append("second")
    assert order == ["first", "second"]
    one.result(LIMIT)
    timer.join()
    assert (load(state, first)["weight"] == 1).all()
    assert (load(state, second)["weight"] == 2).all()


@pytest.mark.parametrize("asked", [True, False])
def test_a_failure_does_not_stop_the_next_save(tmp_path: Path, told: Told, asked: bool) -> None:
    """Raised there, too, it would cost another checkpoint."""
    writer = writer_for(tmp_path)
    failing = Failing("resolve_data", OSError(28, "No space left on device"))
    future = in_background({"w": torch.ones(5)}, storage_writer=writer, planner=failing)
    assert "No space left on device" in told.wait()
    if asked:
        with pytest.raises(CheckpointException, match="No space left on device"):
            future.result(LIMIT)
    in_background({"w": torch.ones(5)}, storage_writer=writer).result(LIMIT)
    assert load({"w": torch.zeros(5)}, tmp_path)["w"].all()
