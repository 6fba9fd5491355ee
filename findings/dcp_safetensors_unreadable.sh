#!/usr/bin/env bash
# torch.distributed.checkpoint: what FileSystemWriter(serialization_format=SerializationFormat.SAFETENSORS) saves, none of
# torch's readers loads. The save succeeds.
#
# The metadata has the place where the file begins in safetensors' format, and the size of the elements alone, so
# FileSystemReader takes the first bytes of the header for a file of torch.save. HuggingFaceStorageReader looks for names
# that end in .safetensors, and the files are *.distcp.
#
# Seen with torch 2.13.0, safetensors 0.8.0, CPython 3.11 on Linux:
#   saved: .metadata __0_0.distcp
#   FileSystemReader: not loaded
#   HuggingFaceStorageReader: not loaded
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 safetensors==0.8.0 numpy
cat >"$folder/script.py" <<'PYTHON'
import os, sys, warnings
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import SerializationFormat

warnings.simplefilter("ignore")
path = sys.argv[1]
writer = dcp.FileSystemWriter(path, serialization_format=SerializationFormat.SAFETENSORS)
dcp.save({"weight": torch.arange(4.0)}, storage_writer=writer, no_dist=True)
print("saved:", *sorted(os.listdir(path)))
loaded = 0
for reader in (dcp.FileSystemReader, dcp.HuggingFaceStorageReader):
    state = {"weight": torch.zeros(4)}
    try:
        dcp.load(state, storage_reader=reader(path), no_dist=True)
    except (Exception, CheckpointException):  # which is a BaseException
        print(f"{reader.__name__}: not loaded")
    else:
        loaded += 1
        print(f"{reader.__name__}: loaded {state['weight'].tolist()}")
sys.exit(loaded)
PYTHON
"$folder/venv/bin/python" "$folder/script.py" "$folder/checkpoint" 2>/dev/null
