#!/usr/bin/env bash
# torch 2.13.0: torch.distributed.checkpoint.save takes a list of plain values with an empty dict in it, and load refuses
# what it saved, into the very same state: the save names its items a.0, the load looks for a. Without the empty dict, or
# with DefaultLoadPlanner(flatten_sharded_tensors=False), it loads. Exit status: 0 while this is so, 1 when it has changed.
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
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

path = sys.argv[1] + "/saved"
dcp.save({"a": [1, {}]}, checkpoint_id=path)
try:
    dcp.load({"a": [0, {}]}, checkpoint_id=path)
    refused = ""
except CheckpointException as error:
    refused = str(error.failures[0][0])
other = {"a": [0, {}]}
dcp.load(other, checkpoint_id=path, planner=DefaultLoadPlanner(flatten_sharded_tensors=False))
print("torch", torch.__version__)
print("by default:", refused)  # Missing key in checkpoint state_dict: a.
print("flatten_sharded_tensors=False:", other)  # [1, {}]
sys.exit(0 if "Missing key" in refused and other == {"a": [1, {}]} else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "Saved without a word, and not loaded into the same state"
