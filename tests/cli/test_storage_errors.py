"""Storage behind a URL that does not answer, or refuses: the line names it, why, and where the settings are."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.command import Done, Run

fsspec_config = pytest.importorskip("fsspec.config")

COMMANDS = [
    *(["inspect", "s3://bucket/step"], ["verify", "s3://bucket/step"], ["recipients", "s3://bucket/step"]),
    *(["diff", "s3://bucket/step", "s3://bucket/other"], ["list", "s3://bucket/step"], ["latest", "s3://bucket/step"]),
    ["forget", "s3://bucket/step", "--keep", "last=1", "--yes"],
]
CREDENTIALS = {"key": "somebody", "secret": "something"}
ONCE = {"config_kwargs": {"retries": {"max_attempts": 0}}}


class Refusing(BaseHTTPRequestHandler):
    """Refuses every request, as S3 refuses credentials that it does not know."""

    def _answer(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = do_POST = _answer

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def configure(monkeypatch: pytest.MonkeyPatch, endpoint: str, **credentials: str) -> None:
    pytest.importorskip("s3fs")
    monkeypatch.setitem(fsspec_config.conf, "s3", {"endpoint_url": endpoint, **ONCE, **credentials})


def check(done: Done, *says: str) -> None:
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert "streamxf's own" not in line
    for text in (*says, "FSSPEC_S3_..."):
        assert text in line


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_endpoint_that_is_down(run: Run, monkeypatch: pytest.MonkeyPatch, silent: str, command: list[str]):
    configure(monkeypatch, f"http://{silent}", **CREDENTIALS)
    check(run(*command), "s3://bucket/step", "Could not connect", f"http://{silent}/")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_credentials_that_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch, refusing: str, command: list[str]):
    configure(monkeypatch, refusing, **CREDENTIALS)
    check(run(*command), "s3://bucket/step", "refuses access", "Forbidden", "operation", "credentials")


@pytest.mark.parametrize("command", COMMANDS[:2], ids=" ".join)
def test_no_credentials(run: Run, monkeypatch: pytest.MonkeyPatch, silent: str, command: list[str]):
    configure(monkeypatch, f"http://{silent}")
    check(run(*command), "NoCredentialsError", "credentials")


def test_as_json(run: Run, monkeypatch: pytest.MonkeyPatch, silent: str):
    configure(monkeypatch, f"http://{silent}", **CREDENTIALS)
    error = run("verify", "s3://bucket/step", "--json").json["error"]
    assert (error["type"], error["exit_code"]) == ("EndpointConnectionError", 2)


def test_a_web_server_that_is_down_is_not_a_missing_file(run: Run, silent: str):
    pytest.importorskip("aiohttp")
    assert f"Cannot connect to host {silent}" in run.exits(2, "inspect", f"http://{silent}/model.safetensors").err


def test_what_is_not_there_is_told_as_before(run: Run, tmp_path: Path):
    assert "there is no such file or folder" in run("inspect", "memory://nothing/there").err
    assert "there is no such file or folder" in run("inspect", f"file://{tmp_path}/nothing").err
