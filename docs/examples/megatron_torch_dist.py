"""Megatron Core's torch_dist format: torchrun --nproc-per-node 2 megatron_torch_dist.py RUN.

Killed and started again, it resumes where it saved last.
"""

import sys

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor

import streamxf

streamxf.install(chain="floatzip+checksum")

STEPS, SAVE_EVERY = 12, 3


def sharded(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """Each rank has a layer of its own, as with pipeline parallelism."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def shard(key: str, tensor: torch.Tensor) -> ShardedTensor:
        return ShardedTensor.from_rank_offsets(key, tensor, (0, rank, size), prepend_axis_num=1)

    weights = {f"model.{name}": shard(f"model.{name}", tensor) for name, tensor in model.state_dict().items()}
    moments = {
        f"{name}.{number}": shard(f"optimizer.{name}.{number}", tensor)
        for number, state in optimizer.state_dict()["state"].items()
        for name, tensor in state.items()
    }
    return {"model": weights, "optimizer": moments}


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    begin = 0
    when = streamxf.Schedule(steps=SAVE_EVERY, signals=())  # Megatron cannot save once it has been told to end
    with streamxf.CheckpointManager(folder, name="iter_{:07d}", save=when, keep=2) as manager:
        last = manager.latest()
        if last is not None:
            for parameter in model.parameters():  # the optimizer's state has to be there before it is loaded
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            state = dist_checkpointing.load(sharded(model, optimizer), last)
            model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in state["model"].items()})
            loaded: dict = {}
            for name, tensor in state["optimizer"].items():
                loaded.setdefault(int(name.rpartition(".")[2]), {})[name.rpartition(".")[0]] = tensor
            optimizer.load_state_dict({**optimizer.state_dict(), "state": loaded})
            begin = int(last.rpartition("_")[2])
            if rank == 0:
                print(f"resumed from iteration {begin}", flush=True)

        for step in range(begin + 1, STEPS + 1):
            torch.manual_seed(1000 * step + rank)
            data = torch.randn(32, 64)
            optimizer.zero_grad()
            loss = (model(data) - data.cumsum(dim=1)).square().mean()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step} loss {total.item():.9f}", flush=True)
            if manager.should_save(step, last=step == STEPS):
                dist_checkpointing.save(sharded(model, optimizer), manager.begin(step))
                manager.commit(step, metrics={"loss": total.item()})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
