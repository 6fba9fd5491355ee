#!/usr/bin/env bash
# webdav4 0.11.0 (with fsspec 2026.9.0, server wsgidav 4.4.0)
#
# A file opened by WebdavFileSystem.open(path, "rb") can be sought to its end, unless it is empty: seek(0, 2) then raises
# "ValueError: cannot seek to the end of file", since a size of 0 is taken for one that is not known.
#
# Seen: one byte: 1; empty: ValueError: cannot seek to the end of file
set -euo pipefail
folder=$(mktemp -d)
trap '[ -z "${server:-}" ] || kill "$server"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q webdav4==0.11.0 fsspec==2026.9.0 wsgidav==4.4.0 cheroot==11.1.2
mkdir "$folder/root"
printf x > "$folder/root/one"
: > "$folder/root/empty"
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$folder/venv/bin/wsgidav" --no-config --auth=anonymous --host=127.0.0.1 --port="$port" --root="$folder/root" > "$folder/log" 2>&1 &
server=$!
"$folder/venv/bin/python" - "$port" <<'PYTHON'
import socket, sys, time
from webdav4.fsspec import WebdavFileSystem

port = int(sys.argv[1])
for _ in range(600):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        break
    except OSError:
        time.sleep(0.1)
files = WebdavFileSystem(f"http://127.0.0.1:{port}")
with files.open("one", "rb") as file:
    print("one byte:", file.seek(0, 2))
try:
    with files.open("empty", "rb") as file:
        print("empty:", file.seek(0, 2))
except ValueError as error:
    print(f"empty: {type(error).__name__}: {error}")
    raise SystemExit(0)
raise SystemExit(1)
PYTHON
echo "as described: an empty file has no end"
