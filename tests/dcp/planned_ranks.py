"""What each rank does in tests of `SavePlanner` over gloo."""

import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import streamxf
from streamxf.dcp import columns as dcp_columns

from .helpers import index_of, load_into
from .rank_scenarios import flat, whole


def state_of(placements: str) -> dict[str, Any]:
    """A nested state; `placements` says whether DTensors are cut along rows, columns or both, or lie on replicas."""
    count = dist.get_world_size()
    torch.manual_seed(5)
    wide = (count // 2, 2) if count % 2 == 0 else (count, 1)
    mesh = init_device_mesh("cpu", wide if placements in ("both", "hybrid") else (count,))
    how = {"rows": [Shard(0)], "columns": [Shard(1)], "both": [Shard(0), Shard(1)], "hybrid": [Replicate(), Shard(0)]}
    made = {
        f"layer {number}": distribute_tensor(torch.randn(7 + number, 9), mesh, how[placements]) for number in range(5)
    }
    few = distribute_tensor(torch.randn(2, 4), init_device_mesh("cpu", (count,)), [Shard(0)])  # fewer rows than ranks
    return {
        "model": {**made, "few": few, "none": torch.empty(0, 3), "norm": torch.ones(6)},
        "steps": [torch.tensor(3), {"rate": 0.1}],
        "epoch": 4,
    }


def blank(state: Any) -> Any:
    for tensor in flat(state).values():
        with torch.no_grad():
            tensor.zero_()
    return state


def boxes_of(folder: Path) -> Any:
    found = {}
    for name, item in index_of(folder).items.items():
        about = (item.dtype, item.shape, item.properties) if hasattr(item, "dtype") else ()
        found[name] = [str((item.path, *about)), [str(chunk[:2]) for chunk in getattr(item, "chunks", ())]]
    return found


def saved(folder: Path, placements: str, columns: bool) -> dict[str, Any]:
    """Save with both planners; load with streamxf's classes and with torch's."""
    own, stock = folder / f"own {placements} {columns}", folder / f"stock {placements} {columns}"
    with patch.object(dcp_columns, "FEW", 0 if columns else 10**9):
        for path, planner in ((own, streamxf.SavePlanner()), (stock, dcp.DefaultSavePlanner())):
            writer = streamxf.FileSystemWriter(path, thread_count=2)
            dcp.save(state_of(placements), storage_writer=writer, planner=planner)
    found = {"alike": boxes_of(own) == boxes_of(stock), "names": len(boxes_of(own))}
    registry = streamxf.Registry()
    readers = {
        "own": (streamxf.FileSystemReader(own), streamxf.LoadPlanner()),
        "stock": (dcp.FileSystemReader(own, _extension_registry=registry), dcp.DefaultLoadPlanner()),
    }
    for name, (reader, planner) in readers.items():
        for target in ("rows", "columns", "both"):  # all have the same values
            state, wanted = blank(state_of(target)), flat(whole(state_of(target)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.load(state, storage_reader=reader, planner=planner)
            loaded = flat(whole(state))
            found[f"{name} {target}"] = all(torch.equal(loaded[each], wanted[each]) for each in wanted)
    return found


def rows(folder: Path) -> Any:
    return {str(columns): saved(folder, "rows", columns) for columns in (False, True)}


def columns(folder: Path) -> Any:
    return saved(folder, "columns", columns=True)


def both(folder: Path) -> Any:
    return saved(folder, "both", columns=True)


def hybrid(folder: Path) -> Any:
    return {str(columns): saved(folder, "hybrid", columns) for columns in (False, True)}


def background(folder: Path) -> Any:
    """Saves in a thread and in a process, and one whose plans are cached."""
    found = {}
    for kind in AsyncCheckpointerType:
        state, path = state_of("rows"), folder / f"background {kind.value}"
        writer = streamxf.FileSystemWriter(path)
        for _ in range(2):
            planner = streamxf.SavePlanner(enable_plan_caching=True)
            dcp.async_save(state, storage_writer=writer, planner=planner, async_checkpointer_type=kind).result(300)
        target = load_into(blank(state_of("columns")), streamxf.FileSystemReader(path), planner=streamxf.LoadPlanner())
        loaded, wanted = flat(whole(target)), flat(whole(state))
        found[kind.value] = all(torch.equal(loaded[each], wanted[each]) for each in wanted)
    return found


def contradiction(folder: Path) -> Any:
    """A rank that has something else; and one that saves alone."""
    rank = dist.get_rank()
    path, state = folder / "contradiction", {"x": torch.ones(3) if rank else "text"}
    try:
        dcp.save(state, storage_writer=streamxf.FileSystemWriter(path), planner=streamxf.SavePlanner())
    except dcp.api.CheckpointException as error:
        message = str(error.failures[0][0])
    alone = folder / f"alone {rank}"
    dcp.save({"x": rank}, storage_writer=streamxf.FileSystemWriter(alone), planner=streamxf.SavePlanner(), no_dist=True)
    target = load_into({"x": -1}, streamxf.FileSystemReader(alone), planner=streamxf.LoadPlanner(), no_dist=True)
    return message, target["x"] == rank
