#!/usr/bin/env bash
# torch 2.13.0: torch.save(..., pickle_protocol=0) writes a state dict without a warning, and torch.load cannot read it
# in any way: with weights_only=True "Unsupported operand", without it "AssertionError: saved_id must be a tuple, got
# str", since pickles of protocol 0 keep persistent ids as text. Of protocols 1, 4 and 5 only weights_only=False loads.
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


def loads(path, weights_only):
    try:
        return torch.equal(torch.load(path, weights_only=weights_only)["w"], torch.ones(3))
    except Exception as error:
        print(f"  weights_only={weights_only}: {type(error).__name__}", str(error).splitlines()[0][:60])
        return False


found = {}
print("torch", torch.__version__)
for protocol in range(6):
    print("protocol", protocol)
    path = f"{sys.argv[1]}/{protocol}.pt"
    torch.save({"w": torch.ones(3)}, path, pickle_protocol=protocol)
    found[protocol] = loads(path, True), loads(path, False)
print(found)
full, half, none = (True, True), (False, True), (False, False)
sys.exit(0 if found == {0: none, 1: half, 2: full, 3: full, 4: half, 5: half} else 1)
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
echo "torch.load reads nothing that torch.save wrote with protocol 0"
