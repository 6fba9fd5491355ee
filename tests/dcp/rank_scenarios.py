"""What each rank does in the tests with several ranks. Every function here runs in a process of its own."""

import gc
import json
import os
import shutil
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import streamxf
from streamxf import engine
from streamxf.errors import StreamxfError
from streamxf.storage.local import LocalStorage
from tests.altered import flip

from .helpers import KEY, OTHER_KEY, full_chain, load_into, raw_bytes
from .process_groups import join_group, start_ranks


def run_ranks(
    count: int, folder: Path, *scenarios: str, module: str = __name__, limit: float = 600
) -> list[dict[str, Any]]:
    """Run scenarios of a module, one after the other, on `count` ranks; return what each rank reported."""
    meeting = folder / f"meeting {count} {'+'.join(scenarios)[:99]}"
    arguments = (count, str(meeting), str(folder), module, scenarios)
    context = start_ranks(_rank, arguments, count)
    try:
        for process in context.processes:
            process.join(limit)
        alive = [number for number, process in enumerate(context.processes) if process.is_alive()]
        assert not alive, f"ranks {alive} hang"
        context.join(timeout=10)  # raises what a rank raised
        assert [process.exitcode for process in context.processes] == [0] * count
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
                process.join()
    return [json.loads((folder / f"report {rank}.json").read_text()) for rank in range(count)]


def _rank(rank: int, count: int, meeting: str, folder: str, module: str, scenarios: tuple[str, ...]) -> None:
    join_group(rank, count, meeting)
    report: dict[str, Any] = {}
    try:
        for name in scenarios:
            scenario: Callable[[Path], Any] = getattr(import_module(module), name)
            try:
                report[name] = scenario(Path(folder))
            except BaseException:
                report[name] = {"failed": traceback.format_exc()}
                raise
            dist.barrier()
    finally:
        (Path(folder) / f"report {rank}.json").write_text(json.dumps(report))
        # A model refers to its process groups in cycles. A group that outlives this point keeps threads of gloo, and
        # one that lets go of a tensor while the interpreter goes down aborts the process (pytorch/pytorch#179291).
        gc.collect()
        dist.destroy_process_group()
        gc.collect()


# -- a sharded model -------------------------------------------------------------------------------


def model_and_optimizer(seed: int, steps: int = 1) -> tuple[nn.Module, torch.optim.Optimizer]:
    """FSDP2 over all ranks. Sizes that no number of ranks divides."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(13, 31), nn.LayerNorm(31), nn.Linear(31, 7, bias=False))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        model(torch.ones(4, 13)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def sharded_state(seed: int, steps: int = 1) -> dict[str, Any]:
    weights, moments = get_state_dict(*model_and_optimizer(seed, steps))
    return {"model": weights, "optimizer": moments, "step": seed}


def whole(value: Any) -> Any:
    """Every tensor whole, on every rank."""
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def flat(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    if isinstance(value, dict):
        return {key: item for part in value for key, item in flat(value[part], f"{name}.{part}").items()}
    return {name: value} if isinstance(value, torch.Tensor) else {}


def save_model(folder: Path) -> Any:
    """Save, with everything whole beside it to compare with."""
    state = sharded_state(3)
    writer = streamxf.FileSystemWriter(folder / "model", _extensions=full_chain(), thread_count=2)
    for _ in range(2):
        dcp.save(state, storage_writer=writer)
    if dist.get_rank() == 0:
        torch.save(whole(state), folder / "whole.pt")
    else:
        whole(state)
    return {"files": sorted(file.name for file in (folder / "model").iterdir())}


def load_model(folder: Path) -> Any:
    """Load into a model of other values, over however many ranks there are, and compare bit for bit."""
    state = load_into(sharded_state(8, steps=2), streamxf.FileSystemReader(folder / "model", keys=KEY))
    found, wanted = whole(state), torch.load(folder / "whole.pt", weights_only=False)
    ours, theirs = flat(found), flat(wanted)
    same = [name for name in theirs if torch.equal(raw_bytes(ours[name]), raw_bytes(theirs[name]))]
    return {"tensors": len(theirs), "same": len(same), "names": list(ours) == list(theirs), "step": found["step"]}


def raw_shards(folder: Path) -> Any:
    """Save raw, load, and map the shards that FSDP cut: together they are the tensors."""
    state = sharded_state(3)
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(folder / "raw", chain="raw"))
    wanted = flat(whole(state))
    state = load_into(sharded_state(8, steps=2), streamxf.FileSystemReader(folder / "raw"))
    found = flat(whole(state))
    loaded = [name for name in wanted if torch.equal(raw_bytes(found[name]), raw_bytes(wanted[name]))]
    mapped = []
    with streamxf.Checkpoint(folder / "raw") as checkpoint:
        for name in wanted:
            handle: Any = checkpoint[name.removeprefix(".")]
            shards = [chunk.mmap() for chunk in handle.chunks]
            together = torch.cat(shards) if handle.shape else shards[0]
            mapped += [name] if torch.equal(raw_bytes(together), raw_bytes(wanted[name])) else []
        several = sum(len(checkpoint[name.removeprefix(".")].chunks) > 1 for name in wanted)  # type: ignore[union-attr]
    return {"tensors": len(wanted), "loaded": len(loaded), "mapped": len(mapped), "several": several}


# -- errors ----------------------------------------------------------------------------------------


def describe(action: Callable[[], Any]) -> dict[str, Any]:
    """What an action ended in: the ranks that failed, and their errors' classes."""
    try:
        action()
    except CheckpointException as error:
        failures = {str(rank): failure for rank, (failure, _) in error.failures.items()}
        return {
            "kinds": {rank: type(failure).__name__ for rank, failure in failures.items()},
            "typed": all(isinstance(failure, StreamxfError) for failure in failures.values()),
            "items": {rank: getattr(failure, "item", None) for rank, failure in failures.items()},
        }
    return {"kinds": {}}


