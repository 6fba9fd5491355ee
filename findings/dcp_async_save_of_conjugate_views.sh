#!/usr/bin/env bash
# torch 2.13.0: torch.distributed.checkpoint.async_save(state, checkpoint_id=...), which copies the state by DefaultStager,
# stores other numbers than dcp.save for views that conjugate or negate lazily: the conjugate of t.conj(), and the opposite
# of its .imag. No warning, no error. Exit status: 0 while this is so, 1 when it has changed.
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

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
view = torch.tensor([1j]).conj()
state = {"conjugate": view, "negative": view.imag}


def loaded(path):
    found = {"conjugate": torch.zeros(1, dtype=torch.complex64), "negative": torch.zeros(1)}
    dcp.load(found, checkpoint_id=path)
    return found


dcp.save(state, checkpoint_id=sys.argv[1] + "/save")
dcp.async_save(state, checkpoint_id=sys.argv[1] + "/async").result()
saved, staged = loaded(sys.argv[1] + "/save"), loaded(sys.argv[1] + "/async")
print("torch", torch.__version__)
print("saved in the foreground:", saved)  # 0.-1.j and -1.
print("saved in the background:", staged)  # 0.+1.j and 1.
same = all(torch.equal(saved[name], state[name]) for name in state)
sys.exit(0 if same and all(torch.equal(staged[name], -state[name]) for name in state) else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "A save in the background has other numbers than the state"
