#!/usr/bin/env bash
# torch 2.13.0: DefaultSavePlanner(enable_plan_caching=True) takes a plan for unchanged if only dtypes have changed, so a
# later save of float64 has metadata that says float32, and dcp_to_torch_save gives rounded values. No error. The cache
# belongs to the class, so new planners and writers meet it, too. Exit status: 0 while this is so, 1 when it has changed.
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
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

folder = sys.argv[1]
exact = torch.tensor([1 / 3], dtype=torch.float64)
for name, value in (("first", exact.float()), ("second", exact)):
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    dcp.save({"x": value}, checkpoint_id=f"{folder}/{name}", planner=planner, no_dist=True)
said = dcp.FileSystemReader(f"{folder}/second").read_metadata().state_dict_metadata["x"].properties.dtype
dcp_to_torch_save(f"{folder}/second", f"{folder}/second.pt")
found = torch.load(f"{folder}/second.pt")["x"]
print("torch", torch.__version__, "saved", exact.dtype, exact.tolist())
print("metadata:", said, "- dcp_to_torch_save:", found.dtype, found.tolist())  # torch.float32, 0.3333333432674408
sys.exit(found.dtype == exact.dtype and torch.equal(found, exact))
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "the dtype is that of the first save, and the values are rounded"
