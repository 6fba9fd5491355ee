"""`FileTree`: the regular files in a folder and below it, and what else is there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from streamxf.errors import UnsupportedError
from streamxf.format.limits import MAX_PATH
from streamxf.storage.storage import Storage, StorageEntry
from streamxf.wording import printable, some

_EMPTY = "an empty folder"
_SPECIAL = "not a regular file of known size"
_STRANGE = "a name that cannot be restored everywhere"


@dataclass(frozen=True)
class FileTree:
    """A folder, or a single file.

    - `files`: sizes by relative paths, sorted; a link to a regular file counts as that file.
    - `left_out`: what else there is, each path with the reason why it is not packed.
    """

    storage: Storage
    is_folder: bool
    files: Mapping[str, int]
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, storage: Storage) -> FileTree:
        """List a folder or a file."""
        if not storage.is_folder():
            with storage.open() as file:
                return cls(storage, False, {storage.name: file.size})
        found = {each.name: _what(storage, each) for each in storage.below(folders=True)}
        full = {path.rpartition("/")[0] for path in found}
        files: dict[str, int] = {}
        left_out = []
        for path, what in sorted(found.items()):
            if isinstance(what, int) and path not in full:
                files[path] = what
            elif isinstance(what, int) or path not in full:  # an object may have a name that others have as a folder
                if what == _EMPTY and storage.near and any(storage.entries(path)):  # or it may not be read
                    raise UnsupportedError("the folder lies too deep to be packed", file=storage.full(path))
                left_out.append(f"{printable(path, 200)} ({_STRANGE if isinstance(what, int) else what})")
        return cls(storage, True, files, tuple(left_out))

    def notes(self) -> tuple[str, ...]:
        """What a report says of `left_out`, if there is any."""
        return (f"only regular files are packed; left out: {some(self.left_out)}",) if self.left_out else ()

    def place(self, path: str) -> Storage:
        """Where a file is."""
        return self.storage.child(path) if self.is_folder else self.storage

    def identity(self) -> str:
        """A digest of the paths, sizes and times of all files, to recognize them by."""
        versions = [[path, self.place(path).version()] for path in self.files]
        return hashlib.sha256(json.dumps([self.storage.real(), self.left_out, versions]).encode()).hexdigest()


def _what(storage: Storage, entry: StorageEntry) -> int | str:
    """The size of a file; of anything else what it is, if nothing is in it."""
    if not is_inside(entry.name):
        return _STRANGE
    if entry.kind == "link":
        with suppress(OSError):  # it leads nowhere, or in circles
            entry = storage.child(entry.name).info()
        if entry.kind != "file":
            return "a link, but not to a regular file"
    if entry.kind == "folder":
        return _EMPTY
    return _SPECIAL if entry.size is None else entry.size


def is_inside(path: str) -> bool:
    """Whether a relative path stays in its folder on every system, and is printable."""
    if len(path) > MAX_PATH or not path.isprintable() or "\\" in path:
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))
