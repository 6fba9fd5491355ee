"""Places as people have them: a bucket or a server's folder that two hosts mount, or reach by clients of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from s3fs import S3FileSystem

from streamxf.storage.opening import open_storage, storage_over
from streamxf.storage.storage import Storage
from tests.dcp.s3_server import ACCESS, SECRET, free_ports, storage, weed
from tests.objectstore.emulators import emulated
from tests.polling import wait_until
from tests.storage.servers import PASSWORD, SERVERS, USER, served

RUN = "run[1]"


class Place(NamedTuple):
    """One empty folder, as it is seen by two hosts.

    - `first`: for the first one, in a process of its own: a client of `SERVERS` or "", a path or URL, its options.
    - `second`: for this process, and `behind`: what is stored, whatever a mount remembers.
    - `die`: end the first host's mount.
    """

    first: tuple[str, str, dict[str, Any]]
    second: Storage
    behind: Storage
    die: Callable[[], None] = lambda: None


class Bucket(NamedTuple):
    """SeaweedFS's "checkpoints", through S3 and as a folder of files."""

    endpoint: str
    filer: str


def program(name: str, package: str, fuse: bool = True) -> str:
    if fuse and not (os.access("/dev/fuse", os.W_OK) and os.geteuid() == 0):
        pytest.skip("there is no FUSE here, or this is not root")
    if (path := shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")) is None:
        pytest.skip(f"{name} is not installed: apt-get install {package}")
    return path


def rclone(mode: str) -> Callable[[Bucket, str], list[str]]:
    def command(bucket: Bucket, folder: str) -> list[str]:
        how = ["--config=/dev/null", f"--vfs-cache-mode={mode}", f"--cache-dir={folder}-cache"]
        how += ["--s3-provider=Other", f"--s3-endpoint={bucket.endpoint}", "--s3-force-path-style"]
        return [program("rclone", "rclone"), "mount", ":s3:checkpoints", folder, *how]

    return command


def s3fs(bucket: Bucket, folder: str) -> list[str]:
    how = f"url={bucket.endpoint},use_path_request_style"
    return [program("s3fs", "s3fs"), "checkpoints", folder, "-f", "-o", how]


def weed_mount(*how: str) -> Callable[[Bucket, str], list[str]]:
    def command(bucket: Bucket, folder: str) -> list[str]:
        program("fusermount3", "fuse3")
        own = [f"-dir={folder}", f"-cacheDir={folder}-cache", f"-localSocket={folder}.sock", *how]
        return [str(weed()), "mount", f"-filer={bucket.filer}", "-filer.path=/buckets/checkpoints", *own]

    return command


MOUNTS = {
    "rclone mount, no cache": rclone("off"),
    "rclone mount, write cache": rclone("writes"),
    "s3fs mount": s3fs,
    "weed mount": weed_mount(),
    "weed mount, write-back cache": weed_mount("-writebackCache"),
}
PLACES = (*MOUNTS, "sshfs mount", "SeaweedFS, obstore", "OpenSSH, sshfs")


@contextmanager
def two_hosts(kind: str, folder: Path, bucket: Callable[[], Bucket]) -> Iterator[Place]:
    """One of `PLACES`."""
    run, hosts = f"{folder.name}/{RUN}", [str(folder / host) for host in "ab"]
    with ExitStack() as stack:
        if kind in MOUNTS:
            commands = [MOUNTS[kind](bucket(), host) for host in hosts]
            behind = storage_over(
                S3FileSystem(**storage(bucket().endpoint)), f"checkpoints/{run}", f"s3://checkpoints/{run}"
            )
        elif kind == "sshfs mount":
            (folder / "root").mkdir()
            to = urlsplit(stack.enter_context(SERVERS["OpenSSH, sshfs"][2](folder / "root"))[0])
            how = (
                f"port={to.port},IdentityFile={folder}/sshd/user,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null"
            )
            source = [program("sshfs", "sshfs"), "-f", f"{to.username}@{to.hostname}:{to.path}"]
            commands, behind = [[*source, host, "-o", how] for host in hosts], open_storage(f"{to.path}/{run}")
        else:
            client = stack.enter_context(served(kind, folder))
            second = open_storage(f"{client.url}/{RUN}", client.options)
            yield Place((kind, f"{client.url}/{RUN}", client.options), second, second)
            return
        die, _ = [stack.enter_context(mounted(*each)) for each in zip(commands, hosts, strict=True)]
        yield Place(("", f"{hosts[0]}/{run}", {}), open_storage(f"{hosts[1]}/{run}"), behind, die)


@contextmanager
def mounted(command: list[str], folder: str) -> Iterator[Callable[[], None]]:
    """Run what shows a place in an empty folder; gives what kills it."""
    os.mkdir(folder)
    known = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}  # rclone refuses it
    known |= {"RCLONE_S3_ACCESS_KEY_ID": ACCESS, "RCLONE_S3_SECRET_ACCESS_KEY": SECRET}
    known |= {"AWSACCESSKEYID": ACCESS, "AWSSECRETACCESSKEY": SECRET}
    with open(f"{folder}.log", "w+") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=known)

        def is_mounted() -> bool:
            assert process.poll() is None, (log.seek(0), log.read())
            return os.path.ismount(folder)

        def kill() -> None:
            process.kill()
            process.wait()
            subprocess.run(["umount", "-l", folder], capture_output=True)

        try:
            wait_until(is_mounted, 60, pause=0.05)
            yield kill
        finally:
            kill()


@contextmanager
def samba(folder: Path) -> Iterator[str]:
    pytest.importorskip("smbprotocol")
    (port,), config = free_ports(1), folder / "smb.conf"
    own = "".join(f"{name} directory = {folder}\n" for name in ("private", "lock", "state", "cache", "pid", "ncalrpc"))
    config.write_text(f"[global]\n{own}smb ports = {port}\ninterfaces = lo\n[share]\npath = {folder}\nread only = no\n")
    command = [program("smbd", "samba", fuse=False), "-F", "--no-process-group", "-s", str(config), "--debug-stdout"]
    known = ["smbpasswd", "-c", str(config), "-s", "-a", "root"]
    subprocess.run(known, input=f"{PASSWORD}\n{PASSWORD}\n", text=True, check=True, capture_output=True)
    with emulated(command, port, folder / "log"):
        yield f"smb://root:{PASSWORD}@127.0.0.1:{port}/share/run"


@contextmanager
def ftp(folder: Path) -> Iterator[str]:
    pytest.importorskip("pyftpdlib")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "pyftpdlib", "-i", "127.0.0.1", "-p", str(port), "-w", "-d", str(folder)]
    with emulated([*command, "-u", USER, "-P", PASSWORD], port, folder / "log"):
        yield f"ftp://{USER}:{PASSWORD}@127.0.0.1:{port}/run"


REFUSED: dict[str, Callable[[Path], AbstractContextManager[str]]] = {"SMB .*: mount it": samba, "FTP .*: use SFTP": ftp}
