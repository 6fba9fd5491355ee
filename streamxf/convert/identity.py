"""By which a checkpoint is known again without reading it."""

from __future__ import annotations

import hashlib
import json
import os

from streamxf.errors import ContainerError, names_no_file
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
        facts += [place_of(location), [version_of(location, "" if alone else name) for name in sorted(contents.files)]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def place_of(location: Location) -> str:
    """Where it is, however it is called."""
    return location.path if location.filesystem is not None else os.path.realpath(location.path)


def version_of(location: Location, name: str = "") -> object:
    """What changes when anybody writes to a file of a folder, or to this file itself, or puts another in its place;
    None where there is no local file.

    Times of writing alone would not do: programs that copy files set them to what they were.
    """
    path = f"{location.path.rstrip('/')}/{name}" if name else location.path
    if location.filesystem is not None:
        location.filesystem.invalidate_cache()  # which may remember what has changed since
        return location.filesystem.ukey(path)
    try:
        facts = os.stat(path)
    except OSError as error:
        if names_no_file(error):
            return None  # who opens it says which item is missing with it
        raise
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]


def check_same(place: str, before: object, now: object) -> None:
    """Refuse to go on with a source that is another one than when it was opened.

    Raises
    ------
    ContainerError
        What was read may be partly of the one, partly of the other.
    """
    if now != before:
        raise ContainerError(
            "the source was changed while it was read, so the copy was not published; call again when nobody writes to "
            "it any more",
            file=place,
        )
