"""The one way to remove: literal names within a folder, and only what was asked for; no link is followed, no pattern
expanded.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from streamxf.errors import ParameterError
from streamxf.format.items import check_path
from streamxf.storage.deletion import remove_files
from streamxf.storage.disk import ONE_PUT
from streamxf.storage.inside import MOST, NOT_THERE, check_component, components, opened, walk
from streamxf.storage.storage import LOCK, Storage

_log = logging.getLogger(__name__)

Order = tuple[Collection[str], Collection[str]]
Entries = Mapping[str, Mapping[str, Any]]

ONE_BY_ONE = 8  # folders in an object store; more are found by one listing of everything

# Some clients take the end of a path for a version (`?versionId=`, `#`), and no store takes control characters.
_NOT_LITERAL = re.compile(r"[\x00-\x1f\x7f-\x9f\\%?#\ud800-\udfff]")


def remove_tree(storage: Storage, name: str, first: Collection[str], rest: Collection[str]) -> list[str]:
    """Remove files of a folder in `storage`, folders that are empty by then, and at last the folder itself, or the link
    that stands in its place. Returns the paths of what stays there.

    The caller holds the folder's lock, whose file goes, too.

    Parameters
    ----------
    first, rest : collection of str
        Paths in the folder. Those of `first` go before all others, in object stores in batches; if one of them cannot
        be removed, none of `rest` is. The last of `rest` goes once all others have. A file that is not there is fine.

    Raises
    ------
    ParameterError, MetadataError
        If a name or a path is not literal, or leads out. Nothing was removed.
    OSError
        The first one, after all others were tried; of an object store, whatever its client raises.
    """
    result = remove_trees(storage, {name: (first, rest)})[name]
    if isinstance(result, Exception):
        raise result
    return result


def remove_trees(
    storage: Storage, orders: Mapping[str, Order], listed: Callable[[str], Entries] | None = None
) -> dict[str, list[str] | Exception]:
    """The same of many folders at once, each with `first` and `rest`: what stays in each, or why it could not be
    removed. `listed` gives the files of each, where an object store has listed them just now.
    """
    for name, (first, rest) in orders.items():
        _check_literal(storage, name)
        for path in (*first, *rest):
            check_path(path)
    local = storage.local
    if local is None:
        return _remove_remote(storage, orders, listed)
    done: dict[str, list[str] | Exception] = {}
    for name, order in orders.items():
        try:
            done[name] = _remove_local(local, name, *order)
        except OSError as error:
            done[name] = error
    return done


def remove_entry(storage: Storage, *paths: str) -> None:
    """Remove files or links by their paths below the folder, as far as they are there. Folders stay, if empty: somebody
    may be about to put a file there.
    """
    for path in paths:
        *parts, name = components(path)
        if storage.local is not None:
            _unlink(storage.local, parts, name)
        else:
            _check_literal(storage, path.replace("/", "_"))
    if storage.local is None:
        for error in remove_files(storage.filesystem, map(storage.inner, paths)).values():
            raise error


def files_of(storage: Storage, name: str, most: int = MOST) -> Entries:
    """The regular files below a folder in `storage`, by their paths in it, as the storage lists them: `size` and more.
    Links are left out and not entered; a link, or what is not there, has none. Of more than `most`, some are left out.
    """
    check_component(name)
    if storage.local is not None:
        found, more = _local_files(storage.local, name, most)
    else:
        found = _remote_files(storage, name).get(name, {})
        more = len(found) > most
    if more:
        _log.warning("%s holds more than %d files; the others are not looked at", storage.full(name), most)
        return dict(islice(found.items(), most))
    return found


def files_of_many(storage: Storage, names: Collection[str]) -> Callable[[str], Entries]:
    """What gives the files of each of these folders. In an object store, those of many are listed at once."""
    if storage.local is not None or len(names) <= ONE_BY_ONE:
        return lambda name: files_of(storage, name)
    everything = _remote_files(storage)
    return lambda name: everything.get(name, {})


def remove_file_or_folder(path: str | os.PathLike[str]) -> None:
    """Remove what is at a path or a URL, if anything is: a file, a folder with everything in it, or a link alone."""
    storage = Storage.of(path)
    if (local := storage.local) is not None:
        if os.path.isdir(local) and not os.path.islink(local):
            shutil.rmtree(local)
        else:
            with suppress(FileNotFoundError):
                os.unlink(local)
        return
    storage.forget_listings()
    _check_not_linked(storage, "")
    found = storage.filesystem.find(storage.path, withdirs=True, detail=True)
    files = [place for place, entry in found.items() if entry.get("type") != "directory"]
    for error in remove_files(storage.filesystem, files).values():
        raise error
    _remove_empty(storage, storage.path)


def _check_literal(storage: Storage, name: str) -> None:
    check_component(name)
    if storage.local is None and _NOT_LITERAL.search(name):
        raise ParameterError(f"{ascii(name)[:80]} cannot be removed: not every client of a store takes it literally")


# -- local ---------------------------------------------------------------------------------------------------


def _remove_local(local: str, name: str, first: Collection[str], rest: Collection[str]) -> list[str]:
    with opened(local) as run:
        try:
            if stat.S_ISLNK(os.stat(name, dir_fd=run, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=run)
                return []
            with opened(run, [name]) as folder:
                _unlink_all(folder, first)
                failed: list[OSError] = []
                others = list(rest)
                try:
                    _unlink_all(folder, others[:-1])
                    _unlink_all(folder, others[-1:])
                except OSError as error:
                    failed.append(error)
                left = _prune(folder)
                if failed:
                    raise failed[0]
                if left:
                    return left
                _unlink(folder, (), LOCK)
            os.rmdir(name, dir_fd=run)
        except FileNotFoundError:
            return []  # someone else removed it, too
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return [LOCK]  # who waited for it
    return []


def _unlink_all(folder: int, paths: Collection[str]) -> None:
    failed: list[OSError] = []
    for path in paths:
        *parts, name = path.split("/")
        try:
            _unlink(folder, parts, name)
        except OSError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _unlink(folder: str | int, parts: Sequence[str], name: str) -> None:
    try:
        if parts or isinstance(folder, str):
            with opened(folder, parts) as below:
                os.unlink(name, dir_fd=below)
        else:
            os.unlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in (*NOT_THERE, errno.EISDIR):  # a folder is not what was asked for, so it stays
            raise


def _prune(top: int) -> list[str]:
    """Remove the folders below that are empty; what is there besides."""
    left = []
    for folder, name, path, is_folder in walk(top):
        if not is_folder:
            left += [path] if path != LOCK else []
        elif not left or not left[-1].startswith(f"{path}/"):
            try:
                os.rmdir(name, dir_fd=folder)
            except FileNotFoundError:
                pass
            except OSError:
                left.append(path)  # not empty, or swapped for a link, or not ours
        if len(left) == MOST:
            break
    return left


def _local_files(local: str, name: str, most: int) -> tuple[dict[str, Mapping[str, Any]], bool]:
    """And whether there are more than `most`, whatever they are."""
    found: dict[str, Mapping[str, Any]] = {}
    try:
        with opened(local, [name]) as top:
            for number, (folder, file, path, is_folder) in enumerate(walk(top)):
                if number == most:
                    return found, True
                with suppress(FileNotFoundError):
                    facts = None if is_folder else os.stat(file, dir_fd=folder, follow_symlinks=False)
                    if facts is not None and stat.S_ISREG(facts.st_mode) and path != LOCK:
                        found[path] = {"size": facts.st_size, "mtime": facts.st_mtime}
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
    return found, False


# -- elsewhere -----------------------------------------------------------------------------------------------


def _remove_remote(
    storage: Storage, orders: Mapping[str, Order], listed: Callable[[str], Entries] | None
) -> dict[str, list[str] | Exception]:
    done: dict[str, list[str] | Exception] = {}
    wanted = {}
    for name, (first, rest) in orders.items():
        try:
            _check_not_linked(storage, name)
        except OSError as error:
            done[name] = error
            continue
        wanted[name] = (list(first), list(rest)[:-1], list(rest)[-1:])
    if storage.protocol not in ONE_PUT:  # it may have links, which a listing does not enter
        for name, groups in wanted.items():
            there = files_of(storage, name)
            wanted[name] = tuple([path for path in group if path in there] for group in groups)  # type: ignore[assignment]
    for number in range(3):
        places = {
            storage.inner(f"{name}/{path}"): name
            for name, groups in wanted.items()
            if number == 0 or name not in done
            for path in groups[number]
        }
        for place, reason in remove_files(storage.filesystem, places).items():
            done.setdefault(places[place], reason)
    names = [name for name in wanted if name not in done]
    files = listed or files_of_many(storage, names)
    for name in names:
        gone = {path for group in wanted[name] for path in group} if listed is not None else set()
        done[name] = sorted(files(name).keys() - gone)
        if not done[name]:
            try:
                done[name] = _remove_empty(storage, storage.inner(name))
            except Exception as error:  # of whatever class; the others are done all the same
                done[name] = error
    return done


def _remove_empty(storage: Storage, place: str) -> list[str]:
    """Remove the folders that are left, where a storage has any; what is there besides."""
    storage.forget_listings()
    if storage.protocol in ONE_PUT and storage.protocol != "memory":
        return []
    try:
        found = storage.filesystem.find(place, withdirs=True, detail=True)
        left = sorted(path for path, entry in found.items() if entry.get("type") != "directory")
        folders = {path for path, entry in found.items() if entry.get("type") == "directory"} | {place}
        for folder in sorted(folders, key=len, reverse=True):
            if not any(path.startswith(f"{folder}/") for path in left) and storage.filesystem.exists(folder):
                storage.filesystem.rmdir(folder)
    except FileNotFoundError:
        return []
    finally:
        storage.forget_listings()
    return [path.removeprefix(place).lstrip("/") for path in left]


def _remote_files(storage: Storage, name: str = "") -> dict[str, dict[str, Mapping[str, Any]]]:
    """The files below one of a run's folders, or below all, by folder and by the path in it."""
    storage.forget_listings()
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    if name and (_NOT_LITERAL.search(name) or _is_linked(storage, name)):
        return found
    base = storage.path.rstrip("/") + "/"
    for path, entry in storage.filesystem.find(storage.inner(name), detail=True).items():
        folder, _, file = path.removeprefix(base).partition("/")
        if file and path.startswith(base) and entry.get("type") == "file":
            found.setdefault(folder, {})[file] = entry
    return found


def _check_not_linked(storage: Storage, name: str) -> None:
    if _is_linked(storage, name):
        raise OSError(errno.ELOOP, "this is a link, which cannot be removed from here", storage.full(name))


def _is_linked(storage: Storage, name: str) -> bool:
    """Whether a folder is a link, where a storage may have some."""
    if storage.protocol in ONE_PUT:
        return False
    above, _, last = storage.inner(name).rpartition("/")
    with suppress(FileNotFoundError):
        entries = storage.filesystem.ls(above or "/", detail=True)
        return any(os.path.basename(each["name"].rstrip("/")) == last and each["type"] == "link" for each in entries)
    return False
