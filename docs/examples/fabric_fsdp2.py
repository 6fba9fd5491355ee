"""Fabric with FSDP2: python fabric_fsdp2.py RUN. Killed and started again, it resumes where it saved last."""

import sys

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

import streamxf

streamxf.install(chain="floatzip+checksum")

STEPS, SAVE_EVERY = 12, 3


def shard(model, mesh):
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh["data_parallel"])
    return model


def main(folder: str) -> None:
    strategy = ModelParallelStrategy(shard, data_parallel_size=2, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    torch.manual_seed(0)
    model = fabric.setup(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)))
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))

    state = {"model": model, "optimizer": optimizer, "step": 0}
    keep = streamxf.Retention(last=2, best=1, metric="loss")
    with streamxf.CheckpointManager(folder, save=SAVE_EVERY, keep=keep) as manager:
        last = manager.latest()
        if last is not None:
            fabric.load(last, state)
            fabric.print(f"resumed from {last}", flush=True)
        for step in range(state["step"] + 1, STEPS + 1):
            torch.manual_seed(1000 * step + fabric.global_rank)
            data = torch.randn(32, 64)
            loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            fabric.print(f"step {step} loss {loss.item():.9f}", flush=True)
            if manager.should_save(step, last=step == STEPS):
                fabric.save(manager.begin(step), {**state, "step": step})
                manager.commit(step, metrics={"loss": loss.item()})
            if manager.stopping:
                break


if __name__ == "__main__":
    main(sys.argv[1])
