"""How many bytes a second a disk takes: some are written, and synced before the clock is read."""

from __future__ import annotations

import os
import tempfile
import time

from streamxf.buffers import flat_view, write_all
from streamxf.progress import Progress

_STEP = 64 * 2**20
_MAX_FILE = 256 * 2**20
_MAX_BYTES = 4 * 2**30


def measure_bandwidth(folder: str, *, seconds: float = 2.0, progress: Progress | None = None) -> float:
    """Bytes per second that reach the disk of a folder, written by one thread.

    For about `seconds`, noise, which no file system compresses, is written over and over into a file of at most 256
    MiB. The file has no name, so it is gone with the process.
    """
    noise = flat_view(os.urandom(_STEP))
    written = 0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        begin = time.perf_counter()
        while True:
            if progress is not None:
                progress.expect(_STEP)
            file.seek(written % _MAX_FILE)
            write_all(file, noise)
            if progress is not None:
                progress.advance(_STEP)
            os.fsync(file.fileno())
            written += _STEP
            taken = time.perf_counter() - begin
            if taken >= seconds or written >= _MAX_BYTES:
                return written / taken
