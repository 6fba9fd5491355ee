"""A data file that is being written: its size and digest, and that nothing of it is stored after an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import UnsupportedOperation
from time import perf_counter
from typing import IO, Any

import crc32c
from typing_extensions import Buffer

from streamxf.buffers import flat_view, write_all
from streamxf.report import Meter


class OutputFile:
    """Writes everything it is given to `raw`, however little `raw` takes at a time, and keeps count.

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


@contextmanager
def storing(opening: AbstractContextManager[Any]) -> Iterator[IO[bytes]]:
    """Open a file for writing; after an error an upload that was begun is aborted.

    A file of an object store is completed when it is closed, also by an exception that leaves its ``with`` block: half
    of a data file would be stored, and the parts of one that cannot be completed would be kept, and paid for.
    """
    stream: Any = None
    discarded = False
    try:
        with opening as stream:
            try:
                yield stream
            except BaseException as error:
                discarded = True
                _discard(stream, error)
                raise
    except BaseException as error:
        if stream is not None and not discarded:  # it could not be closed
            _discard(stream, error)
        raise


def _discard(stream: Any, error: BaseException) -> None:
    if not hasattr(stream, "forced"):  # not one of fsspec's buffered files, which upload
        return
    try:
        stream.discard()
    except Exception as reason:  # a store that does not answer; it must not hide what went wrong before
        error.add_note(
            f"the upload of this file could not be aborted ({type(reason).__name__}: {reason}); the store may keep its "
            "parts until a rule for incomplete uploads removes them"
        )
    finally:
        stream.closed = True  # or it would be completed with what there is
