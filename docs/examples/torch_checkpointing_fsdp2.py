"""torch_checkpointing with FSDP2: torchrun --nproc-per-node 2 torch_checkpointing_fsdp2.py RUN.

Killed and started again, it resumes where it saved last.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_checkpointing import CheckpointManager, SyncCheckpointSaverConfig

import streamxf
from streamxf.integrations.torch_checkpointing import ChainStorageConfig

STEPS, SAVE_EVERY = 12, 3


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    storage = ChainStorageConfig("floatzip+checksum")
    files = CheckpointManager.Config(save=SyncCheckpointSaverConfig(), storage_config=storage).build()
    begin = 0
    with streamxf.CheckpointManager(folder, save=SAVE_EVERY, keep=2) as manager:
        last = manager.latest()
        if last is not None:
            weights, moments = get_state_dict(model, optimizer)
            state = files.load(f"{last}/files", into={"model": weights, "optimizer": moments})
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            begin = int(last.rpartition("-")[2])
            if rank == 0:
                print(f"resumed from {last}", flush=True)

        for step in range(begin + 1, STEPS + 1):
            torch.manual_seed(1000 * step + rank)
            data = torch.randn(32, 64)
            loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                print(f"step {step} loss {loss.item():.9f}", flush=True)
            if manager.should_save(step, last=step == STEPS):
                weights, moments = get_state_dict(model, optimizer)
                # a folder of its own, because torch_checkpointing renames it when it is complete
                files.save(f"{manager.begin(step)}/files", {"model": weights, "optimizer": moments})
                manager.commit(step)
            if manager.stopping:
                break
    files.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