def wrong_key_on_one_rank(folder: Path) -> Any:
    state = {"w": torch.zeros(4), "mine": torch.zeros(3)}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(folder / "keyed", _extensions=full_chain()))
    key = OTHER_KEY if dist.get_rank() == 1 else KEY
    return describe(lambda: dcp.load(state, storage_reader=streamxf.FileSystemReader(folder / "keyed", keys=key)))


def wrong_key_on_the_coordinator(folder: Path) -> Any:
    key = OTHER_KEY if dist.get_rank() == 0 else KEY
    state = {"w": torch.zeros(4)}
    return describe(lambda: dcp.load(state, storage_reader=streamxf.FileSystemReader(folder / "keyed", keys=key)))


def damaged_item_on_one_rank(folder: Path) -> Any:
    """Each rank has a tensor of its own; that of rank 1 is damaged, and only rank 1 reads it."""
    rank = dist.get_rank()
    state = {f"of rank {rank}": torch.randn(2000)}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(folder / "damaged", _extensions=full_chain()))
    if rank == 1:
        (file,) = (folder / "damaged").glob("__1_*.distcp")
        flip(file)
    dist.barrier()
    return describe(lambda: dcp.load(state, storage_reader=streamxf.FileSystemReader(folder / "damaged", keys=KEY)))


def failing_write_on_one_rank(folder: Path) -> Any:
    """And what was saved before still loads on all ranks."""
    rank = dist.get_rank()
    old, new = ({f"of rank {rank}": torch.full((50,), float(rank + plus))} for plus in (0, 1))
    dcp.save(old, storage_writer=streamxf.FileSystemWriter(folder / "full disk", _extensions=full_chain()))
    writer = streamxf.FileSystemWriter(folder / "full disk", _extensions=full_chain())
    full = OSError(28, "No space left on device")
    with patch.object(LocalStorage, "create", side_effect=full) if rank == 1 else nullcontext():
        report = describe(lambda: dcp.save(new, storage_writer=writer))
    found = {name: torch.zeros(50) for name in old}
    dcp.load(found, storage_reader=streamxf.FileSystemReader(folder / "full disk", keys=KEY))
    report["old loads"] = all(torch.equal(found[name], old[name]) for name in old)
    return report


# -- without collectives, and in the background ----------------------------------------------------


def without_collectives(folder: Path) -> Any:
    rank = dist.get_rank()
    state = {"w": torch.full((50,), float(rank))}
    writer = streamxf.FileSystemWriter(folder / "local", _extensions=full_chain(), group="ab" * 16)
    dcp.save(state, storage_writer=writer, use_collectives=False)
    dist.barrier()
    found = load_into({"w": torch.zeros(50)}, streamxf.FileSystemReader(folder / "local", keys=KEY))
    index = streamxf.Checkpoint(folder / "local", rank=rank, keys=KEY).metadata[0].index
    known = index is not None and (index.ranks, index.group) == (dist.get_world_size(), "ab" * 16)
    return {"same": known and torch.equal(found["w"], state["w"]), "groups": _groups_of(folder / "own", state)}


