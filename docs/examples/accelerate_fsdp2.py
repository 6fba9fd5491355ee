"""accelerate with FSDP2: accelerate launch --use_fsdp --fsdp_version 2 accelerate_fsdp2.py RUN.

Killed and started again, it resumes where it saved last.
"""

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

import streamxf

streamxf.install(chain="floatzip+checksum")

STEPS, SAVE_EVERY = 12, 3


def main(folder: Path) -> None:
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    saved = sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    begin = 0
    if saved:
        accelerator.load_state(str(saved[-1]))
        begin = int(saved[-1].name.removeprefix("step-"))
        accelerator.print(f"resumed from {saved[-1]}", flush=True)

    for step in range(begin + 1, STEPS + 1):
        torch.manual_seed(1000 * step + accelerator.process_index)
        data = torch.randn(32, 64)
        loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            # a state is many files; under its name there is a whole one, or none
            accelerator.save_state(str(folder / "unfinished"))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                os.rename(folder / "unfinished", folder / f"step-{step}")
        accelerator.print(f"step {step} loss {loss.item():.9f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
