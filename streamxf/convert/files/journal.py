"""`Journal`: how far files have come that are being written, so that a process which is killed need not begin anew.

It lies beside them, and says no more than what surely is on the disk.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

_VERSION = 1
_MOST = 2**16  # bytes; what a journal has is less


@dataclass(frozen=True)
class Journal:
    """A journal, which need not be there yet.

    Attributes
    ----------
    path : Path
    identity : str
        Of what is being written; a journal of anything else does not count.
    """

    path: Path
    identity: str

    def read(self) -> tuple[int, int]:
        """The number of the file that is being written, and how many of its bytes are there; 0 and 0 if none are."""
        try:
            with open(self.path, "rb") as file:
                found = json.loads(file.read(_MOST))
            if found["version"] == _VERSION and found["identity"] == self.identity:
                return int(found["file"]), int(found["bytes"])
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, KeyError):
            """A power cut may leave half a journal; or it is somebody else's."""
        return 0, 0

    def write(self, file: int, done: int) -> None:
        """Say that all files before `file` are on the disk, and `done` bytes of that one."""
        facts = {"version": _VERSION, "identity": self.identity, "file": file, "bytes": done}
        draft = self.path.with_name(f"{self.path.name}.tmp")
        with open(draft, "w") as stream:
            json.dump(facts, stream)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(self.path)

    def remove(self) -> None:
        """Take it away."""
        self.path.unlink(missing_ok=True)
