"""What stands in for AWS KMS: moto's server, and one that answers whatever a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3

REGION = "eu-west-1"
CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "a-secret-of-the-test"}


class Kms:
    """Moto's server, for an administrator."""

    def __init__(self, url: str) -> None:
        self.url = url

    def new_key(self) -> str:
        """The ARN of a new key."""
        return self._client.create_key()["KeyMetadata"]["Arn"]

    @cached_property
    def _client(self) -> Any:
        return boto3.client("kms", region_name=REGION, endpoint_url=self.url, **CREDENTIALS)


@dataclass
class Answers:
    """A server that gives the same answer to everything."""

    url: str = ""
    status: int = 200
    answer: dict[str, object] = field(default_factory=dict)
    asked: list[bytes] = field(default_factory=list)

    def set(self, status: int, answer: dict[str, object]) -> None:
        """What to answer from now on; forgets what it was asked."""
        self.status, self.answer, self.asked = status, answer, []


@contextmanager
def answering() -> Iterator[Answers]:
    """Start it on loopback."""
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answers.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answers.answer).encode()
            self.send_response(answers.status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Nothing: the test says what it was asked."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        answers.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield answers
        finally:
            server.shutdown()
            thread.join()
