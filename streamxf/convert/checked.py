"""`CheckedFeed`: the elements of a tensor that torch saved, compared with the CRC-32 that it wrote."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from streamxf.errors import ChecksumError, located
from streamxf.fileio.ring import Buffer
from streamxf.fileio.source import FileSlice


class CheckedFeed:
    """Bytes of a file, read from their beginning to their end.

    Torch never looks at this CRC when it loads. Here it is the last who can: the copy gets a frame without one, and
    checksums of its own, which would vouch for damage from then on.

    Parameters
    ----------
    slice : FileSlice
    crc : int
    file, item : str, optional
        For errors.
    """

    def __init__(self, slice: FileSlice, crc: int, *, file: str | None = None, item: str | None = None) -> None:
        self.size = slice.length
        self._slice = slice
        self._left = slice.length
        self._expected = crc
        self._crc = 0
        self._place = {"file": file, "item": item}

    def copy(self, start: int, count: int, target: Buffer, at: int) -> Callable[[], None]:
        with located(**self._place):
            out = target.memory[at : at + count]
            self._slice.read_into(start, out)
            self._crc = zlib.crc32(out, self._crc)
            self._left -= count
            if not self._left and self._crc != self._expected:
                raise ChecksumError(
                    "the tensor's bytes do not match the CRC-32 that torch saved with them: they were damaged since. "
                    "Restore the file from a copy"
                )
        return _done


def _done() -> None:
    """It was read already."""
