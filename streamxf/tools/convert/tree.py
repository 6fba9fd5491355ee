"""`Tree`: the regular files in a folder and below it, and what else is there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from streamxf.format.limits import MAX_PATH
from streamxf.storage.storage import Storage
from streamxf.wording import printable, some

_EMPTY = "an empty folder"
_SPECIAL = "not a regular file of known size"
_STRANGE = "a name that cannot be restored everywhere"


@dataclass(frozen=True)
class Tree:
    """A folder, or a single file.

    - `files`: sizes by relative paths, sorted; a link to a regular file counts as that file.
    - `left_out`: what else there is, each path with the reason why it is not packed.
    """

    storage: Storage
    is_folder: bool
    files: Mapping[str, int]
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, storage: Storage) -> Tree:
        """List a folder or a file."""
        if not storage.is_folder():
            with storage.open() as file:
                return cls(storage, False, {storage.name: file.size})
        found = dict(_walk(storage.local) if storage.local is not None else _find(storage))
        full = {path.rpartition("/")[0] for path in found}
        files: dict[str, int] = {}
        left_out = []
        for path, what in sorted(found.items()):
            if isinstance(what, int) and path not in full:
                files[path] = what
            elif isinstance(what, int) or path not in full:  # an object may have a name that others have as a folder
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
        local = self.storage.local
        where = os.path.realpath(local) if local is not None else self.storage.path
        versions = [[path, self.place(path).version()] for path in self.files]
        return hashlib.sha256(json.dumps([where, self.left_out, versions]).encode()).hexdigest()


def _walk(folder: str) -> Iterator[tuple[str, int | str]]:
    """Everything in a local folder: sizes of files, and of anything else what it is, if nothing is in it."""
    left = [(folder, "")]
    while left:
        whole, prefix = left.pop()
        with os.scandir(whole) as entries:
            for entry in entries:
                path = prefix + entry.name
                if not is_inside(path):
                    yield path, _STRANGE
                elif entry.is_dir(follow_symlinks=False):
                    left.append((entry.path, f"{path}/"))
                    yield path, _EMPTY
                elif os.path.isfile(entry.path):
                    yield path, entry.stat().st_size
                else:
                    yield path, "a link, but not to a regular file" if entry.is_symlink() else _SPECIAL


def _find(storage: Storage) -> Iterator[tuple[str, int | str]]:
    """The same, where fsspec reads."""
    storage.forget_listings()
    root = storage.path.strip("/")
    for name, entry in storage.filesystem.find(storage.path, withdirs=True, detail=True).items():
        if path := name.strip("/").removeprefix(root).strip("/"):
            is_file = entry["type"] == "file" and entry.get("size") is not None
            other = _EMPTY if entry["type"] == "directory" else _SPECIAL
            yield path, _STRANGE if not is_inside(path) else int(entry["size"]) if is_file else other


def is_inside(path: str) -> bool:
    """Whether a relative path stays in its folder on every system, and is printable."""
    if len(path) > MAX_PATH or not path.isprintable() or "\\" in path:
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))
