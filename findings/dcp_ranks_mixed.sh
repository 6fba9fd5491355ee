#!/usr/bin/env bash
# torch 2.13.0: Distributed Checkpoint stores one rank's value of what ranks have under one name, and its planner picks
# that rank anew for each item, to balance bytes. A BatchNorm under DistributedDataParallel, whose statistics differ by
# rank after a step, is saved with the mean of one rank and the variance of the other, and no warning. Exit status: 0
# while this is so, 1 when it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'PYTHON'
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def run(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/meeting", 2), rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.BatchNorm1d(4))
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))).sum().backward()
    own = {name: value.clone() for name, value in model.module.state_dict().items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dcp.save({"model": model.module.state_dict()}, checkpoint_id=f"{folder}/checkpoint")
        loaded = {name: torch.zeros_like(value) for name, value in own.items()}
        dcp.load({"model": loaded}, checkpoint_id=f"{folder}/checkpoint")
    ranks: list = [None, None]
    dist.all_gather_object(ranks, own)
    came_from = {
        name: [number for number, state in enumerate(ranks) if torch.equal(state[name], loaded[name])]
        for name in ("running_mean", "running_var")
    }
    if rank == 0:
        print("torch", torch.__version__, "loaded values are those of ranks", came_from)  # [0] and [1], or [1] and [0]
        print("warnings:", [str(each.message) for each in caught])
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(came_from["running_mean"] == came_from["running_var"])


if __name__ == "__main__":
    mp.spawn(run, (sys.argv[1],), nprocs=2)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "the mean is one rank's, the variance the other's, and nothing said so"
