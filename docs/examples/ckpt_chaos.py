r"""A small training that resumes by itself, for ckpt-chaos to kill: python docs/examples/ckpt_chaos.py FOLDER

    pip install ckpt-chaos==0.1.8
    ckpt-chaos run --modes before,torn --max-points 40 \
        --checkpoint-glob "{out}/run/step-*" --ckpt-ignore-size \
        --step-regex "resumed from step (\d+)" --result-file "{out}/weights" \
        --fail-on HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK \
        -- python docs/examples/ckpt_chaos.py {out}
"""

import hashlib
import itertools
import os
import sys
from pathlib import Path

import torch

import streamxf

out = Path(sys.argv[1])
if not out.exists():
    # ckpt-chaos knows complete checkpoints by the names of their files, and those of data files are random; until the
    # first kill they are the same in each run
    drawn = itertools.count()
    os.urandom = lambda size: hashlib.shake_128(str(next(drawn)).encode()).digest(size)

torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)


class Training:
    def state_dict(self):
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(self, state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


def train(step):
    torch.manual_seed(step)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


train(0)  # so that the optimizer has its moments
with streamxf.CheckpointManager(out / "run", save=2, chain="floatzip+checksum") as manager:
    begin = manager.resume({"training": Training()}) or 0
    print(f"resumed from step {begin}")
    for step in range(begin + 1, 9):
        train(step)
        if manager.should_save(step, last=step == 8):
            manager.save(step, {"training": Training()})
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
(out / "weights").write_text(hashlib.sha256(weights).hexdigest())
