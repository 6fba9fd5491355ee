"""torchtune's checkpointer in a loop of its own: torchrun --nproc-per-node 2 torchtune_checkpointer.py RUN [async].

Killed and started again, it resumes where it saved last. With `async`, all saves but the last are in the background.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtune.training import DistributedCheckpointer

import streamxf

streamxf.install(chain="floatzip+checksum")

STEPS, SAVE_EVERY = 12, 3


def main(folder: str, mode: str = "") -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    own = dist.new_group(backend="gloo")  # saves in the background must not mix with the training's messages
    checkpointer = DistributedCheckpointer(checkpoint_dir=folder, output_dir=folder, process_group=own)
    begin = 0
    with streamxf.CheckpointManager(folder, name="dist_epoch_{}", verify="whole") as manager:
        last = manager.latest()
    if last is not None:
        weights, moments = get_state_dict(model, optimizer)
        state = checkpointer.load_checkpoint({"model": weights, "optimizer": moments, "step": 0}, last)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        begin = state["step"]
        if rank == 0:
            print(f"resumed from step {begin}", flush=True)

    for step in range(begin + 1, STEPS + 1):
        torch.manual_seed(1000 * step + rank)
        data = torch.randn(32, 64)
        loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "step": step}
            checkpointer.save_checkpoint(state, epoch=step, save_async=mode == "async" and step < STEPS)
        if rank == 0:
            print(f"step {step} loss {loss.item():.9f}", flush=True)
    dist.barrier()  # a thread of gloo's that still holds a tensor of the save would abort Python at its exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
