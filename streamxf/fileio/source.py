"""Where a reader's bytes come from: a run of bytes inside a seekable file."""

from __future__ import annotations

import io
from typing import Protocol

from streamxf.errors import ContainerError

READ_WHOLE = 128 * 1024
READ_STEP = 32 * 2**20


class Seekable(Protocol):
    """The part of a binary file that `FileSlice` uses."""

    def seek(self, offset: int, whence: int = ..., /) -> int: ...
    def tell(self) -> int: ...
    def read(self, size: int = ..., /) -> bytes | None: ...


class FileSlice:
    """`length` bytes of `file` from `offset`, read by position. A small slice is read whole, once.

    Parameters
    ----------
    file : seekable binary file
        Used by one thread at a time; its position changes.
    offset : int
    length : int, optional
        Up to the end of the file when left out.
    """

    def __init__(self, file: Seekable, offset: int = 0, length: int | None = None) -> None:
        self._file = file
        self._offset = offset
        if length is None:
            # torch's _ReaderView counts seek(-n, SEEK_END) the wrong way round, and its seek() returns the position in
            # the file beneath
            file.seek(0, io.SEEK_END)
            length = file.tell() - offset
        self.length = length
        self._whole: bytes | None = None
        if self.length <= READ_WHOLE:
            self._whole = self._read(0, self.length)

    def read_at(self, position: int, size: int) -> bytes:
        """Exactly `size` bytes from `position` of the slice.

        Raises
        ------
        ContainerError
            If the slice or the file ends before.
        """
        if position < 0 or position + size > self.length:
            raise ContainerError(
                f"the container is truncated: {size} bytes at {position} are missing, it has {self.length}"
            )
        if self._whole is not None:
            return self._whole[position : position + size]
        return self._read(position, size)

    def _read(self, position: int, size: int) -> bytes:
        self._file.seek(self._offset + position)
        parts: list[bytes] = []
        missing = size
        # in steps, so that a length which only pretends takes no more memory than the file has bytes
        while missing and (data := self._file.read(min(missing, READ_STEP))):
            if len(data) == size:
                return data
            parts.append(data)
            missing -= len(data)
        if missing:
            raise ContainerError(f"the file is truncated: it ends {missing} bytes before it should")
        return b"".join(parts)
