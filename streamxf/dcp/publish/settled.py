"""Files that nobody writes any more: where no lock keeps saves apart, what no metadata names may be named at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from streamxf.dcp.places import local_path

DAY = 86_400.0
"""Seconds: no save takes so long from its last byte to its publication, and no clocks differ so much."""


def settled(filesystem: Any, folder: str | os.PathLike[str], names: Iterable[str], age: float) -> set[str]:
    """Those of the files `names` that were last written at least `age` seconds ago.

    A file of which the storage does not tell is not among them, unless `age` is 0.
    """
    if not age:
        return set(names)
    now = time.time()
    found = set()
    for name in names:
        written = _written(filesystem, filesystem.concat_path(folder, name))
        if written is not None and now - written >= age:
            found.add(name)
    return found


def _written(filesystem: Any, path: str | os.PathLike[str]) -> float | None:
    """When a file was last written, in seconds since 1970; None if nobody can tell."""
    with suppress(OSError, NotImplementedError, AttributeError):  # it has gone, or its file system does not know
        local = local_path(filesystem, path)
        if local is not None:
            return os.lstat(local).st_mtime
        written: float = filesystem.fs.modified(os.fspath(path)).timestamp()
        return written
    return None
