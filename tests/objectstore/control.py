"""`proxied` starts a proxy in front of a server; `Proxy` asks it what passed, and tells it what shall go wrong."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .requests import Fault, Request

SECONDS = 60.0  # far above what any answer takes


@dataclass(frozen=True)
class Proxy:
    """A proxy that runs, by its URL: any process may use it, children of the one that started it among them."""

    url: str

    def faults(self, *faults: Fault) -> None:
        """What shall go wrong from now on, in place of earlier; of several that suit a request, the first."""
        self._ask("faults", faults=[asdict(fault) for fault in faults])

    def pace(self, rate: float = 0, latency: float = 0) -> None:
        """Limit the bytes per second of all connections together, each way, and delay each request by seconds."""
        self._ask("pace", rate=rate, latency=latency)

    def forget(self) -> None:
        """Begin to count anew."""
        self._ask("forget")

    def requests(self, wait: float = SECONDS / 2) -> list[Request]:
        """What passed since, once nothing is under way, or after that many seconds."""
        return [Request(**each) for each in self._ask("requests", wait=wait)]

    def counts(self) -> Counter[str]:
        """How many requests of each operation there were."""
        return Counter(request.operation for request in self.requests())

    def _ask(self, what: str, **told: Any) -> Any:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=SECONDS)
        try:
            connection.request("POST", f"/-/{what}", json.dumps(told))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def most_at_once(requests: list[Request]) -> int:
    """How many of these requests were under way at the same time, at most."""
    moments = sorted([(each.begun, 1) for each in requests] + [(each.ended, -1) for each in requests])
    under_way, most = 0, 0
    for _, change in moments:
        under_way += change
        most = max(most, under_way)
    return most


@contextmanager
def proxied(server: str) -> Iterator[Proxy]:
    """Run a proxy in front of the server at a URL, in a process of its own."""
    address = urlsplit(server)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("LD_PRELOAD", None)
    command = [sys.executable, "-m", "tests.objectstore.proxy", str(address.hostname), str(address.port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip().decode()
        if not port:
            raise RuntimeError("the proxy did not start; why is above")
        yield Proxy(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.communicate()
