"""Replicas that read once: torchrun --nproc-per-node 4 read_once.py FOLDER."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import streamxf


def state_on(mesh, fill: float):
    """A matrix whose rows are sharded over two ranks and replicated over the others, and one that all have."""
    sharded = distribute_tensor(torch.full((4096, 1024), fill), mesh, [Replicate(), Shard(0)])
    return {"sharded": sharded, "whole": torch.full((2048, 1024), fill)}


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2))
    dcp.save(state_on(mesh, 1.5), storage_writer=streamxf.FileSystemWriter(folder))

    for read in ("each", "once"):
        state = state_on(mesh, 0.0)
        reader = streamxf.FileSystemReader(folder, read=read)
        dcp.load(state, storage_reader=reader)
        assert all((value == 1.5).all() for value in (state["sharded"].to_local(), state["whole"]))

        stored = torch.tensor(reader.report.stored_bytes)
        dist.all_reduce(stored)
        if dist.get_rank() == 0:
            print(f"{reader.report.read}: {stored.item():,} bytes read by all ranks {reader.report.reason}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
