"""Places as people have them: a bucket or a server's folder that two hosts mount, or reach by clients of their own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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

OF_BUCKET = ("rclone mount, off", "rclone mount, writes", "s3fs mount", "weed mount", "weed mount, -writebackCache")
PLACES = (*OF_BUCKET, "sshfs mount", "SeaweedFS, obstore", "OpenSSH, sshfs")
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


def command(kind: str, bucket: Bucket, folder: str) -> list[str]:
    """What mounts the bucket in a folder, until it is killed."""
    own, _, how = kind.partition(" mount, ")
    if own == "rclone":
        to = ["--config=/dev/null", "--s3-provider=Other", f"--s3-endpoint={bucket.endpoint}", "--s3-force-path-style"]
        cache = [f"--vfs-cache-mode={how}", f"--cache-dir={folder}-cache"]
        return [program("rclone", "rclone"), "mount", ":s3:checkpoints", folder, *to, *cache]
    if "s3fs" in own:
        to = ["-o", f"url={bucket.endpoint},use_path_request_style"]
        return [program("s3fs", "s3fs"), "checkpoints", folder, "-f", *to]
    program("fusermount3", "fuse3")
    to = [f"-filer={bucket.filer}", "-filer.path=/buckets/checkpoints", *filter(None, [how])]
    return [str(weed()), "mount", *to, f"-dir={folder}", f"-cacheDir={folder}-cache", f"-localSocket={folder}.sock"]


@contextmanager
def two_hosts(kind: str, folder: Path, bucket: Callable[[], Bucket]) -> Iterator[Place]:
    """One of `PLACES`."""
    run, hosts = f"{folder.name}/{RUN}", [str(folder / host) for host in "ab"]
    with ExitStack() as stack:
        if kind in OF_BUCKET:
            commands = [command(kind, bucket(), host) for host in hosts]
            client, path = S3FileSystem(**storage(bucket().endpoint)), f"checkpoints/{run}"
            behind = storage_over(client, path, f"s3://{path}")
        elif kind == "sshfs mount":
            (folder / "root").mkdir()
            to = urlsplit(stack.enter_context(SERVERS["OpenSSH, sshfs"][2](folder / "root"))[0])
            how = f"port={to.port},IdentityFile={folder}/sshd/user,StrictHostKeyChecking=no"
            source = [program("sshfs", "sshfs"), f"{to.username}@{to.hostname}:{to.path}"]
            commands = [[*source, host, "-f", "-o", f"{how},UserKnownHostsFile=/dev/null"] for host in hosts]
            behind = open_storage(f"{to.path}/{run}")
        else:
            there = stack.enter_context(served(kind, folder))
            second = open_storage(f"{there.url}/{RUN}", there.options)
            yield Place((kind, f"{there.url}/{RUN}", there.options), second, second)
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
def serving_refused(kind: str, folder: Path) -> Iterator[str]:
    """A server of SMB or FTP; gives the URL of an empty folder there."""
    pytest.importorskip("smbprotocol" if kind == "smb" else "pyftpdlib")
    (port,), user, share = free_ports(1), USER, ""
    command = [sys.executable, "-m", "pyftpdlib", "-i127.0.0.1", f"-p{port}", "-w", f"-d{folder}", f"-u{USER}"]
    command += [f"-P{PASSWORD}"]
    if kind == "smb":
        user, share, config = "root", "share/", folder / "smb.conf"
        own = [f"{name} directory = {folder}" for name in ("private", "lock", "state", "cache", "pid", "ncalrpc")]
        of_share = ["[share]", f"path = {folder}", "read only = no", ""]
        config.write_text("\n".join(["[global]", *own, f"smb ports = {port}", "interfaces = lo", *of_share]))
        command = [program("smbd", "samba", fuse=False), "-F", "--no-process-group", f"-s{config}", "--debug-stdout"]
        known = ["smbpasswd", f"-c{config}", "-s", "-a", "root"]
        subprocess.run(known, input=f"{PASSWORD}\n" * 2, text=True, check=True, capture_output=True)
    with emulated(command, port, folder / "log"):
        yield f"{kind}://{user}:{PASSWORD}@127.0.0.1:{port}/{share}run"
