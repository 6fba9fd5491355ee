"""Some of a checkpoint's items, chosen by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from streamxf.formats.contents import Entry


def chosen(entries: Mapping[str, Entry], only: Sequence[str], prefix: str) -> dict[str, Entry]:
    """Those whose names begin with `prefix` and, without it, match one of the shell patterns `only`; by the names
    without it.
    """
    behind = {name.removeprefix(prefix): entry for name, entry in entries.items() if name.startswith(prefix)}
    if not only:
        return behind
    return {name: entry for name, entry in behind.items() if any(fnmatchcase(name, pattern) for pattern in only)}
