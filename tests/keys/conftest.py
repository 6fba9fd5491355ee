"""A KMS that answers on loopback: moto's server, in a process of its own."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.keys.endpoints import CREDENTIALS, Kms, write_certificate

# ends with its input, and so with the process of these tests, however that ends
SERVER = """
import os, sys, threading
from moto.server import main

threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
main(["-H", "127.0.0.1", "-p", "0", "-c", sys.argv[1], "-k", sys.argv[2]])
"""


@pytest.fixture(scope="session")
def kms_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kms]:
    pytest.importorskip("moto")
    folder = tmp_path_factory.mktemp("kms")
    log = folder / "log"
    certificate, key = write_certificate(folder)
    command = (sys.executable, "-c", SERVER, certificate, key)
    with log.open("wb") as sink, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sink, stderr=sink) as server:
        try:
            yield Kms(_address(server, log.read_text), certificate)
        finally:
            server.kill()


def _address(server: subprocess.Popen[bytes], said: Callable[[], str]) -> str:
    """Where the server listens, which it says once it does."""
    while True:
        if found := re.search(r"https://127\.0\.0\.1:\d+", said()):
            return found[0]
        try:
            code = server.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"moto's server ended with {code}: {said()}")


@pytest.fixture
def kms(kms_server: Kms, monkeypatch: pytest.MonkeyPatch) -> Kms:
    """The server, which boto3 finds by its own environment variables."""
    settings = {
        "AWS_ENDPOINT_URL_KMS": kms_server.url,
        "AWS_CA_BUNDLE": kms_server.certificate,
        **{name.upper(): value for name, value in CREDENTIALS.items()},
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return kms_server
