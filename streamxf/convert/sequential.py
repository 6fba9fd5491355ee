"""`find_framed`: a plain tensor in a stream that can only be read once, as what another's stream extension makes is."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import IO

from streamxf.dcp.tensors.framing import Frame
from streamxf.errors import ChecksumError, ContainerError, located
from streamxf.fileio.ring import Buffer

_DESCRIPTOR = b"PK\x07\x08"  # stands behind each record, and its CRC-32 behind that
_END = 2**16  # bytes; torch writes about a thousand behind the elements
_CRCS = re.compile(re.escape(_DESCRIPTOR) + b"(.{4})", re.DOTALL)


def find_framed(stream: IO[bytes], frame: Frame, size: int, *, file: str, item: str) -> SequentialFeed | None:
    """The elements of a tensor that torch saved as `frame` says, but for the CRC-32 of records; None if it is framed in
    another way. Then some of the stream has been read.

    Parameters
    ----------
    size : int
        Bytes of the elements.
    file, item : str
        For errors.
    """
    with located(file=file, item=item):
        found = _read(stream, len(frame.prefix)) if size else b""
    if _CRCS.sub(_DESCRIPTOR, found) != _CRCS.sub(_DESCRIPTOR, frame.prefix):
        return None
    return SequentialFeed(stream, size, file, item)


class SequentialFeed:
    """The elements, read from their beginning to their end.

    Parameters
    ----------
    stream : binary file
        At the first element.
    size : int
    file, item : str
        For errors.
    """

    def __init__(self, stream: IO[bytes], size: int, file: str, item: str) -> None:
        self.size = size
        self._stream = stream
        self._left = size
        self._crc = 0
        self._place = {"file": file, "item": item}

    def copy(self, start: int, count: int, target: Buffer, at: int) -> Callable[[], None]:
        with located(**self._place):
            data = _read(self._stream, count)
            if len(data) < count:
                raise ContainerError("the item ends before the tensor does: it was cut")
            target.memory[at : at + count] = data
            self._crc = zlib.crc32(data, self._crc)
            self._left -= count
            if not self._left:
                self._finish()
        return _done

    def _finish(self) -> None:
        end = _read(self._stream, _END)
        if not end.startswith(_DESCRIPTOR) or len(end) == _END:
            raise ContainerError("what follows the tensor's bytes is not what torch saves there: the item is damaged")
        expected = int.from_bytes(end[4:8], "little")
        if expected and self._crc != expected:
            raise ChecksumError(
                "the tensor's bytes do not match the CRC-32 that torch saved with them: they were damaged since. "
                "Restore the file from a copy"
            )


def _read(stream: IO[bytes], size: int) -> bytes:
    parts = []
    while size and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _done() -> None:
    """It was read already."""
