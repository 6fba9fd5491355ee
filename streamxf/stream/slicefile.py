"""`SliceFile`: a part of a file, for code that wants a file."""

from __future__ import annotations

import io
from typing import Any

from streamxf.stream.source import FileSlice


class SliceFile(io.RawIOBase):
    """A slice as a file that can seek."""

    def __init__(self, source: FileSlice) -> None:
        super().__init__()
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        size = max(0, min(len(buffer), self._source.length - self._position))
        self._source.read_into(self._position, memoryview(buffer).cast("B")[:size])
        self._position += size
        return size
