#!/usr/bin/env bash
# torch 2.13.0: what torch.distributed.checkpoint.load and save raise for any failure of a rank, CheckpointException, derives
# from BaseException. So a training loop's "except Exception" around a load, which is to fall back to an older checkpoint,
# ends the process instead. Name the class, and look at the exceptions in its `failures`. Exit status: 0 while this is so, 1
# when it has changed.
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

path = sys.argv[1] + "/saved"
dcp.save({"weight": torch.ones(3)}, checkpoint_id=path)


def load_or_fall_back() -> str:
    try:
        dcp.load({"weight": torch.ones(3), "bias": torch.ones(3)}, checkpoint_id=path)
    except Exception:
        return "fell back"
    return "loaded"


try:
    seen = load_or_fall_back()
except BaseException as error:
    seen = f"went past `except Exception`: {type(error).__name__}, whose bases are {type(error).__mro__[1:]}"
print("torch", torch.__version__)
print("a missing key:", seen)
sys.exit(0 if "went past" in seen and not issubclass(CheckpointException, Exception) else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "A loop that falls back on any Exception does not fall back"
