#!/usr/bin/env bash
# torch 2.13.0: Distributed Checkpoint makes strings of the integer keys of dicts, and drops empty dicts. After
# dcp_to_torch_save, AdamW's load_state_dict takes the file and restores none of its moments, without an error; SGD's
# fails with KeyError: 'state'. Exit status: 0 while this is so, 1 when it has changed.
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


def trained(kind, steps):
    layer = torch.nn.Linear(3, 2)
    optimizer = kind(layer.parameters(), lr=0.1)
    for _ in range(steps):
        layer(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    return layer, optimizer


def converted(kind):
    path = f"{sys.argv[1]}/{kind.__name__}"
    dcp.save({"optimizer": trained(kind, 2)[1].state_dict()}, checkpoint_id=path)
    dcp_to_torch_save(path, f"{path}.pt")
    return torch.load(f"{path}.pt")["optimizer"]


found = converted(torch.optim.AdamW)
layer, optimizer = trained(torch.optim.AdamW, 0)
optimizer.load_state_dict(found)
restored = [name for each in layer.parameters() for name in optimizer.state[each]]
print("torch", torch.__version__)
print("AdamW: keys", [*found["state"]], "restored for its parameters:", restored)  # keys ['0', '1'], restored: []
try:
    trained(torch.optim.SGD, 0)[1].load_state_dict(converted(torch.optim.SGD))
    failed = ""
except KeyError as error:
    failed = str(error)
print("SGD: KeyError", failed)  # 'state'
sys.exit(0 if not restored and failed == "'state'" else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "AdamW took the file and restored nothing; SGD could not take it"
