"""Storages as a user writes them: in memory, and over a plain HTTP server."""

import html
import io
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen

from streamxf import Storage
from streamxf.errors import ReplacedMeanwhile
from streamxf.storage.abilities import Abilities
from streamxf.storage.storage import StorageEntry
from streamxf.storage.stores import ABSENT


class MemoryStorage(Storage):
    """A dict of files, which counts versions."""

    own_abilities = Abilities(
        "none",
        stored=True,
        in_order=True,
        fresh=True,
        copies=True,
        threads=True,
        creates=True,
        replaces=True,
        flat=True,
    )

    def __init__(self, path: str = "") -> None:
        super().__init__(path)
        self.files: dict[str, tuple[bytes, int]] = {}
        self._lock = threading.Lock()

    def info(self, path: str = "") -> StorageEntry:
        key = self.path_of(path)
        if key in self.files:
            data, version = self.files[key]
            return StorageEntry(path.rpartition("/")[2], "file", len(data), tag=str(version))
        if any(other.startswith(f"{key}/" if key else "") for other in [*self.files]):
            return StorageEntry(path.rpartition("/")[2], "folder")
        raise FileNotFoundError(key)

    def entries(self, path: str = "") -> Iterable[StorageEntry]:
        key = self.path_of(path)
        prefix = f"{key}/" if key else ""
        names = {other.removeprefix(prefix).partition("/")[0] for other in [*self.files] if other.startswith(prefix)}
        if not names:
            raise FileNotFoundError(key)
        return [self.info(f"{path}/{name}" if path else name)._replace(name=name) for name in sorted(names)]

    def read(self, path: str, start: int, stop: int) -> bytes:
        try:
            return self.files[self.path_of(path)][0][start:stop]
        except KeyError:
            raise FileNotFoundError(path) from None

    def stamp(self, name: str) -> str | None:
        with self._lock:
            return self._stamp(name)

    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        with self._lock:
            if over is not None and over != self._stamp(path):
                raise ReplacedMeanwhile
            self.files[self.path_of(path)] = bytes(data), len(self.files) + id(data)

    @contextmanager
    def create(self, path: str = "") -> Iterator[IO[bytes]]:
        file = io.BytesIO()
        yield file
        self.write(path, file.getvalue())

    def remove(self, paths: Iterable[str]) -> dict[str, Exception]:
        for path in paths:
            self.files.pop(self.path_of(path), None)
        return {}

    def _stamp(self, name: str) -> str:
        found = self.files.get(self.path_of(name))
        return ABSENT if found is None else str(found[1])


class HttpStorage(Storage):
    """What a web server shows: its listings are pages of links, and it knows ranges."""

    def __init__(self, url: str) -> None:
        super().__init__("", url)
        self._base = url

    def info(self, path: str = "") -> StorageEntry:
        with self._asked(path, "HEAD") as answer:
            name = path.rpartition("/")[2]
            if answer.url.endswith("/"):
                return StorageEntry(name, "folder")
            return StorageEntry(
                name, "file", int(answer.headers["Content-Length"]), tag=answer.headers["Last-Modified"]
            )

    def entries(self, path: str = "") -> Iterable[StorageEntry]:
        with self._asked(f"{path}/".lstrip("/")) as answer:
            links = re.findall(r'<a href="([^"]+)"', answer.read().decode())
        for link in map(unquote, map(html.unescape, links)):
            found = self.info(f"{path}/{link}".strip("/"))
            yield found._replace(name=link.rstrip("/"))

    def read(self, path: str, start: int, stop: int) -> bytes:
        try:
            with self._asked(path, Range=f"bytes={start}-{max(start, stop - 1)}") as answer:
                data: bytes = answer.read()
                return data[: stop - start] if answer.status == 206 else data[start:stop]
        except HTTPError as error:
            if error.code == 416:  # it begins behind the end
                return b""
            raise

    @contextmanager
    def _asked(self, path: str, method: str = "GET", **headers: str) -> Iterator[Any]:
        url = f"{self._base}/{quote(self.path_of(path))}"
        try:
            with urlopen(Request(url, method=method, headers=headers), timeout=30) as answer:
                yield answer
        except HTTPError as error:
            if error.code == 404:
                raise FileNotFoundError(url) from None
            raise


class WholeFiles(SimpleHTTPRequestHandler):
    """Python's own server, which knows no ranges."""

    def log_message(self, *_: Any) -> None:
        """Nothing to say."""


class Ranges(WholeFiles):
    """The same with ranges."""

    def send_head(self) -> Any:
        path, wanted = Path(self.translate_path(self.path)), self.headers.get("Range")
        if wanted is None or not path.is_file() or self.path.endswith("/"):
            return super().send_head()
        start, stop = map(int, wanted.removeprefix("bytes=").split("-"))
        data = path.read_bytes()
        if start >= len(data):
            self.send_error(416)
            return None
        part = data[start : stop + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        return io.BytesIO(part)


@contextmanager
def web_server(folder: Path, kind: type[SimpleHTTPRequestHandler] = Ranges) -> Iterator[str]:
    """The URL of a web server that shows a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *given: kind(*given, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
