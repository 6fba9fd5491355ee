"""Fabric with FSDP2: python fabric_fsdp2.py RUN. Killed and started again, it resumes where it saved last."""

import os
import sys
from pathlib import Path

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


def main(folder: Path) -> None:
    strategy = ModelParallelStrategy(shard, data_parallel_size=2, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    torch.manual_seed(0)
    model = fabric.setup(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)))
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))

    state = {"model": model, "optimizer": optimizer, "step": 0}
    saved = sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    if saved:
        fabric.load(saved[-1], state)
        fabric.print(f"resumed from {saved[-1]}", flush=True)

    for step in range(state["step"] + 1, STEPS + 1):
        torch.manual_seed(1000 * step + fabric.global_rank)
        data = torch.randn(32, 64)
        loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            # a checkpoint has a file beside those of DCP; under its name there is a whole one, or none
            fabric.save(folder / "unfinished", {**state, "step": step})
            if fabric.is_global_zero:
                os.rename(folder / "unfinished", folder / f"step-{step}")
        fabric.print(f"step {step} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
