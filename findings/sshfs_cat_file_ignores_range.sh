#!/usr/bin/env bash
# sshfs 2026.8.0 (with asyncssh 2.24.1, fsspec 2026.9.0)
#
# SSHFileSystem.cat_file(path, start=, end=) returns the whole file, whatever range is asked for, without an error: `_cat_file` takes
# `**kwargs` and drops them. fsspec documents `start` and `end` for every file system, and its cat_ranges is made of it, so readers of
# Parquet or Zarr get other bytes than they asked for, and a range of a file of 100 GB downloads 100 GB.
#
# Seen: cat_file(start=2, end=4) of b"0123456789": b'0123456789'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q sshfs==2026.8.0 asyncssh==2.24.1 fsspec==2026.9.0
mkdir "$folder/root"
"$folder/venv/bin/python" - "$folder/root" <<'PYTHON'
import asyncio, os, sys, threading
import asyncssh
from sshfs import SSHFileSystem

root = sys.argv[1]

class Login(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True

async def listen():
    return await asyncssh.listen(
        "127.0.0.1", 0, server_factory=Login, server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=os.fsencode(root)),
    )

loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
server = asyncio.run_coroutine_threadsafe(listen(), loop).result(60)
files = SSHFileSystem("127.0.0.1", port=server.sockets[0].getsockname()[1], username="user", password="any")
files.pipe_file("/file", b"0123456789")
found = files.cat_file("/file", start=2, end=4)
print("cat_file(start=2, end=4) of b'0123456789':", found, flush=True)
os._exit(0 if found == b"0123456789" else 1)
PYTHON
echo "as described: the range is ignored"
