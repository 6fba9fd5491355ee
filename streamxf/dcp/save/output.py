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
from streamxf.dcp.metadata.manifest import FileFacts
from streamxf.meter import Meter
from streamxf.progress import Share

_STEP = 16 * 2**20  # bytes that are written before somebody hears of them


class OutputFile:
    """Writes everything it is given to `raw`, however little `raw` takes at a time, and keeps count.

    Parameters
    ----------
    raw : binary file
    meter : Meter
        Is told how long the calls of `raw` take.
    sync : bool
        Whether `finish` has to bring everything to the disk.

    Attributes
    ----------
    size : int
        Bytes that were written.
    error : BaseException or None
        The first thing that went wrong.
    share : Share or None
        Is told what is written, meanwhile.
    """

    def __init__(self, raw: IO[bytes], meter: Meter, sync: bool = False) -> None:
        self._raw = raw
        self._meter = meter
        self._sync = sync
        self._crc = 0
        self.size = 0
        self.error: BaseException | None = None
        self.share: Share | None = None

    def write(self, data: Buffer, /) -> int:
        if self.error is not None:
            raise self.error
        view = flat_view(data)
        begin = perf_counter()
        try:
            if self.share is None:
                write_all(self._raw, view)
            else:
                self._write_and_tell(view, self.share)
        except BaseException as error:
            self.error = error  # torch.save goes on, and makes a RuntimeError of it in the end, or nothing
            raise
        self._meter.io(perf_counter() - begin)
        self._crc = crc32c.crc32c(view, self._crc)
        self.size += len(view)
        return len(view)

    def _write_and_tell(self, view: memoryview, share: Share) -> None:
        for start in range(0, len(view), _STEP):
            share.advance(write_all(self._raw, view[start : start + _STEP]))

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

    def facts(self, writer_id: bytes) -> FileFacts:
        """The manifest's entry for the file."""
        return FileFacts(self.size, writer_id.hex(), f"crc32c:{self._crc:08x}")
