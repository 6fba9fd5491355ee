#!/usr/bin/env bash
# fsspec 2026.9.0 (HTTPFileSystem, with aiohttp 3.14.5)
#
# HTTPFileSystem.info of what the server refuses (403), or cannot give now (503), raises FileNotFoundError, as of what is not there:
# whoever asks `is there a checkpoint?` is told no, and starts over. `cat_file` of the same address raises aiohttp's error. The answer
# is kept only as the cause.
#
# Seen: info: FileNotFoundError; its cause: ClientResponseError(...)   cat_file: ClientResponseError; its cause: None
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q fsspec==2026.9.0 aiohttp==3.14.5
"$folder/venv/bin/python" - <<'PYTHON'
import os, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from fsspec.implementations.http import HTTPFileSystem

class Refuses(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(403)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass

server = HTTPServer(("127.0.0.1", 0), Refuses)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/file"
raised = {}
for name in ("info", "cat_file"):
    try:
        getattr(HTTPFileSystem(), name)(url)
    except Exception as error:
        raised[name] = error
        print(f"{name}: {type(error).__name__}; its cause: {error.__cause__!r:.40}")
as_described = isinstance(raised["info"], FileNotFoundError) and getattr(raised["info"].__cause__, "status", 0) == 403
os._exit(0 if as_described and getattr(raised["cat_file"], "status", 0) == 403 else 1)
PYTHON
echo "as described: a refusal is reported as a file that is not there"
