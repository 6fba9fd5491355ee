"""By which a checkpoint is known again without reading it."""

from __future__ import annotations

import hashlib
import json
import os

from streamxf.formats.contents import Contents
from streamxf.formats.location import Location


def identity_of(location: Location, contents: Contents) -> str:
    """A digest of what tells this checkpoint from others: the ids of its saves, else where its files are, their sizes
    and their versions.
    """
    facts: list[object] = [str(contents.format), sorted(contents.files.items())]
    if contents.save_ids:
        facts.append(sorted(contents.save_ids))
    else:
        alone = not location.is_folder()
        versions = [_version(location, "" if alone else name) for name in sorted(contents.files)]
        facts += [location.path if location.filesystem is not None else os.path.realpath(location.path), versions]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _version(location: Location, name: str) -> object:
    path = f"{location.path.rstrip('/')}/{name}" if name else location.path
    if location.filesystem is not None:
        return location.filesystem.ukey(path)
    return os.stat(path).st_mtime_ns
