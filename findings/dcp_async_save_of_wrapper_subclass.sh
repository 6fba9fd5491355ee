#!/usr/bin/env bash
# torch 2.13.0: torch.distributed.checkpoint.async_save(state, checkpoint_id=...), which copies the state by DefaultStager,
# stores memory that nobody has written to for a tensor subclass of the usual quantized kind: made by
# _make_wrapper_subclass, it holds codes and a scale, and gives each operator the numbers that they stand for. dcp.save
# stores these numbers. No warning, no error. Exit status: 0 while this is so, 1 when it has changed.
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
from torch.utils._pytree import tree_map_only


class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        given = tree_map_only(cls, lambda each: each.codes * each.scale, (args, kwargs or {}))
        return operator(*given[0], **given[1])


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
state = {"weight": Scaled(torch.tensor([1, 2, 3], dtype=torch.int8), 0.5)}
right = torch.tensor([0.5, 1.0, 1.5])


def loaded(path):
    found = {"weight": torch.zeros(3)}
    dcp.load(found, checkpoint_id=path)
    return found["weight"]


dcp.save(state, checkpoint_id=sys.argv[1] + "/save")
dcp.async_save(state, checkpoint_id=sys.argv[1] + "/async").result()
saved, staged = loaded(sys.argv[1] + "/save"), loaded(sys.argv[1] + "/async")
print("torch", torch.__version__)
print("saved in the foreground:", saved)  # 0.5, 1 and 1.5
print("saved in the background:", staged)  # seen: -2.8541e+00, 3.0843e-41, -2.8530e+00; others in each run
sys.exit(0 if torch.equal(saved, right) and not torch.equal(staged, right) else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "A save in the background has memory in place of the subclass's numbers"
