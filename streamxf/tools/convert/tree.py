"""`Tree`: everything in a folder and below it, so that nothing is lost when it is packed."""

from __future__ import annotations

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
    """What is in a folder, by sorted relative paths: sizes of files, folders below it, and targets of symbolic links;
    permissions if the storage has any, those of the folder itself by an empty path; and patterns that exclude nothing.
    """

    files: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    unused: set[str] = field(default_factory=set)
    _refused: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, storage: Storage, exclude: Sequence[str] = (), *, follow_links: bool = False) -> Tree:
        """List a folder; `exclude` and `follow_links` are those of `pack`.

        Raises UnsupportedError, with names, if there is something that could not be restored.
        """
        tree = cls(unused=set(exclude))
        if storage.local is not None:
            tree._note_mode("", os.stat(storage.local).st_mode, folder=True)
        for path, entry in paths_in(storage, exclude, tree.unused):
            if isinstance(entry, os.DirEntry):
                tree._add_local(path, entry, follow_links)
            elif not is_inside(path):
                tree._refuse(path, "a name that cannot be restored everywhere")
            elif entry["type"] == "directory":
                tree.folders.append(path)
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
        if not is_inside(path):
            self._refuse(path, "a name that cannot be restored everywhere")
        elif stat.S_ISDIR(facts.st_mode):
            self.folders.append(path)
            self._note_mode(path, facts.st_mode, folder=True)
        elif stat.S_ISREG(facts.st_mode):
            self.files[path] = facts.st_size
            self._note_mode(path, facts.st_mode, folder=False)
        else:
            self._refuse(path, "not a regular file")

    def _note_mode(self, path: str, mode: int, *, folder: bool) -> None:
        self.modes[path] = stat.S_IMODE(mode) & 0o777
        if folder and mode & _OWNER != _OWNER:
            self._refuse(path or ".", "a folder that its owner may not list, enter and write to")
        if not folder and mode & (stat.S_ISUID | stat.S_ISGID):
            self._refuse(path, "a file that runs with its owner's rights (setuid or setgid)")

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
    storage.filesystem.invalidate_cache()  # which may remember what has changed since
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
    parts = [part for part in leads_to.split("/") if part not in ("", ".")]
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    down = parts[up:]
    return (
        not leads_to.startswith("/")
        and ".." not in down
        and up <= path.count("/")
        and (not down or is_inside("/".join(down)))
    )
