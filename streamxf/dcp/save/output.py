"""One data file that is being written: its position, its size and its digest."""

from __future__ import annotations

import os
from contextlib import suppress
from io import UnsupportedOperation
from time import perf_counter
from typing import IO

import crc32c
from typing_extensions import Buffer

from streamxf.buffers import flat_view, write_all
from streamxf.meter import Meter


class OutputFile:
    """Writes everything it is given to `raw`, however little `raw` takes at a time, and keeps count.

    Parameters
    ----------
    raw : binary file
    meter : Meter
        Is told how long the calls of `raw` take.
    sync : bool
        Whether `finish` has to bring everything to the disk.
    digest : bool
        Whether to compute a CRC of the whole file.

    Attributes
    ----------
    size : int
        Bytes that were written.
    crc : int or None
        CRC-32C of what was written, if it was asked for.
    error : BaseException or None
        The first thing that went wrong.
    """

    def __init__(self, raw: IO[bytes], meter: Meter, *, sync: bool = False, digest: bool = False) -> None:
        self._raw = raw
        self._meter = meter
        self._sync = sync
        self.crc = 0 if digest else None
        self.size = 0
        self.error: BaseException | None = None

    def write(self, data: Buffer, /) -> int:
        if self.error is not None:
            raise self.error
        view = flat_view(data)
        begin = perf_counter()
        try:
            write_all(self._raw, view)
        except BaseException as error:
            self.error = error  # torch.save goes on, and makes a RuntimeError of it in the end, or nothing
            raise
        self._meter.io(perf_counter() - begin)
        if self.crc is not None:
            self.crc = crc32c.crc32c(view, self.crc)
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """The file is flushed once, by `finish`."""

    def finish(self) -> None:
        """Hand everything to the operating system, and to the disk if it must be there.

        Raises
        ------
        OSError
            If it could not be stored.
        """
        begin = perf_counter()
        self._raw.flush()
        if self._sync:
            with suppress(
                UnsupportedOperation, AttributeError
            ):  # an object store has no descriptor: closing the file stores it
                os.fsync(self._raw.fileno())
        self._meter.io(perf_counter() - begin)
