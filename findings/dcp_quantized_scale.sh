#!/usr/bin/env bash
# torch 2.13.0: Distributed Checkpoint loads a quantized tensor with the target's scale and zero point: no error, and
# other numbers. `copy_` takes both over, but DCP copies into `target.detach()`, on whose result alone they are set.
# Seen with torch 2.13.0 and 2.15.0. Exit status: 0 while this is so, 1 when it has changed.
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

values = torch.arange(6.0)
stored = torch.quantize_per_tensor(values, scale=0.5, zero_point=3, dtype=torch.qint8)
target = {"w": torch.quantize_per_tensor(torch.zeros(6), scale=0.25, zero_point=0, dtype=torch.qint8)}
dcp.save({"w": stored}, checkpoint_id=sys.argv[1])
dcp.load(target, checkpoint_id=sys.argv[1])
print("torch", torch.__version__)
print("saved ", stored.dequantize().tolist())
print("loaded", target["w"].dequantize().tolist())  # [0.75, 1.25, 1.75, 2.25, 2.75, 3.25]
same_codes = torch.equal(stored.int_repr(), target["w"].int_repr())
sys.exit(0 if same_codes and not torch.equal(stored.dequantize(), target["w"].dequantize()) else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder/checkpoint"
echo "the loaded tensor has the saved one's codes and the target's scale, so other numbers, and nothing said so"
