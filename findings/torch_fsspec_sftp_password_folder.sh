#!/usr/bin/env bash
# torch 2.13.0, fsspec 2026.9.0 (its own SFTP client, over paramiko 5.1.0)
#
# torch.distributed.checkpoint.FsspecWriter("sftp://user:password@host/run/step-1") writes the password to the server, as the name of
# a folder in the home folder of the session: `sftp:/user:password@host:port/run/step-1`. torch's FileSystemWriter.prepare_local_plan
# calls `fs.makedirs(self.path)` with the URL as it was given, and SFTPFileSystem.makedirs is the only method beside `open` that does
# not strip the protocol. Anyone who may list that folder reads the password. Valid input, an SFTP server of asyncssh on loopback.
#
# Seen: folders on the server: sftp:, sftp:/user:hunter2@127.0.0.1:PORT, .../run, .../run/step-1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6 fsspec==2026.9.0 paramiko==5.1.0 asyncssh==2.24.1
mkdir "$folder/root"
"$folder/venv/bin/python" -W ignore - "$folder/root" <<'PYTHON'
import asyncio, os, sys, threading
import asyncssh, torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

root = sys.argv[1]

class Login(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return (username, password) == ("user", "hunter2")

async def listen():
    return await asyncssh.listen(
        "127.0.0.1", 0, server_factory=Login, server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=os.fsencode(root)),
    )

loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
server = asyncio.run_coroutine_threadsafe(listen(), loop).result(60)
url = f"sftp://user:hunter2@127.0.0.1:{server.sockets[0].getsockname()[1]}/run/step-1"
try:
    dcp.save({"weight": torch.ones(3)}, storage_writer=FsspecWriter(url), no_dist=True)
except BaseException as error:
    print("the save itself ended with", type(error).__name__)
folders = [os.path.relpath(os.path.join(at, name), root) for at, names, _ in os.walk(root) for name in names]
print("folders on the server:", *folders, sep="\n  ")
os._exit(0 if any("hunter2" in each for each in folders) else 1)
PYTHON
echo "as described: the password is the name of a folder"
