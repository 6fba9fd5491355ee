#!/usr/bin/env bash
# CPython 3.11.7 (gzip, zipfile), NumPy 2.4.6
#
# A zip archive can be written into a pipe, and into a file of lzma.open or bz2.open, since zipfile finds that these
# cannot seek, and writes sizes behind the data. Into a file of gzip.open it fails: such a file says that it can seek,
# and seeks forward only, which zipfile's test (a seek to where it stands) does not tell from seeking. So do
# numpy.savez and whatever else writes zip archives.
#
# Seen: lzma: 2 entries; gzip: OSError: Negative seek in write mode
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import gzip, lzma, sys
import numpy as np

arrays = {"a": np.arange(5), "b": np.ones(3)}
with lzma.open(f"{sys.argv[1]}/x.xz", "wb") as file:
    np.savez(file, **arrays)
with lzma.open(f"{sys.argv[1]}/x.xz") as file:
    print("lzma:", len(np.load(file)), "entries")
try:
    with gzip.open(f"{sys.argv[1]}/x.gz", "wb") as file:
        np.savez(file, **arrays)
except OSError as error:
    print(f"gzip: {type(error).__name__}: {error}")
    raise SystemExit(0)
raise SystemExit(1)
PYTHON
echo "as described: a file of gzip takes no zip archive"
