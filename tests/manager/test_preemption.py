"""Notices of clouds, from a server on loopback that answers as their metadata services do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

import streamxf

SPOT = "/latest/meta-data/spot/instance-action"
GCE = "/computeMetadata/v1/instance"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


@dataclass
class Service:
    """A metadata service.

    - `answers`: by path; others are not found.
    - `header`: what a request must have, or it is refused.
    """

    url: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    header: tuple[str, str] = ("", "")
    asked: list[str] = field(default_factory=list)


@contextmanager
def answering(service: Service) -> Iterator[Service]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            service.asked.append(f"{self.command} {self.path}")
            name, value = service.header
            if self.command == "GET" and name and self.headers[name] != value:
                self.send_error(401)
            elif self.command == "PUT" and not self.headers["X-aws-ec2-metadata-token-ttl-seconds"]:
                self.send_error(400)
            elif self.path not in service.answers:
                self.send_error(404)
            else:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(service.answers[self.path].encode())

        do_PUT = do_GET

        def log_message(self, *_: Any) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    with answering(Service()) as service:
        yield service


def test_aws(service: Service) -> None:
    service.header = ("X-aws-ec2-metadata-token", "a token")
    service.answers["/latest/api/token"] = "a token"
    assert not streamxf.aws_notice(service.url)
    service.answers[SPOT] = '{"action": "terminate", "time": "2026-01-01T08:22:00Z"}'
    assert streamxf.aws_notice(service.url)
    assert service.asked == ["PUT /latest/api/token", f"GET {SPOT}"] * 2


def test_aws_refuses(service: Service) -> None:
    """A token that is not taken is no answer that there is no action."""
    service.header = ("X-aws-ec2-metadata-token", "a token")
    service.answers["/latest/api/token"] = "another"
    with pytest.raises(HTTPError):
        streamxf.aws_notice(service.url)


@pytest.mark.parametrize(
    ("preempted", "maintenance", "expected"),
    [
        ("FALSE", "NONE", False),
        ("FALSE\n", "MIGRATE_ON_HOST_MAINTENANCE", False),  # it goes on while it moves
        ("TRUE", "NONE", True),
        ("FALSE", "TERMINATE_ON_HOST_MAINTENANCE\n", True),
    ],
)
def test_gce(service: Service, preempted: str, maintenance: str, expected: bool) -> None:
    service.header = ("Metadata-Flavor", "Google")
    service.answers |= {f"{GCE}/preempted": preempted, f"{GCE}/maintenance-event": maintenance}
    assert streamxf.gce_notice(service.url) == expected


@pytest.mark.parametrize(
    ("kind", "machines", "expected"),
    [
        ("Preempt", ["trainer_1"], True),
        ("Terminate", ["trainer_0", "trainer_1"], True),
        ("Reboot", ["trainer_1"], True),
        ("Redeploy", ["trainer_1"], True),
        ("Freeze", ["trainer_1"], False),  # for some seconds
        ("Preempt", ["trainer_0"], False),
        ("Preempt", [], False),
    ],
)
def test_azure(service: Service, kind: str, machines: list[str], expected: bool) -> None:
    service.header = ("Metadata", "true")
    service.answers[NAME] = "trainer_1"
    service.answers[EVENTS] = json.dumps({"DocumentIncarnation": 1, "Events": []})
    assert not streamxf.azure_notice(service.url)
    event = {"EventId": "1", "EventType": kind, "ResourceType": "VirtualMachine", "Resources": machines}
    service.answers[EVENTS] = json.dumps({"DocumentIncarnation": 2, "Events": [event]})
    assert streamxf.azure_notice(service.url) == expected


@pytest.mark.parametrize("answer", ["", "{}", "[]", '{"Events": [{"EventType": "Preempt"}]}'])
def test_azure_that_answers_something_else(service: Service, answer: str) -> None:
    service.answers[EVENTS] = answer
    with pytest.raises(ValueError):
        streamxf.azure_notice(service.url)


@pytest.mark.parametrize("notice", [streamxf.aws_notice, streamxf.gce_notice, streamxf.azure_notice])
def test_elsewhere(
    notice: Callable[[str], bool], silent: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(URLError):
        notice(f"http://{silent}")
    monkeypatch.setenv("http_proxy", service.url)
    with pytest.raises(URLError):
        notice(f"http://{silent}")
    assert not service.asked, "a proxy does not stand between a machine and its own service"