SIGNER = streamxf.SigningKey(bytes(range(2, 34)))


def mixed_ranks(folder: Path) -> Any:
    """Two saves of one sharded tensor; then some ranks' files of one are where the other's were. What a load says."""
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))

    def sharded(value: float) -> dict[str, Any]:
        return {"w": distribute_tensor(torch.full((8,), value), mesh, [Shard(0)])}

    for number, name in enumerate(("a", "b"), 1):
        writer = streamxf.FileSystemWriter(folder / name, chain="zstd", signer=SIGNER)
        dcp.save(sharded(number), storage_writer=writer, use_collectives=False)
    dist.barrier()
    if rank == 0:
        shutil.copytree(folder / "a", folder / "mixed")
        for file in (folder / "mixed").glob("__1*"):
            file.unlink()
        for file in (folder / "b").glob("__1*"):
            shutil.copy(file, folder / "mixed")
    dist.barrier()
    found: dict[str, Any] = {}
    for name, terms in product(("a", "mixed"), ({}, {"trust": SIGNER.verify_key})):
        target, text = sharded(0), ""
        try:
            dcp.load(target, storage_reader=streamxf.FileSystemReader(folder / name, **terms))
        except CheckpointException as error:
            text = " ".join(
                f"{rank} {type(failure).__name__} {failure}" for rank, (failure, _) in error.failures.items()
            )
        found[f"{name} {'signed' if terms else 'open'}"] = text, target["w"].to_local().tolist()
    return found


def _groups_of(path: Path, state: dict[str, Any]) -> list[Any]:
    """What says which save each of four is, the second over the first, and the last of a group of this rank alone."""
    alone, found = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()], list[Any]()
    for number, group in enumerate([None, None, None, alone]):
        folder = path if number < 2 else path.with_name(f"own {number}{f' of {dist.get_rank()}' if group else ''}")
        writer = streamxf.FileSystemWriter(folder)
        dcp.save(state, storage_writer=writer, use_collectives=False, process_group=group)
        dist.barrier()
        index = streamxf.Checkpoint(folder, rank=0 if group else dist.get_rank()).metadata[0].index
        found.append(None if index is None else [index.group, index.ranks])
    return [*found, streamxf.verify(path).ok]


def async_by_thread(folder: Path) -> Any:
    return _async(folder / "thread", AsyncCheckpointerType.THREAD)


def async_by_process(folder: Path) -> Any:
    return _async(folder / "process", AsyncCheckpointerType.PROCESS)


class NotesPriorities(dcp.DefaultSavePlanner):
    """Keeps, in a file, the priorities of the thread that writes and of a worker."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def resolve_data(self, write_item: Any) -> Any:
        def priority() -> int:
            return os.getpriority(os.PRIO_PROCESS, 0)

        worker = engine.shared().submit(engine.Job(priority)).result(300)
        self.file.write_text(json.dumps([priority(), worker]))
        return super().resolve_data(write_item)


def _async(folder: Path, kind: AsyncCheckpointerType) -> Any:
    """Two saves in the background by one writer; what the tensors hold when the call returns is what is saved."""
    state = {"model": sharded_state(4)["model"], "own": torch.full((5,), 1.0), "step": 1}
    wanted = {name: tensor.clone() for name, tensor in flat(whole(state)).items()}
    writer = streamxf.FileSystemWriter(folder, _extensions=full_chain(), thread_count=2)
    file = folder.with_name(f"priorities {kind.value} {dist.get_rank()}")
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if kind == AsyncCheckpointerType.PROCESS:
        nice = max(10, nice)
    for _ in range(2):
        planner = NotesPriorities(file)
        future = dcp.async_save(state, storage_writer=writer, planner=planner, async_checkpointer_type=kind)
        future.result(300)
    with torch.no_grad():
        for tensor in flat(state).values():
            tensor.zero_()
    dcp.load(state, storage_reader=streamxf.FileSystemReader(folder, keys=KEY))
    found = flat(whole(state))
    dist.barrier()
    return {
        "same": all(torch.equal(found[name], wanted[name]) for name in wanted),
        "tensors": len(wanted),
        "files": len(list(folder.glob("*.distcp"))),
        "priorities": json.loads(file.read_text()) == [nice, nice],
    }
