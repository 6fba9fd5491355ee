"""Files that are no longer written: where no lock keeps saves apart, what no metadata names may be named at once."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from streamxf.checkpoint.storage import Storage

DAY = 86_400.0
"""Seconds: no save takes so long from its last byte to its publication, and no clocks differ so much."""


_WRITTEN = ("LastModified", "last_modified", "mtime", "updated")  # in listings of S3, Azure, SFTP, Google Cloud Storage


def settled(storage: Storage, names: Collection[str], age: float) -> set[str]:
    """Those of the files `names` that were last written at least `age` seconds ago.

    A file of which the storage does not tell is not among them, unless `age` is 0.
    """
    if not age or not names:
        return set(names)
    now = time.time()
    local = storage.local
    listed = {} if local is not None else _listed(storage)
    found = set()
    for name in names:
        with suppress(OSError, NotImplementedError, AttributeError, ValueError):  # it has gone, or nobody can tell
            if local is not None:
                written = os.lstat(os.path.join(local, name)).st_mtime
            elif (
                told := next((listed[name][key] for key in _WRITTEN if key in listed.get(name, ())), None)
            ) is not None:
                written = _seconds(told)
            else:  # a request for each
                written = _seconds(storage.filesystem.modified(storage.inner(name)))
            if now - written >= age:
                found.add(name)
    return found


def _listed(storage: Storage) -> dict[str, Mapping[str, Any]]:
    """What a listing tells of each file. A file system that remembers the one of a moment ago asks for none."""
    entries = storage.filesystem.ls(storage.path, detail=True)
    return {os.path.basename(entry["name"].rstrip("/")): entry for entry in entries}


def _seconds(written: Any) -> float:
    """A moment as a file system of fsspec's gives it, in seconds since 1970."""
    if isinstance(written, str):
        written = datetime.fromisoformat(written)
    return written.timestamp() if isinstance(written, datetime) else float(written)
