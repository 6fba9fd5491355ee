#!/usr/bin/env bash
# tensordict 0.15.3 with torch 2.13.0: torch.distributed.checkpoint.save of a TensorDict stores its tensors alone. What it
# has besides is in an attribute of what state_dict() gives, which is asked for, and dropped: after a load the label is what
# the target had, without an error or a warning. Exit status: 0 while this is so, 1 when it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy tensordict==0.15.3
cat > "$folder/run.py" <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")
import torch
import torch.distributed.checkpoint as dcp
from tensordict import NonTensorData, TensorDict


def made(label, value):
    return TensorDict({"weight": torch.full((2,), value), "label": NonTensorData(label)}, [2])


path = sys.argv[1] + "/saved"
dcp.save({"data": made("saved", 1.0)}, checkpoint_id=path)
target = made("fresh", 0.0)
dcp.load({"data": target}, checkpoint_id=path)
print("torch", torch.__version__)
print("weight", target["weight"].tolist(), "label", target["label"])  # [1.0, 1.0], fresh
sys.exit(0 if target["weight"].eq(1).all() and target["label"] == "fresh" else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "The weight was restored, and the label was not"
