"""Lightning's Trainer: python lightning_trainer.py RUN. Killed and started again, it resumes where it saved last."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer

import streamxf
from streamxf.integrations.lightning import ChainCheckpointIO
from streamxf.integrations.lightning_callback import ManagedCheckpoint

STEPS, SAVE_EVERY = 12, 3


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))

    def training_step(self, *_: object) -> torch.Tensor:
        torch.manual_seed(1000 * self.global_step)
        data = torch.randn(32, 64)
        loss = (self.layers(data) - data.sum(dim=1, keepdim=True)).square().mean()
        self.log("loss", loss)
        print(f"step {self.global_step + 1} loss {loss.item():.9f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        print(f"resumed from step {checkpoint['global_step']}", flush=True)


def main(folder: str) -> None:
    plugin = ChainCheckpointIO("floatzip+checksum")
    keep = streamxf.Retention(last=2, best=1, metric="loss")
    with streamxf.CheckpointManager(folder, save=SAVE_EVERY, keep=keep) as manager:
        managed = ManagedCheckpoint(manager)
        trainer = Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[managed],
            plugins=[plugin],
        )
        # from the newest complete checkpoint, and if there is none, from the beginning
        trainer.fit(Model(), range(STEPS), ckpt_path=managed.latest())


if __name__ == "__main__":
    main(sys.argv[1])
