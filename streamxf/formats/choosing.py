"""Some of a checkpoint's items, chosen by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from streamxf.format.items import Item


def chosen(items: Mapping[str, Item], only: Sequence[str], prefix: str) -> dict[str, Item]:
    """Items whose names begin with `prefix` and, without it, match one of the shell patterns `only`; by their names
    without it.
    """
    behind = {name.removeprefix(prefix): item for name, item in items.items() if name.startswith(prefix)}
    if not only:
        return behind
    return {name: item for name, item in behind.items() if any(fnmatchcase(name, pattern) for pattern in only)}
