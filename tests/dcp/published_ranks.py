"""What each rank does in tests/dcp/test_published.py."""

import pickle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import streamxf

from .helpers import KEY, full_chain, load_into


def state_of(value: float) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(64.0).reshape(16, 4) + value
    return {"model": {"w": distribute_tensor(whole, mesh, [Shard(0)]), "b": torch.full((3,), value)}, "step": value}


def cached_saves(folder: Path) -> Any:
    """Three saves with cached plans; what each rank is given, and what it can do with it."""
    found = []
    sent: list[int] = []
    broadcast = dist.broadcast_object_list

    def counted(object_list: list[Any], *args: Any, **kwargs: Any) -> None:
        if dist.get_rank() == 0:
            sent.append(len(pickle.dumps(object_list[0])))
        broadcast(object_list, *args, **kwargs)

    for number in range(3):
        path = folder / f"save {number}"
        writer = streamxf.FileSystemWriter(path, _extensions=full_chain(), sync_files=False)
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        with patch.object(dist, "broadcast_object_list", counted):
            made = dcp.save(state_of(number), storage_writer=writer, planner=planner)
        loaded = load_into(state_of(-1.0), streamxf.FileSystemReader(path, keys=KEY), planner=streamxf.LoadPlanner())
        wanted = state_of(number)
        reader = streamxf.FileSystemReader(path, keys=KEY)
        reader.read_metadata()
        values = (loaded["model"]["w"], wanted["model"]["w"])
        assert all(isinstance(value, DTensor) for value in values)
        found.append(
            {
                "items": sorted(made.state_dict_metadata),
                "chunks": [
                    len(made.state_dict_metadata["model.w"].chunks),
                    len(made.state_dict_metadata["model.b"].chunks),
                ],
                "paths": made.planner_data == {"model.w": ("model", "w"), "model.b": ("model", "b"), "step": ("step",)},
                "files": sorted({info.relative_path for info in made.storage_data.values()})
                == sorted(file.name for file in path.glob("*.distcp")),
                "id": made.storage_meta.save_id == reader.save_id,
                "same": torch.equal(values[0].to_local(), values[1].to_local()) and loaded["step"] == number,
            }
        )
    (cached,) = SavePlanner._cached_metadata.values() if dist.get_rank() == 0 else (made,)
    return {"saves": found, "sent": sent, "cached": cached is made, "parts": sorted(vars(cached))}
