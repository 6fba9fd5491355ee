"""A loop with torch.save: python torch_save.py RUN. Killed and started again, it resumes where it saved last."""

import os
import sys
from pathlib import Path

import torch

import streamxf

STEPS, SAVE_EVERY = 12, 3


def main(folder: Path) -> None:
    os.makedirs(folder, exist_ok=True)
    path = folder / "last.pt.sxf"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    begin = 0
    if path.exists():
        with streamxf.open(path) as file:
            state = torch.load(file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
        print(f"resumed from step {begin}", flush=True)

    for step in range(begin + 1, STEPS + 1):
        torch.manual_seed(1000 * step)
        data = torch.randn(32, 64)
        loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            with streamxf.open(path, "wb", chain="floatzip+checksum") as file:
                torch.save(state, file)
        print(f"step {step} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
