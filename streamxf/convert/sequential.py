"""`find_framed`: a plain tensor in a stream that can only be read once, as what another's stream extension makes is."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import IO

from streamxf.dcp.load.stored import Geometry
from streamxf.dcp.tensors.framing import frame_of
from streamxf.dcp.verify.archive import Hole, find_payload
from streamxf.errors import ChecksumError, ContainerError, located
from streamxf.fileio.ring import Buffer

_DESCRIPTOR = b"PK\x07\x08"  # stands behind each record, and its CRC-32 behind that
_END = 2**16  # bytes; torch writes about a thousand behind the elements
_CRCS = re.compile(re.escape(_DESCRIPTOR) + b"(.{4})", re.DOTALL)


def find_framed(stream: IO[bytes], geometry: Geometry, *, file: str, item: str) -> SequentialFeed | None:
    """The elements of a plain tensor, if the stream begins as torch saves one, but for the CRC-32 of records; None if
    it begins in another way. Then some of it has been read.

    Parameters
    ----------
    file, item : str
        For errors.
    """
    frame = frame_of(geometry.dtype, geometry.shape, geometry.strides)
    with located(file=file, item=item):
        found = _read(stream, len(frame.prefix)) if geometry.nbytes else b""
    if _CRCS.sub(_DESCRIPTOR, found) != _CRCS.sub(_DESCRIPTOR, frame.prefix):
        return None
    return SequentialFeed(stream, found, geometry, file, item)


class SequentialFeed:
    """The elements, read from their beginning to their end. Only then comes the zip file's directory, which says where
    a reader finds them: in any other place they are another tensor's.

    Parameters
    ----------
    stream : binary file
        At the first element.
    prefix : bytes
        What was read before.
    geometry : Geometry
    file, item : str
        For errors.
    """

    def __init__(self, stream: IO[bytes], prefix: bytes, geometry: Geometry, file: str, item: str) -> None:
        self.size = geometry.nbytes
        self._stream = stream
        self._prefix = prefix
        self._geometry = geometry
        self._left = self.size
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
        whole = Hole(self._prefix, self.size, end)
        begin, expected = find_payload(whole, whole.size, self._geometry) or (None, 0)
        if begin != len(self._prefix) or len(end) == _END:
            raise ContainerError("what follows the tensor's bytes is not what torch saves there: the item is damaged")
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
