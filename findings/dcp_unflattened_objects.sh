#!/usr/bin/env bash
# torch 2.13.0: with DefaultLoadPlanner(flatten_state_dict=False), torch.distributed.checkpoint.load restores tensors and
# no other values, without an error: flatten_sharded_tensors, which is true by default, makes a copy of the dict, and the
# values are put into that. Exit status: 0 while this is so, 1 when it has changed.
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
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

path = sys.argv[1] + "/saved"
dcp.save({"step": 50, "weight": torch.ones(1)}, checkpoint_id=path)
found = []
for sharded in (True, False):
    target = {"step": 1, "weight": torch.zeros(1)}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=sharded)
    dcp.load(target, checkpoint_id=path, planner=planner)
    found.append((target["step"], target["weight"].item()))
print("torch", torch.__version__)
print("by default:", found[0], "flatten_sharded_tensors=False:", found[1])  # (1, 1.0) and (50, 1.0)
sys.exit(0 if found == [(1, 1.0), (50, 1.0)] else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "The weight was restored, and the step was not"
