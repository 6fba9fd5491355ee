"""`Tape`: a file that is read front to back by position, with a digest over all of it."""

from __future__ import annotations

from typing import Any

import crc32c

from streamxf.errors import ContainerError
from streamxf.fileio.source import Access, access_to

STEP = 2**20


class Tape:
    """An `Access` to a file that takes the digest of what is read at its front; each byte counts once.

    Reads behind the front and beyond it are fine, and leave the digest alone.

    Parameters
    ----------
    file : seekable binary file
    size : int
        Its bytes.

    Attributes
    ----------
    size : int
    front : int
        Up to where the digest goes.
    """

    parallel = False

    def __init__(self, file: Any, size: int) -> None:
        self._access: Access = access_to(file)
        self.size = size
        self.front = 0
        self._crc = 0
        self._buffer = memoryview(bytearray(STEP))

    def read_into(self, position: int, out: memoryview) -> int:
        done = self._access.read_into(position, out)
        if position <= self.front < position + done:
            self._crc = crc32c.crc32c(out[self.front - position : done], self._crc)
            self.front = position + done
        return done

    def advance(self, position: int) -> None:
        """Read up to `position`, what was not read yet.

        Raises
        ------
        ContainerError
            If the file ends before.
        """
        while self.front < position:
            if not self.read_into(self.front, self._buffer[: min(STEP, position - self.front)]):
                raise ContainerError("the file ends before it should: it was cut while it was read")

    def digest(self) -> str:
        """Over the whole file, as a manifest has it; raises as `advance`."""
        self.advance(self.size)
        return f"crc32c:{self._crc:08x}"
