"""Small files that say something of a run: read so that nobody who plants one stops a job, or fills its memory."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from streamxf.storage.calls import begun, is_asynchronous
from streamxf.storage.disk import ONE_PUT, draft_of, noted, sync_folder
from streamxf.storage.inside import NO_LINK, NOT_THERE, components, opened
from streamxf.storage.multipart import ABSENT, ReplacedMeanwhile, multipart_of, put_over
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
    *parts, name = components(path)
    if (local := storage.local) is not None:
        with suppress(FileNotFoundError):
            try:
                with opened(local, parts) as folder:
                    return _read(folder, name, most, storage.full(path))
            except OSError as error:
                if error.errno not in NOT_THERE:
                    raise
                if error.errno != errno.ENOENT:
                    _tell(storage.full(path), "it lies behind a link, or in place of a folder there is something else")
        return None
    if storage.protocol not in ONE_PUT and name not in _listed(storage, "/".join(parts)):
        return None
    return _fetched(storage, path, most, _fetching(storage, path, most))


def small_names(storage: Storage, folder: str) -> dict[str, int]:
    """The regular files directly in a folder below, or in the folder itself for "", each with its size. Of more than
    100,000 names, the others are ignored with a warning. A folder that is not there, or a link, has none.
    """
    found: dict[str, int] = {}
    parts = components(folder) if folder else []
    if (local := storage.local) is None:
        names = _listed(storage, folder)
        found = dict(islice(names.items(), MOST_NAMES))
        more = len(names) > MOST_NAMES
    else:
        more = False
        try:
            with opened(local, parts) as descriptor, os.scandir(descriptor) as entries:
                for entry in islice(entries, MOST_NAMES):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        if entry.name != LOCK and entry.is_file(follow_symlinks=False):
                            found[entry.name] = entry.stat(follow_symlinks=False).st_size
                more = next(entries, None) is not None
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            if error.errno != errno.ENOENT:
                _tell(storage.full(folder), "it is no folder, or a link")
    if more:
        _tell(f"what else is in {storage.full(folder)}", f"there are more than {MOST_NAMES} names")
    return found


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
    """Put a file by its path below the folder, in one step, and the folders that it needs, through no link. With `once`
    it raises FileExistsError if there is one by then; where a store cannot tell, of two at the same moment one is lost.
    """
    *parts, name = components(path)
    if (local := storage.local) is not None:
        os.makedirs(local, exist_ok=True)
        with opened(local, parts, make=True) as folder:
            _put(folder, name, data, once, sync)
        if sync:
            for depth in range(len(parts) + 1):  # the file's name, and those of folders that may be new
                sync_folder(os.path.join(local, *parts[:depth]))
        return
    filesystem, place = storage.filesystem, storage.inner(path)
    if once and multipart_of(filesystem, place) is not None:
        try:
            put_over(filesystem, place, data, ABSENT)
        except ReplacedMeanwhile:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), storage.full(path)) from None
        finally:
            storage.forget_listings()
        return
    storage.forget_listings()
    if once and filesystem.exists(place):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), storage.full(path))
    if storage.protocol not in ONE_PUT:
        for depth, part in enumerate([*parts, name]):
            if _kind(storage, "/".join(parts[:depth]), part) == "link":
                raise NotADirectoryError(errno.ENOTDIR, f"{part} is a link", storage.full(path))
        filesystem.makedirs(place.rpartition("/")[0], exist_ok=True)
    storage.put(path, data, sync=sync)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _tell(place: str, reason: str) -> None:
    if place not in _told and len(_told) < MOST_NAMES:
        _told.add(place)
        _log.warning("%s is ignored: %s", place, reason)


# -- local ---------------------------------------------------------------------------------------------------


def _read(folder: int, name: str, most: int, place: str) -> bytes | None:
    """Looked at first, since to open a device may do something; and again, since it may be another one by then."""
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISREG(facts.st_mode):
        # which does not wait for someone who writes to a pipe
        descriptor = os.open(name, os.O_RDONLY | NO_LINK | os.O_NONBLOCK, dir_fd=folder)
        with open(descriptor, "rb", buffering=0) as file:
            facts = os.fstat(descriptor)
            if stat.S_ISREG(facts.st_mode) and facts.st_size <= most:
                data = bytearray()
                while len(data) <= most and (piece := file.read(most + 1 - len(data))):
                    data += piece
                if len(data) <= most:
                    return bytes(data)
    _tell(place, f"it has more than {most} bytes" if stat.S_ISREG(facts.st_mode) else "it is no regular file")
    return None


def _put(folder: int, name: str, data: bytes, once: bool, sync: bool) -> None:
    draft = draft_of(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK
    descriptor = os.open(draft, flags, 0o666, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(descriptor)
        if once:
            _link(folder, draft, name)
        else:
            os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException as error:
        with noted(error, draft), suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        raise


def _link(folder: int, draft: str, name: str) -> None:
    """Give a file its name if nothing has it; where a file system has no links, there is a moment between."""
    try:
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(draft, dir_fd=folder)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666, dir_fd=folder))
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


# -- elsewhere -----------------------------------------------------------------------------------------------


def _listed(storage: Storage, folder: str) -> dict[str, int]:
    parts = folder.split("/") if folder else []
    if storage.protocol not in ONE_PUT:  # it may have links
        for depth in range(len(parts)):
            if _kind(storage, "/".join(parts[:depth]), parts[depth]) != "directory":
                return {}
    try:
        entries = storage.child(folder).listed() if folder else storage.listed()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {
        name: entry["size"]
        for name, entry in entries
        if entry.get("type") == "file" and isinstance(entry.get("size"), int)
    }


def _kind(storage: Storage, folder: str, name: str) -> str | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        entries = storage.child(folder).listed() if folder else storage.listed()
        return next((entry["type"] for found, entry in entries if found == name), None)
    return None


def _fetching(storage: Storage, path: str, most: int) -> Callable[[], bytes | None]:
    """Begin to fetch a file, at most one byte more of it than it may have; what waits for its data."""
    filesystem, place = storage.filesystem, storage.inner(path)
    if is_asynchronous(filesystem):
        future: Future[bytes] = begun(filesystem, lambda: filesystem._cat_file(place, start=0, end=most + 1))
        return future.result
    return lambda: filesystem.cat_file(place, start=0, end=most + 1)


def _fetched(storage: Storage, path: str, most: int, wait: Callable[[], bytes | None]) -> bytes | None:
    try:
        data = wait()
    except (FileNotFoundError, IsADirectoryError):
        return None
    except Exception:
        if _size(storage, path) == 0:  # a range of an empty object is an error
            return b""
        raise
    if data is not None and len(data) > most:
        _tell(storage.full(path), f"it has more than {most} bytes")
        return None
    return data


def _size(storage: Storage, path: str) -> Any:
    try:
        return storage.filesystem.info(storage.inner(path))["size"]
    except FileNotFoundError:
        return None


def _contents(storage: Storage, folder: str, names: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
    """The files, some of them fetched at a time; those that cannot be read are None."""
    under_way: deque[tuple[str, Callable[[], bytes | None]]] = deque()
    rest = iter(names)
    while True:
        for name in islice(rest, _UNDER_WAY - len(under_way)):
            path = _join(folder, name)
            if storage.local is None:
                wait = partial(_fetched, storage, path, MOST_BYTES, _fetching(storage, path, MOST_BYTES))
            else:
                wait = partial(read_small, storage, path, MOST_BYTES)
            under_way.append((name, wait))
        if not under_way:
            return
        name, read = under_way.popleft()
        data = None
        try:
            data = read()
        except Exception as error:  # of whatever class; these files may be lost
            _tell(storage.full(_join(folder, name)), f"{type(error).__name__}: {error}")
        yield name, data
