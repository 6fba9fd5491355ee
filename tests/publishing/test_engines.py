"""The calls by which engines reload, at real servers that answer as SGLang 0.5.23 and vLLM 0.33 do."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from streamxf import errors
from streamxf.publishing.engines import InferenceEngine
from streamxf.publishing.version import Version
from tests.cli.command import Run
from tests.publishing.weights import Policy, publisher

VERSION = Version("0" * 32, 4, 120, "a" * 32, "step-120")


class Server:
    """Notes what is asked, and answers by path; with a status alone, or with a status and a body."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked.append((self.path, json.loads(body)))
                status, text = outer.answers.get(self.path.partition("?")[0], (200, '{"success": true}'))
                if status is None:
                    self.connection.close()
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


VLLM = [
    ("/pause?mode=wait", {}),
    ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/dev/shm/policy/one"}}),
    ("/reset_prefix_cache", {}),
    ("/resume", {}),
]


def test_sglang_is_asked_once(server: Server):
    InferenceEngine(f"sglang={server.url}").reload("/dev/shm/policy/one", VERSION)
    content = {"model_path": "/dev/shm/policy/one", "weight_version": f"120-{'a' * 32}", "flush_cache": True}
    assert server.asked == [("/update_weights_from_disk", content)]


def test_vllm_is_paused_reloaded_and_resumed(server: Server):
    InferenceEngine(f"vllm={server.url}/").reload("/dev/shm/policy/one", VERSION)
    assert server.asked == VLLM


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((500, '{"error": "out of memory"}'), "answered 500: .*out of memory"),
        ((200, '{"success": false}'), "answered 200: .*false"),
        ((307, ""), "answered 307: Temporary Redirect"),
        ((None, ""), "did not answer"),
    ],
)
def test_each_call_that_fails_is_told_and_vllm_is_always_resumed(server: Server, at: int, answer: Any, text: str):
    path = VLLM[at][0].partition("?")[0]
    server.answers[path] = answer
    with pytest.raises(errors.ForeignError, match=f"{path} {text}"):
        InferenceEngine(f"vllm={server.url}").reload("/dev/shm/policy/one", VERSION)
    assert server.asked == [*VLLM[: min(at + 1, 3)], VLLM[3]]


def test_one_that_stays_paused_is_told_too(server: Server):
    server.answers |= {"/collective_rpc": (500, "first"), "/resume": (500, "second")}
    with pytest.raises(errors.ForeignError, match="first") as caught:
        InferenceEngine(f"vllm={server.url}").reload("/dev/shm/policy/one", VERSION)
    assert "still be paused: " in caught.value.__notes__[0]
    assert "second" in caught.value.__notes__[0]


@pytest.mark.parametrize("text", ["sglang", "sglang=localhost:1", "vllm=ftp://x", "tgi=http://x", "vllm=http://"])
def test_what_is_no_engine_is_refused(text: str):
    with pytest.raises(errors.ParameterError, match="no engine"):
        InferenceEngine(text)


def test_the_command_tells_engines_until_they_have_it(tmp_path: Path, run: Run, server: Server):
    publisher(tmp_path / "run").publish(1, Policy().tensors.items())
    once = ("follow", tmp_path / "run", "--into", tmp_path / "into", "--once", "--engine", f"sglang={server.url}")
    server.answers["/update_weights_from_disk"] = (400, '{"success": false, "message": "no such shape"}')
    assert "answered 400" in run.exits(1, *once).err
    server.answers.clear()
    run.exits(0, *once)
    run.exits(0, *once)
    assert [content["model_path"] for _, content in server.asked] == [str(tmp_path / "into/one")] * 2
