"""`SyncedFile`: a file that is to be on the disk when it is done, and that goes there while it is being written.

Left to itself, the kernel keeps in memory what was written until the sync at the end, which then waits for all of it:
a third of a save, for which the disk had done nothing.
"""

from __future__ import annotations

import ctypes
import io
import os
from contextlib import suppress
from typing import Any

from typing_extensions import Buffer

_STEP = 4 * 2**20  # bytes after which the disk is given work; from 1 to 16 MiB saves take as long
_WRITE = 2  # SYNC_FILE_RANGE_WRITE: begin to write, and wait for nothing

_begin: Any = None
with suppress(AttributeError, OSError, TypeError):  # it is Linux's own
    _begin = ctypes.CDLL(None).sync_file_range
    _begin.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class SyncedFile:
    """Writes to `raw` from its start to its end, and syncs it.

    `raw` may be a file without a descriptor, such as an object store's, whose closing stores it.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._written = 0
        self._begun = 0

    def write(self, data: Buffer, /) -> int | None:
        count: int | None = self._raw.write(data)
        self._written += count or 0
        if self._written - self._begun >= _STEP:
            if _begin is not None and (descriptor := self._descriptor()) is not None:
                # Its result does not matter: a file system that cannot do it loses nothing, and what the disk could
                # not take is reported by the sync.
                _begin(descriptor, self._begun, self._written - self._begun, _WRITE)
            self._begun = self._written
        return count

    def sync(self) -> None:
        """Wait until the system has everything, and the disk; raises OSError for whatever they did not take."""
        self._raw.flush()
        if (descriptor := self._descriptor()) is not None:
            os.fsync(descriptor)

    def _descriptor(self) -> int | None:
        with suppress(io.UnsupportedOperation, AttributeError):
            return int(self._raw.fileno())
        return None
