"""`Syncing`: a data file on its way to the disk, while the next one is written."""

from __future__ import annotations

import os
from threading import Thread
from typing import IO


class Syncing:
    """Brings what was written to a file to the disk, in a thread of its own.

    Parameters
    ----------
    file : binary file, optional
        Flushed; it may be closed meanwhile. None where nothing is to be done.
    """

    def __init__(self, file: IO[bytes] | None) -> None:
        self._error: OSError | None = None
        self._thread: Thread | None = None
        if file is not None:
            # the same open file: on another one the kernel might not tell what it could not write
            self._thread = Thread(target=self._run, args=(os.dup(file.fileno()),), daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Return once the file is on the disk.

        Raises
        ------
        OSError
            If it could not be stored.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, file: int) -> None:
        try:
            os.fsync(file)
        except OSError as error:
            self._error = error
        finally:
            os.close(file)
