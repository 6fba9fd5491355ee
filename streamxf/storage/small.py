"""Small files that say something of a run: read so that nobody who plants one stops a job, or fills its memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from streamxf.errors import escaped, redacted
from streamxf.format.limits import MAX_NOTE
from streamxf.format.names import LOCK
from streamxf.storage.fetch import answers
from streamxf.storage.files import NOT_THERE, NotRegular, components
from streamxf.storage.storage import Storage, StorageEntry

MOST_BYTES = MAX_NOTE  # of one file
MOST_IN_ALL = 64 * 2**20  # of all in a folder
MOST_NAMES = 100_000

_log = logging.getLogger(__name__)
_told: set[str] = set()


def read_small(storage: Storage, path: str, most: int = MOST_BYTES) -> bytes | None:
    """A file by its path below the folder; None if it is not there. What is no regular file, lies behind a link or has
    more than `most` bytes counts as not there, with a warning, once for each path.
    """
    components(path)
    try:
        answer: bytes | Exception = storage.read(path, 0, most + 1)
    except OSError as error:
        answer = error
    return _received(storage, path, most, answer)


def small_names(storage: Storage, folder: str) -> dict[str, StorageEntry]:
    """The regular files directly in a folder below, or in the folder itself for "", by their names. Of more than
    100,000, the others are ignored with a warning. A folder that is not there, or a link, has none.
    """
    if folder:
        components(folder)
    try:
        entries = iter(storage.entries(folder))
        found = [each for each in islice(entries, MOST_NAMES) if each.kind == "file" and each.name != LOCK]
        more = next(entries, None) is not None
    except OSError as error:
        if error.errno not in NOT_THERE and not isinstance(error, FileNotFoundError | NotADirectoryError):
            error.filename = storage.label(folder)
            raise
        if not isinstance(error, FileNotFoundError):
            _tell(storage.label(folder), "it is not a folder, or is a link")
        return {}
    if more:
        _tell(f"what else is in {storage.label(folder)}", f"there are more than {MOST_NAMES} names")
    return {each.name: each for each in found if each.size is not None}


def small_files(storage: Storage, folder: str, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The files directly in a folder below whose names are `wanted`, as `read_small` reads them: 64 MiB of them in all.
    Those beyond, and those that cannot be read, are ignored with a warning.
    """
    chosen: list[str] = []
    found: dict[str, bytes] = {}
    held = 0
    for name, size in sorted((name, each.size or 0) for name, each in small_names(storage, folder).items()):
        if not wanted(name):
            continue
        if size > MOST_BYTES:
            _tell(storage.label(_join(folder, name)), f"it has {size} bytes")
        elif held + size > MOST_IN_ALL:
            _tell(f"what else is in {storage.label(folder)}", f"the files there have more than {MOST_IN_ALL} bytes")
            break
        elif not size:
            found[name] = b""
        else:
            held += size
            chosen.append(name)
    left = MOST_IN_ALL
    for name, answer in answers(chosen, lambda name: storage.fetch(_join(folder, name), 0, MOST_BYTES + 1)):
        path, data = _join(folder, name), None
        try:
            data = _received(storage, path, MOST_BYTES, answer)
        except Exception as error:  # of whatever class; these files may be lost
            _tell(storage.label(path), f"{type(error).__name__}: {error}")
        if data is not None and (left := left - len(data)) >= 0:  # they may have grown
            found[name] = data
    return found


def put_small(storage: Storage, path: str, data: bytes, *, once: bool = False, sync: bool = True) -> None:
    """Put a file by its path, in one step, with the folders it needs, through no link; `once` as in `Storage.put`."""
    components(path)
    storage.put(path, data, sync=sync, once=once, make=True)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _tell(place: str, reason: str) -> None:
    if place not in _told and len(_told) < MOST_NAMES:
        _told.add(place)
        _log.warning("%s", escaped(redacted(f"{place} is ignored: {reason}")))


def _received(storage: Storage, path: str, most: int, data: bytes | Exception) -> bytes | None:
    """What `read_small` returns; `data` has at most a byte more than there may be."""
    if isinstance(data, FileNotFoundError | IsADirectoryError):
        return None
    if isinstance(data, Exception):
        if not isinstance(data, NotRegular | NotADirectoryError) and getattr(data, "errno", None) not in NOT_THERE:
            raise data
        behind = "it is behind a link, or behind something that is not a folder"
        _tell(storage.label(path), "it is not a regular file" if isinstance(data, NotRegular) else behind)
        return None
    if len(data) > most:
        _tell(storage.label(path), f"it has more than {most} bytes")
        return None
    return data
