#!/usr/bin/env bash
# fsspec 2026.9.0 (MemoryFileSystem)
#
# Opening a file of memory:// twice gives the same object, so two readers share one position, and the second `open` sets it back to 0
# under the first. Two threads that read the same file get each other's bytes or none.
#
# Seen: first.read(2) = b'01', after another open first.read(2) = b'01' again; the objects are one: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q fsspec==2026.9.0
"$folder/venv/bin/python" - <<'PYTHON'
import fsspec

files = fsspec.filesystem("memory")
files.pipe_file("/file", b"0123456789")
first = files.open("/file", "rb")
begin = first.read(2)
second = files.open("/file", "rb")
again = first.read(2)
print(f"first.read(2) = {begin}, after another open first.read(2) = {again}; the objects are one: {first is second}")
raise SystemExit(0 if first is second and again == begin == b"01" else 1)
PYTHON
echo "as described: both readers have one position"
