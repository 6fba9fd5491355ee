#!/usr/bin/env bash
# torch 2.13.0: torch.distributed.checkpoint.load makes None of every object in a nested dict or list of the target that
# is no tensor, number, string, bytes, io.BytesIO, dict, list or tuple, before it reads anything. With
# DefaultLoadPlanner(allow_partial_load=True) those that the checkpoint does not have stay None, without an error; a set,
# a Fraction and an object of a class of the caller's are lost in this way. Exit status: 0 while this is so, 1 when it
# has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'PYTHON'
import sys
import warnings
from fractions import Fraction

warnings.simplefilter("ignore")
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

dcp.save({"model": {"weight": torch.ones(2)}}, checkpoint_id=sys.argv[1] + "/saved")
target = {"model": {"weight": torch.zeros(2), "seen": {1, 2}, "rate": Fraction(1, 3), "step": 7}}
dcp.load(target, checkpoint_id=sys.argv[1] + "/saved", planner=DefaultLoadPlanner(allow_partial_load=True))
print("torch", torch.__version__)
print(target)  # seen and rate are None; step is 7
found = target["model"]
sys.exit(0 if found["seen"] is None and found["rate"] is None and found["step"] == 7 else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "What the checkpoint does not have became None in the target, without an error"
