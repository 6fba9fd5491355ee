"""A storage over fsspec that is not local: it shows what was asked of it, and fails as stores' packages do."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

PROTOCOL = "verifytest"
CONCURRENT = "verifytestasync"
BLOCK = 1 << 16


class StoreError(Exception):
    """An error that is neither Python's nor streamxf's, as botocore's are."""


class Remote(AbstractFileSystem):  # type: ignore[misc]
    """A local folder behind ranged reads.

    Attributes
    ----------
    before : callable
        Is told the name of a file, and the range that is about to be read from it; may raise.
    read : list of tuple
        Those that were read.
    """

    protocol = PROTOCOL
    cachable = False
    before: Callable[[str, int, int], None]
    read: list[tuple[str, int, int]]

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        type(self).before("", 0, 0)
        folder = self._strip_protocol(path)
        paths = [os.path.join(folder, name) for name in os.listdir(folder)]
        return [self.info(path) for path in paths] if detail else paths

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        kind = "directory" if os.path.isdir(path) else "file"
        return {"name": path, "size": os.stat(path).st_size, "type": kind}

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any) -> Any:
        return RemoteFile(self, path, mode, block_size=min(block_size or BLOCK, BLOCK))


class RemoteFile(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        Remote.before(os.path.basename(self.path), start, end)
        data = Path(self.path).read_bytes()[start:end]
        Remote.read.append((os.path.basename(self.path), start, end))
        return data


class Concurrent(AsyncFileSystem):  # type: ignore[misc]
    """The same folder behind a client that takes several calls at a time."""

    protocol = CONCURRENT
    cachable = False

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        return await asyncio.to_thread(Remote().ls, path, detail)

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return await asyncio.to_thread(Remote().info, path)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        return await asyncio.to_thread(RemoteFile(Remote(), path, size=os.stat(path).st_size)._fetch_range, start, end)


def url_of(folder: Path) -> str:
    """The folder's URL; nothing was read, and nothing fails."""
    fsspec.register_implementation(CONCURRENT, Concurrent, clobber=True)
    fsspec.register_implementation(PROTOCOL, Remote, clobber=True)  # another test may have imported this module again
    Remote.before = lambda name, start, end: None
    Remote.read = []
    return f"{PROTOCOL}://{folder}"


class Meeting:
    """Lets reads of data files wait until `count` threads are in one of a file that no other thread reads."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=60)
        self._met: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, name: str, start: int, end: int) -> None:
        with self._lock:
            first = name.endswith(".distcp") and name not in self._met
            self._met.add(name)
        if first:
            self._barrier.wait()
