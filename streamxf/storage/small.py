"""Small files that say something of a run: read so that nobody who plants one stops a job, or fills its memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from streamxf.storage.files import NotRegular
from streamxf.storage.inside import NOT_THERE, components
from streamxf.storage.storage import LOCK, Storage

MOST_BYTES = 2**20  # of one file
MOST_IN_ALL = 64 * 2**20  # of all in a folder
MOST_NAMES = 100_000

_UNDER_WAY = 16

_log = logging.getLogger(__name__)
_told: set[str] = set()


def read_small(storage: Storage, path: str, most: int = MOST_BYTES) -> bytes | None:
    """A file by its path below the folder; None if it is not there. What is no regular file, lies behind a link or has
    more than `most` bytes counts as not there, with a warning, once for each path.
    """
    components(path)
    return _received(storage, path, most, partial(storage.read, path, 0, most + 1))


def small_names(storage: Storage, folder: str) -> dict[str, int]:
    """The regular files directly in a folder below, or in the folder itself for "", each with its size. Of more than
    100,000 names, the others are ignored with a warning. A folder that is not there, or a link, has none.
    """
    if folder:
        components(folder)
    try:
        entries = iter(storage.entries(folder))
        found = [each for each in islice(entries, MOST_NAMES) if each.kind == "file" and each.name != LOCK]
        more = next(entries, None) is not None
    except OSError as error:
        if error.errno not in NOT_THERE and not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise
        if not isinstance(error, FileNotFoundError):
            _tell(storage.full(folder), "it is no folder, or a link")
        return {}
    if more:
        _tell(f"what else is in {storage.full(folder)}", f"there are more than {MOST_NAMES} names")
    return {each.name: each.size for each in found if each.size is not None}


def small_files(storage: Storage, folder: str, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The files directly in a folder below whose names are `wanted`, as `read_small` reads them: 64 MiB of them in all.
    Those beyond, and those that cannot be read, are ignored with a warning.
    """
    chosen: list[str] = []
    held = 0
    for name, size in sorted(small_names(storage, folder).items()):
        if not wanted(name):
            continue
        place = storage.full(_join(folder, name))
        if size > MOST_BYTES:
            _tell(place, f"it has {size} bytes")
        elif held + size > MOST_IN_ALL:
            _tell(f"what else is in {storage.full(folder)}", f"the files there have more than {MOST_IN_ALL} bytes")
            break
        else:
            held += size
            chosen.append(name)
    found: dict[str, bytes] = {}
    left = MOST_IN_ALL
    for name, data in _contents(storage, folder, chosen):
        if data is not None and (left := left - len(data)) >= 0:  # they may have grown
            found[name] = data
    return found


def put_small(storage: Storage, path: str, data: bytes, *, once: bool = False, sync: bool = True) -> None:
    """Put a file by its path below the folder, in one step, and the folders that it needs, through no link; `once` as
    in `Storage.put`.
    """
    components(path)
    storage.put(path, data, sync=sync, once=once, make=True)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _tell(place: str, reason: str) -> None:
    if place not in _told and len(_told) < MOST_NAMES:
        _told.add(place)
        _log.warning("%s is ignored: %s", place, reason)


def _received(storage: Storage, path: str, most: int, wait: Callable[[], bytes]) -> bytes | None:
    """What `read_small` returns; `wait` gives at most a byte more than there may be."""
    try:
        data = wait()
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        if not isinstance(error, NotRegular | NotADirectoryError) and error.errno not in NOT_THERE:
            raise
        behind = "it lies behind a link, or in place of a folder there is something else"
        _tell(storage.full(path), "it is no regular file" if isinstance(error, NotRegular) else behind)
        return None
    if len(data) > most:
        _tell(storage.full(path), f"it has more than {most} bytes")
        return None
    return data


def _contents(storage: Storage, folder: str, names: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
    """The files, some of them fetched at a time; those that cannot be read are None."""
    under_way: deque[tuple[str, Callable[[], bytes]]] = deque()
    rest = iter(names)
    while True:
        for name in islice(rest, _UNDER_WAY - len(under_way)):
            under_way.append((name, storage.fetch(_join(folder, name), 0, MOST_BYTES + 1)))
        if not under_way:
            return
        name, wait = under_way.popleft()
        path, data = _join(folder, name), None
        try:
            data = _received(storage, path, MOST_BYTES, wait)
        except Exception as error:  # of whatever class; these files may be lost
            _tell(storage.full(path), f"{type(error).__name__}: {error}")
        yield name, data
