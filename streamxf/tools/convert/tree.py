"""`Tree`: everything in a folder and below it, so that nothing is lost when it is packed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from streamxf.checkpoint.storage import Storage
from streamxf.errors import ParameterError, UnsupportedError
from streamxf.format.limits import MAX_PATH
from streamxf.wording import some

_OWNER = stat.S_IRWXU


@dataclass
class Tree:
    """What is in a folder, or a single file, by sorted relative paths.

    - `files`: sizes; `modes`: permissions of files, if the storage has any.
    - `folders`: permissions; the folder itself has an empty path.
    - `links`: targets of symbolic links.
    - `unused`: patterns that exclude nothing.
    """

    storage: Storage
    excluded: tuple[str, ...] = ()
    is_folder: bool = True
    files: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    folders: dict[str, int | None] = field(default_factory=lambda: {"": None})
    links: dict[str, str] = field(default_factory=dict)
    unused: set[str] = field(default_factory=set)
    _refused: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, storage: Storage, exclude: Sequence[str] = (), *, follow_links: bool = False) -> Tree:
        """List a folder or a file; `exclude` and `follow_links` are those of `pack`.

        Raises UnsupportedError, with names, if there is something that could not be restored.
        """
        if not storage.is_folder():
            with storage.open() as file:
                return cls(storage, is_folder=False, files={storage.name: file.size})
        tree = cls(storage, tuple(exclude), unused=set(exclude))
        if storage.local is not None:
            tree._add_folder("", os.stat(storage.local).st_mode)
        for path, entry in paths_in(storage, exclude, tree.unused):
            if isinstance(entry, os.DirEntry):
                tree._add_local(path, entry, follow_links)
            elif not is_inside(path):
                tree._refuse(path, "a name that cannot be restored everywhere")
            elif entry["type"] == "directory":
                tree.folders[path] = None
            elif entry["type"] == "file" and entry.get("size") is not None:
                tree.files[path] = int(entry["size"])
            else:
                tree._refuse(path, "not a file of known size")
        if refused := tree._refused:
            raise UnsupportedError(
                f"the folder has content that could not be restored: {some(refused, '; ')}. Leave it out (exclude); "
                "a link to a file can be packed as that file (follow_links)",
                file=storage.given,
            )
        return tree

    def place(self, path: str) -> Storage:
        """Where a file is."""
        return self.storage.child(path) if self.is_folder else self.storage

    def identity(self) -> str:
        """A digest of the paths, sizes, times, permissions and links of all files, to recognize them by."""
        local = self.storage.local
        where = os.path.realpath(local) if local is not None else self.storage.path
        names = sorted(self.modes.items()), sorted(self.folders.items()), sorted(self.links.items())
        versions = [[path, self.place(path).version()] for path in self.files]
        return hashlib.sha256(json.dumps([where, names, sorted(self.excluded), versions]).encode()).hexdigest()

    def _add_local(self, path: str, entry: os.DirEntry[str], follow_links: bool) -> None:
        facts = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            leads_to = os.readlink(entry.path)
            if leads_inside(path, leads_to):
                self.links[path] = leads_to
                return
            if not follow_links or not entry.is_file():
                self._refuse(path, f"a link that leads out of the folder, to {leads_to:.80}")
                return
            facts = entry.stat()
        mode = facts.st_mode
        if not is_inside(path):
            self._refuse(path, "a name that cannot be restored everywhere")
        elif stat.S_ISDIR(mode):
            self._add_folder(path, mode)
        elif not stat.S_ISREG(mode):
            self._refuse(path, "not a regular file")
        elif mode & (stat.S_ISUID | stat.S_ISGID):
            self._refuse(path, "a file that runs with its owner's rights (setuid or setgid)")
        else:
            self.files[path], self.modes[path] = facts.st_size, stat.S_IMODE(mode) & 0o777

    def _add_folder(self, path: str, mode: int) -> None:
        self.folders[path] = stat.S_IMODE(mode) & 0o777
        if mode & _OWNER != _OWNER:
            self._refuse(path or ".", "a folder that its owner may not list, enter and write to")

    def _refuse(self, path: str, reason: str) -> None:
        self._refused.append(f"{path} ({reason})")


def paths_in(storage: Storage, exclude: Sequence[str], unused: set[str]) -> Iterator[tuple[str, Any]]:
    """The paths in a folder that no pattern excludes, each folder before what is in it, with their `os.DirEntry`, or
    fsspec's facts. Patterns that exclude something are removed from `unused`.
    """
    patterns = {pattern: pattern.rstrip("/") for pattern in exclude}

    def is_excluded(path: str) -> bool:
        found = {pattern for pattern, bare in patterns.items() if fnmatchcase(path, bare)}
        unused.difference_update(found)
        return bool(found)

    return _walk(storage.local, is_excluded) if storage.local is not None else _find(storage, is_excluded)


def refuse_unused(unused: set[str]) -> None:
    """Raise ParameterError for patterns that exclude nothing, which are mistakes."""
    for pattern in sorted(unused):
        raise ParameterError(f"exclude {pattern!r:.200}: nothing in the folder has such a path")


def _walk(folder: str, is_excluded: Callable[[str], bool]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    left = [(folder, "")]
    while left:
        whole, prefix = left.pop()
        with os.scandir(whole) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        kept = [(f"{prefix}{entry.name}", entry) for entry in found if not is_excluded(f"{prefix}{entry.name}")]
        yield from kept
        left += [(entry.path, f"{path}/") for path, entry in reversed(kept) if entry.is_dir(follow_symlinks=False)]


def _find(storage: Storage, is_excluded: Callable[[str], bool]) -> Iterator[tuple[str, dict[str, Any]]]:
    storage.forget_listings()
    root = storage.path.strip("/")
    found = storage.filesystem.find(storage.path, withdirs=True, detail=True)
    paths = {name.strip("/").removeprefix(root).strip("/"): info for name, info in found.items()}
    for path in sorted(filter(None, paths)):
        parts = path.split("/")
        if not any(is_excluded("/".join(parts[:count])) for count in range(1, len(parts) + 1)):
            yield path, paths[path]


def is_inside(path: str) -> bool:
    """Whether a relative path stays in its folder on every system, and is printable."""
    if len(path) > MAX_PATH or not path.isprintable() or "\\" in path or (os.name == "nt" and ":" in path):
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))


def leads_inside(path: str, leads_to: str) -> bool:
    """Whether the target of a link at `path` is in the folder: first up, no further than the folder, and then down, so
    that no other link on the way changes where it leads.
    """
    if leads_to.startswith("/"):
        return False
    parts = [part for part in leads_to.split("/") if part not in ("", ".")]
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return up <= path.count("/") and (up == len(parts) or is_inside("/".join(parts[up:])))
