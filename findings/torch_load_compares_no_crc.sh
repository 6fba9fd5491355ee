#!/usr/bin/env bash
# torch 2.13.0: torch.save writes a CRC-32 beside each record of its zip archive, and torch.load does not compare it, whether
# it maps the file or not: a byte that changed in storage gives other weights without an error. Python's zipfile, reading the
# same file, names the record. Exit status: 0 while this is so, 1 when it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'PYTHON'
import sys
import zipfile

import torch

path = sys.argv[1] + "/weights.pt"
weights = torch.arange(1000.0)
torch.save({"weight": weights}, path)
print("torch", torch.__version__, "- zipfile finds in what was written:", zipfile.ZipFile(path).testzip())

data = bytearray(open(path, "rb").read())
data[data.index(weights.numpy().tobytes()) + 402] ^= 0x40  # a byte of the hundredth element
open(path, "wb").write(data)
named = zipfile.ZipFile(path).testzip()
found = [torch.load(path, mmap=mmap)["weight"] for mmap in (False, True)]
differ = [int((each != weights).sum()) for each in found]
print("after a byte changed, zipfile names:", named)
print("torch.load, with and without mmap, returns so many other elements:", differ)
sys.exit(0 if named is not None and differ == [1, 1] else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "The CRC is there, and torch.load does not look at it"
