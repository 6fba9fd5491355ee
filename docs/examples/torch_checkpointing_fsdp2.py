"""torch_checkpointing with FSDP2: torchrun --nproc-per-node 2 torch_checkpointing_fsdp2.py RUN.

Killed and started again, it resumes where it saved last.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_checkpointing import CheckpointManager, SyncCheckpointSaverConfig

from streamxf.torch_checkpointing import ChainStorageConfig

STEPS, SAVE_EVERY = 12, 3


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    storage = ChainStorageConfig("floatzip+checksum")
    manager = CheckpointManager.Config(save=SyncCheckpointSaverConfig(), storage_config=storage).build()
    # a checkpoint has this name when every rank has saved; all ranks look before any saves again
    saved = max((int(path.name.removeprefix("step-")) for path in folder.glob("step-*")), default=0)
    dist.barrier()
    if saved:
        weights, moments = get_state_dict(model, optimizer)
        state = manager.load(str(folder / f"step-{saved}"), into={"model": weights, "optimizer": moments})
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        if rank == 0:
            print(f"resumed from step {saved}", flush=True)

    for step in range(saved + 1, STEPS + 1):
        torch.manual_seed(1000 * step + rank)
        data = torch.randn(32, 64)
        loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            manager.save(str(folder / f"step-{step}"), {"model": weights, "optimizer": moments})
        if rank == 0:
            print(f"step {step} loss {loss.item():.9f}", flush=True)
    manager.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
