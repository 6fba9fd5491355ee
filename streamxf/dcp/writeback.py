"""`WriteBack`: the disk begins to write a large file while the rest of it is still being encoded.

Otherwise all of a file would be waiting in memory when its end is synced, and that wait would be as long as the disk
takes for everything.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from io import UnsupportedOperation
from typing import IO

STEP = 64 * 2**20  # bytes: large enough for a disk to be efficient, small enough to leave little for the end

_fdatasync: Callable[[int], None] | None = getattr(os, "fdatasync", None)  # not every system has it


class WriteBack:
    """Syncs what a file has so far, in a thread beside, every `STEP` bytes or as often as the disk can follow.

    This promises nothing about the data: only the sync at the end does. Where the file has no descriptor, nothing
    happens.

    Parameters
    ----------
    raw : binary file
        Being written from its beginning. It stays open until `end` has returned.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._begun = 0
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def reached(self, size: int) -> None:
        """The file has `size` bytes by now.

        Raises
        ------
        OSError
            If the disk could not take what it was given before. The system tells that once only, so the file is lost.
        """
        if size - self._begun < STEP or _fdatasync is None:
            return
        if self._thread is not None and self._thread.is_alive():
            return  # the disk is behind; the next one will cover more
        self.end()
        self._begun = size
        try:
            descriptor = self._raw.fileno()
        except (UnsupportedOperation, AttributeError):  # an object store has none
            return
        thread = threading.Thread(target=self._sync, args=(descriptor,), name="streamxf-sync", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads are to be had, so all is left to the end
            return
        self._thread = thread

    def end(self) -> None:
        """Wait for what was begun; raises as `reached`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _sync(self, descriptor: int) -> None:
        try:
            if _fdatasync is not None:
                _fdatasync(descriptor)
        except OSError as error:
            self._error = error
