#!/usr/bin/env bash
# torch 2.15.0 (the protocol came with 2.14.1): a plain tensor with the attributes of `CheckpointableTensor` is a shard of
# a global tensor to dcp.save. dcp.async_save with a FileSystemWriter stages it by BlockingAsyncStager, which drops them:
# the local elements are stored as the whole tensor, without an error. Exit status: 0 while so, 1 when it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy
cat > "$folder/run.py" <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")
import torch
import torch.distributed.checkpoint as dcp


def stored(folder):
    return dcp.FileSystemReader(folder).read_metadata().state_dict_metadata["w"]


tensor = torch.ones(4, 6)
tensor.global_shape, tensor.global_offsets = (2, 6), ((0, 0),)  # the last two rows of a buffer are all of the tensor
tensor.local_offsets, tensor.local_sizes = ((2, 0),), ((2, 6),)
dcp.save({"w": tensor}, storage_writer=dcp.FileSystemWriter(f"{sys.argv[1]}/save"))
dcp.async_save({"w": tensor}, storage_writer=dcp.FileSystemWriter(f"{sys.argv[1]}/async")).result()
saved, in_background = (tuple(stored(f"{sys.argv[1]}/{name}").size) for name in ("save", "async"))
print("torch", torch.__version__)
print("dcp.save stores      ", saved)  # (2, 6)
print("dcp.async_save stores", in_background)  # (4, 6)
sys.exit(0 if saved == (2, 6) and in_background == (4, 6) else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "the save in the background stored the buffer in place of the tensor, and nothing said so"
