"""A loop with torch.save: python torch_save.py RUN. Killed and started again, it resumes where it saved last."""

import sys

import torch

import streamxf

STEPS, SAVE_EVERY = 12, 3


def main(folder: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    begin = 0
    with streamxf.CheckpointManager(folder, save=SAVE_EVERY, keep=2) as manager:
        last = manager.latest()
        if last is not None:
            with streamxf.open(f"{last}/state.pt.sxf") as file:
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
            print(f"step {step} loss {loss.item():.9f}", flush=True)
            if manager.should_save(step, last=step == STEPS):
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                with streamxf.open(f"{manager.begin(step)}/state.pt.sxf", "wb", chain="floatzip+checksum") as file:
                    torch.save(state, file)
                manager.commit(step)
            if manager.stopping:
                break


if __name__ == "__main__":
    main(sys.argv[1])
