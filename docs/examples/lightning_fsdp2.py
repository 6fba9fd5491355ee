"""Lightning's Trainer with FSDP2: torchrun --nproc-per-node 2 lightning_fsdp2.py RUN.

Killed and started again, it resumes where it saved last.
"""

import sys

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

import streamxf
from streamxf.integrations.lightning_callback import ManagedCheckpoint

streamxf.install(chain="floatzip+checksum")

STEPS, SAVE_EVERY = 12, 3


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))

    def configure_model(self) -> None:
        for layer in (*self.layers, self.layers):
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, *_: object) -> torch.Tensor:
        torch.manual_seed(1000 * self.global_step + self.global_rank)
        data = torch.randn(32, 64)
        loss = (self.layers(data) - data.sum(dim=1, keepdim=True)).square().mean()
        self.log("loss", loss)
        if self.global_rank == 0:
            print(f"step {self.global_step + 1} loss {loss.item():.9f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(folder: str) -> None:
    dist.init_process_group("gloo")  # before the manager, by which the ranks agree
    keep = streamxf.Retention(last=2, best=1, metric="loss")
    with streamxf.CheckpointManager(folder, save=SAVE_EVERY, keep=keep) as manager:
        managed = ManagedCheckpoint(manager)
        trainer = Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            devices=2,
            strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[managed],
        )
        last = managed.latest()
        if last is not None:
            print(f"resumed from {last}", flush=True)
        trainer.fit(Model(), range(STEPS), ckpt_path=last)
    dist.barrier()  # a thread of gloo's that still holds a tensor of the save would abort Python at its exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
