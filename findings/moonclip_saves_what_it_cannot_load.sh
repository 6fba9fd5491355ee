#!/usr/bin/env bash
# moonclip 0.3.1 (torch 2.13.0): CheckpointManager saves a model with a buffer of float8, uint32 or uint64, lists the
# checkpoint and reports no error; loading it raises AttributeError, of the whole checkpoint and not of that tensor. The
# package's page says of float8 that it is stored bit-exact with no configuration. bfloat16, uint16, complex64, bool and
# float32 come back bit for bit. The float8 of scaled matrix products is such a buffer.
# Seen: AttributeError: type object 'torch.storage.UntypedStorage' has no attribute 'dtype'
# Exit status: 0 while this is so, 1 when it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 moonclip==0.3.1
cat > "$folder/run.py" <<'PYTHON'
import sys

import torch
from moonclip import CheckpointManager


class Model(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("x", torch.arange(8).to(dtype))
        self.register_buffer("y", torch.ones(3))


def tried(dtype):
    manager = CheckpointManager(f"{sys.argv[1]}/{dtype}", async_save=False)
    model = Model(dtype)
    manager.save(step=1, model=model)
    (saved,) = manager.list_snapshots()
    try:
        found = manager.load(saved["id"])["model"]
    except AttributeError as error:
        return f"AttributeError: {error}"
    return "equal" if all(torch.equal(found[name], value) for name, value in model.state_dict().items()) else "other"


found = {dtype: tried(dtype) for dtype in (torch.bfloat16, torch.uint16, torch.uint32, torch.float8_e4m3fn)}
for dtype, what in found.items():
    print(dtype, "-", what)
good, bad = list(found.values())[:2], list(found.values())[2:]
sys.exit(not (set(good) == {"equal"} and all(what.startswith("AttributeError") for what in bad)))
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder" | grep -v '^$'
echo "as described: what was saved without an error is not loaded"
