"""What lies in a checkpoint's folder, and which of it writers made."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from streamxf.dcp.places import local_path

_RANK = r"__(?P<rank>0|[1-9][0-9]{0,9})"
OWN_FILE = re.compile(_RANK + r"_[0-9]+_(?P<writer>[0-9a-f]{32})\.distcp", re.ASCII)
"""Data files of streamxf's writers."""
SLIP = re.compile(OWN_FILE.pattern + r"\.slip", re.ASCII)
"""What `streamxf.convert` notes of a data file that is finished, until all are."""
TORCH_FILE = re.compile(_RANK + r"_[0-9]+\.distcp", re.ASCII)
"""Data files of torch's writers, and attached ones."""
RANK_METADATA = re.compile(_RANK + r"\.metadata", re.ASCII)
DRAFT = re.compile(rf"(?:\.|{_RANK}\.)metadata\.[0-9a-f]{{8}}\.tmp", re.ASCII)
"""Metadata that is about to be published, of streamxf's writers."""
_SLIP_DRAFT = re.compile(SLIP.pattern + r"\.[0-9a-f]{8}\.tmp", re.ASCII)
_TORCH_DRAFT = re.compile(rf"(?:\.|{_RANK}\.)metadata\.tmp", re.ASCII)

_MADE = (OWN_FILE, SLIP, TORCH_FILE, RANK_METADATA, DRAFT, _SLIP_DRAFT, _TORCH_DRAFT)


def list_files(
    filesystem: Any, folder: str | os.PathLike[str], known: Collection[str] | None = None
) -> dict[str, int | None]:
    """The names directly in a folder, without those of folders, each with its size in bytes.

    The size is None for what is no regular file, a link say, and where the file system does not tell. A folder that is
    not there has no files.

    Parameters
    ----------
    known : collection of str, optional
        The only names whose sizes matter. In a local folder each size takes a call, over a network perhaps, and every
        rank may ask in a folder that holds the files of all; the sizes of others are None there. They are looked for
        one by one if they are not listed: this process may write to the folder and not list it, or its listing is older
        than they are.
    """
    local = local_path(filesystem, folder)
    if local is not None and known is not None and not os.access(local, os.R_OK):
        return _look_for(local, known)
    found: dict[str, int | None] = {}
    with suppress(FileNotFoundError):
        if local is not None:
            with os.scandir(local) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        continue
                    with suppress(FileNotFoundError):  # removed meanwhile
                        wanted = (known is None or entry.name in known) and entry.is_file(follow_symlinks=False)
                        found[entry.name] = entry.stat(follow_symlinks=False).st_size if wanted else None
            return found | _look_for(local, [name for name in known or () if name not in found])
        inner = filesystem.fs
        inner.invalidate_cache()  # which may remember what has changed since
        for entry in inner.ls(os.fspath(folder), detail=True):
            if entry.get("type") != "directory":
                found[os.path.basename(entry["name"].rstrip("/"))] = entry.get("size")
    return found


def _look_for(folder: str, names: Iterable[str]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for name in names:
        with suppress(FileNotFoundError):
            facts = os.lstat(os.path.join(folder, name))
            found[name] = facts.st_size if stat.S_ISREG(facts.st_mode) else None
    return found


def made_by_writers(name: str) -> bool:
    """Whether a name is one that writers give to files."""
    return any(pattern.fullmatch(name) for pattern in _MADE)


def rank_of(name: str) -> int | None:
    """Whose file it is, by its name; None for what belongs to no single rank."""
    for pattern in _MADE:
        if (found := pattern.fullmatch(name)) is not None:
            return int(found["rank"]) if found["rank"] is not None else None
    return None
