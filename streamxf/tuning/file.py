"""A single file as a source: bytes of unknown meaning."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from streamxf.errors import ParameterError
from streamxf.tuning.sample import Part, Place


class File:
    """A file of any kind.

    Parameters
    ----------
    path : str

    Raises
    ------
    ParameterError
        If it is a device, a pipe or the like.
    OSError
        If it cannot be read.
    """

    def __init__(self, path: str) -> None:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ParameterError("this is no regular file, so no sample can be taken of it", file=path)
        self._path = path
        self.parts = [Part(path, None, (status.st_size,), 1)]

    def read(self, places: Sequence[Place]) -> list[bytes]:
        with open(self._path, "rb", buffering=0) as file:
            return [self._read(file.fileno(), place.box.offsets[0], place.box.lengths[0]) for place in places]

    def _read(self, descriptor: int, position: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = os.pread(descriptor, size - len(data), position + len(data))
            if not more:
                raise ParameterError(
                    "the file was cut while it was sampled; is somebody writing to it?", file=self._path
                )
            data += more
        return data
