#!/usr/bin/env bash
# torch 2.13.0
#
# To find where a rank's shard of a DTensor begins, which takes a division and a product, DCP's planners make an int64
# tensor with an entry for each row of the shard (compute_local_shape_and_global_offset calls torch.arange). For a
# one-dimensional DTensor of bfloat16, planning a save or a load takes four times the shard's memory for it.
#
# Seen: a shard of 256 MiB; planning a load took 1024 MiB more, planning a save 1024 MiB more
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy
for what in load save; do
  "$folder/venv/bin/python" -W ignore - "$what" <<'PYTHON'
import sys
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner_helpers import _create_read_items
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
count = 2**27
shard = torch.zeros(count, dtype=torch.bfloat16)
tensor = DTensor.from_local(shard, init_device_mesh("cpu", (1,)), [Shard(0)])


def peak() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024


before = peak()
if sys.argv[1] == "save":
    planner = DefaultSavePlanner()
    planner.set_up_planner({"w": tensor}, is_coordinator=True)
    planner.create_local_plan()
else:
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([count]))
    properties = TensorProperties(dtype=torch.bfloat16)
    _create_read_items("w", TensorStorageMetadata(properties, torch.Size([count]), [chunk]), tensor)
more = peak() - before
print(f"a shard of {shard.nbytes >> 20} MiB; planning a {sys.argv[1]} took {more} MiB more")
raise SystemExit(more < 1000)
PYTHON
done
echo "as described: planning takes four times the shard's memory"
