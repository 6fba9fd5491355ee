#!/usr/bin/env bash
# torch 2.13.0: a torch.distributed.checkpoint.load that fails with "duplicated flatten key" while the planner looks for
# names of torch before 2.4 leaves the process with those names (checkpoint._version._derived_version is "2_3"): an intact
# checkpoint that loaded before is refused, and a save stores its items under other names. A new process is right again.
# Exit status: 0 while this is so, 1 when it has changed.
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

first, second, third = (f"{sys.argv[1]}/{name}" for name in ("first", "second", "third"))
state = {"m": {"x": 1, "y": 2}, "t": torch.ones(1)}
other = {"a.b": {"x": 1}, "a": {"t": torch.ones(1), "b": {"y": 1}}}


def load(state, path):
    try:
        dcp.load(state, checkpoint_id=path)
        return "loaded"
    except CheckpointException as error:
        return str(error.failures[0][0])


def names(path):
    return sorted(dcp.FileSystemReader(path).read_metadata().state_dict_metadata)


dcp.save(state, checkpoint_id=first)
dcp.save({**other, "more": 1}, checkpoint_id=second)
found = [load({**state}, first), load(other, second)]
dcp.save(state, checkpoint_id=third)
found.append(load({**state}, first))
print("torch", torch.__version__)
print("the first checkpoint:", found[0])  # loaded
print("a part of the second:", found[1])  # duplicated flatten key a.b
print("the first again:", found[2])  # Missing key in checkpoint state_dict: m.
print("names of one state, saved before and after:", names(first), names(third))  # ['m.x', 'm.y', 't'] ['m', 't']
same = found[0] == "loaded" and "duplicated" in found[1] and "Missing key" in found[2]
sys.exit(0 if same and names(first) != names(third) else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "After a failed load, loads of intact checkpoints fail, and saves use other names"
