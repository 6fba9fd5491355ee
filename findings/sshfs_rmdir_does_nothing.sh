#!/usr/bin/env bash
# sshfs 2026.8.0 (with asyncssh 2.24.1, fsspec 2026.9.0)
#
# SSHFileSystem.rmdir(path) does nothing and says nothing: the folder stays. The class has a coroutine `_rmdir`, but among the methods
# that fsspec makes synchronous there is no `rmdir`, so that of AbstractFileSystem stays, whose body is `pass`. `rm(path)` removes it.
#
# Seen: after rmdir('/empty'): still there
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
files.mkdir("/empty")
files.rmdir("/empty")
stays = os.path.isdir(os.path.join(root, "empty"))
print("after rmdir('/empty'):", "still there" if stays else "gone", flush=True)
os._exit(0 if stays else 1)
PYTHON
echo "as described: rmdir removes nothing"
