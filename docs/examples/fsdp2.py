"""Plain FSDP2: torchrun --nproc-per-node 2 fsdp2.py RUN. Killed and started again, it resumes where it saved last."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import streamxf

STEPS, SAVE_EVERY = 12, 3


class Training:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optimizer": moments}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"training": Training(model, optimizer)}

    keep = streamxf.Retention(last=2, best=1, metric="loss")
    with streamxf.CheckpointManager(folder, "floatzip+checksum", save=SAVE_EVERY, keep=keep) as manager:
        begin = manager.resume(state) or 0  # the newest complete checkpoint, not a killed save
        if begin and rank == 0:
            print(f"resumed from step {begin}", flush=True)
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
                manager.save(step, state, metrics={"loss": loss.item()})
            if manager.stopping:  # a rank got SIGTERM, and this step was saved
                break
    dist.barrier()  # a thread of gloo's that still holds a tensor of the save would abort Python at its exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
