"""`StoredFile`: a file that is open for reading; and `OpenFiles`, which keeps as many of them open as pays."""

from __future__ import annotations

import errno
import io
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from streamxf.errors import ContainerError
from streamxf.storage.fetch import FetchedFile
from streamxf.storage.source import FileSlice, PositionalFile

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass
class StoredFile:
    """A file that is open for reading.

    - `name`: for errors.
    - `access`: to the file, by position; may be replaced by one that counts or measures.
    - `fetched`: the file in an object store, below `access`; None of any other file.
    """

    name: str
    size: int
    raw: IO[bytes]
    access: PositionalFile
    fetched: FetchedFile | None = None
    _ahead: tuple[int, bytes] = (0, b"")

    def slice(self, at: int, size: int) -> FileSlice:
        if at + size > self.size:
            raise ContainerError(
                f"{size} bytes at {at} reach beyond the end of the file, which has {self.size}: it was cut",
                file=self.name,
            )
        start, ahead = self._ahead
        if start <= at and at + size <= start + len(ahead):
            return FileSlice(self.access, at, size, ahead[at - start : at - start + size])
        return FileSlice(self.access, at, size)

    def read_ahead(self, at: int, size: int) -> None:
        """Read `size` bytes at once, so that slices of them need not be read one by one."""
        self._ahead = at, FileSlice(self.access, at, size).read_at(0, size)

    def read(self, at: int = 0, size: int | None = None) -> bytes:
        size = self.size - at if size is None else size
        return self.slice(at, size).read_at(0, size)


def size_of(raw: IO[bytes]) -> int | None:
    """The size of a file, which is at its start then; None if it does not say, as those in /proc."""
    try:
        size = raw.seek(0, os.SEEK_END)
        raw.seek(0)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
    return size


class RangedFile(io.RawIOBase):
    """A file whose bytes `read` gives, from one position to another. Several threads may read it by position."""

    parallel = True

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._at = 0

    def read_into(self, position: int, out: memoryview) -> int:
        stop = min(position + len(out), self._size)
        data = self._read(position, stop) if position < stop else b""
        out[: len(data)] = data  # a ValueError if there is more than was asked for
        return len(data)

    def expect(self, start: int, stop: int) -> None:
        """Nothing is fetched ahead."""

    def readinto(self, out: Buffer, /) -> int:
        count = self.read_into(self._at, memoryview(out).cast("B"))
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


# Tensors of many ranks lie in the files of all of them; what is opened elsewhere may hold much of a file ahead.
_NEAR, _FAR = 256, 8


class OpenFiles:
    """Opens files by name, and closes the one that was used least recently when there are too many; not while blocks of
    it are under way.

    - `near`: as `Storage.near`.
    """

    def __init__(self, open_file: Callable[[str], AbstractContextManager[StoredFile]], *, near: bool) -> None:
        self._open = open_file
        self._most = _NEAR if near else _FAR
        self._files: OrderedDict[str, tuple[StoredFile, ExitStack]] = OrderedDict()

    def __getitem__(self, name: str) -> StoredFile:
        if (known := self._files.get(name)) is not None:
            self._files.move_to_end(name)
            return known[0]
        while len(self._files) >= self._most:
            _, (_, stack) = self._files.popitem(last=False)
            stack.close()
        stack = ExitStack()
        opened = stack.enter_context(self._open(name))
        self._files[name] = opened, stack
        return opened

    def close(self) -> None:
        while self._files:
            _, (_, stack) = self._files.popitem()
            stack.close()
