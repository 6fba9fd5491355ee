"""accelerate with FSDP2: accelerate launch --use_fsdp --fsdp_version 2 accelerate_fsdp2.py RUN.

Killed and started again, it resumes where it saved last.
"""

import sys

import torch
from accelerate import Accelerator

import streamxf

streamxf.install(chain="floatzip+checksum")

STEPS, SAVE_EVERY = 12, 3


def main(folder: str) -> None:
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    begin = 0
    with streamxf.CheckpointManager(folder, save=SAVE_EVERY, keep=2) as manager:
        last = manager.latest()
        if last is not None:
            accelerator.load_state(last)
            begin = int(last.rpartition("-")[2])
            accelerator.print(f"resumed from {last}", flush=True)

        for step in range(begin + 1, STEPS + 1):
            torch.manual_seed(1000 * step + accelerator.process_index)
            data = torch.randn(32, 64)
            loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.print(f"step {step} loss {loss.item():.9f}", flush=True)
            if manager.should_save(step, last=step == STEPS):
                # a state is many files, which count once they are committed
                accelerator.save_state(manager.begin(step))
                accelerator.wait_for_everyone()
                manager.commit(step, metrics={"loss": loss.item()})
            if manager.stopping:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
