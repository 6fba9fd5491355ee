"""`Draft`: a file that takes its place only when it is whole."""

from __future__ import annotations

import io
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


class Draft:
    """Writes beside `target`, and renames over it when all is well; otherwise what was there stays.

    A link is followed to what it names, which keeps its permissions. Anything but a regular file (a device, a named
    pipe) cannot be replaced, and is written to directly.

    - `file`: write here. Unbuffered: after a fork the child's copy of a buffer would be flushed into the parent's file.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self._target = Path(os.path.realpath(target))  # absolute, so that the folder may change meanwhile
        mode = self._target.stat().st_mode if self._target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            self._draft = None
            self.file: io.FileIO = open(self._target, "wb", buffering=0)  # noqa: SIM115 - closed by `finish`
            return
        self._draft = self._target.with_name(f".{self._target.name}.{secrets.token_hex(4)}.tmp")
        self.file = open(self._draft, "xb", buffering=0)  # noqa: SIM115 - closed by `finish`
        if mode is not None:
            os.chmod(self._draft, stat.S_IMODE(mode))

    def finish(self, complete: bool) -> None:
        """Put the file in its place if it is `complete`, else remove it. Raises OSError if it could not be stored or
        put there; what was there before then still is.
        """
        if self._draft is None:
            self.file.close()
            return
        try:
            if complete:
                os.fsync(self.file.fileno())
            self.file.close()
            if complete:
                self._draft.replace(self._target)
        finally:
            with suppress(OSError):
                self.file.close()
            self._draft.unlink(missing_ok=True)
