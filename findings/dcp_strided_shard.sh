#!/usr/bin/env bash
# torch 2.13.0: a DTensor that `.view` flattened from Shard(1) has the placement _StridedShard, so each rank has pieces
# that are apart. Distributed Checkpoint loads one run of elements into them: some twice, others not at all, no error.
# (Saving such a tensor is refused: "overlapping chunks".) Exit status: 0 while this is so, 1 when it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def run(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/meeting", 2), rank=rank, world_size=2)
    whole = torch.arange(8.0)
    if rank == 0:
        dcp.save({"w": whole}, checkpoint_id=f"{folder}/checkpoint", no_dist=True)
    dist.barrier()
    target = distribute_tensor(torch.zeros(2, 4), init_device_mesh("cpu", (2,)), [Shard(1)]).view(8)
    dcp.load({"w": target}, checkpoint_id=f"{folder}/checkpoint")
    loaded = target.full_tensor()
    if rank == 0:
        print("torch", torch.__version__, target.placements)
        print("saved ", whole.tolist())
        print("loaded", loaded.tolist())  # [0, 1, 2, 3, 2, 3, 4, 5]
    code = 1 if torch.equal(loaded, whole) else 0
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(code)


if __name__ == "__main__":
    mp.spawn(run, (sys.argv[1],), nprocs=2)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "elements 2 and 3 were loaded twice, 6 and 7 not at all, and nothing said so"
