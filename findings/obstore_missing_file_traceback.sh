#!/usr/bin/env bash
# obstore 0.12.1's file system for fsspec: to open a file that is not there raises FileNotFoundError, as it should, and
# then prints a traceback that nobody can catch, as the half-made file is collected: its `close` wants a reader, which it
# has not got yet. Programs that look for a file by opening it fill their logs with it.
#
# Seen with Python 3.11 and fsspec 2026.9.0:
#   raised: FileNotFoundError
#   on stderr: AttributeError: 'BufferedFile' object has no attribute '_reader'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip --disable-pip-version-check install -q obstore==0.12.1 fsspec==2026.9.0
venv/bin/python - 2>stderr <<'PYTHON'
from obstore.fsspec import FsspecStore

try:
    FsspecStore("memory").open("memory://bucket/missing", "rb")
except FileNotFoundError as error:
    print(f"raised: {type(error).__name__}")
PYTHON
last=$(tail -n 1 stderr)
echo "on stderr: $last"
[ "$last" = "AttributeError: 'BufferedFile' object has no attribute '_reader'" ]
