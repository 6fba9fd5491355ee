"""The one way to remove: literal names within a folder, only what was asked for, through no link and no pattern."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from streamxf.errors import ParameterError, escaped
from streamxf.places import Entries, Storage
from streamxf.storage.storage import StorageEntry
from streamxf.wording import many, some

_log = logging.getLogger(__name__)

Listing = Callable[[str], Entries]
Order = tuple[Collection[str], Collection[str]]

_ODD = (
    "%s still holds %s (%s): the client of this store might take such a name for another, so nothing is removed by it; "
    "delete it with the store's own tools if you need it no longer"
)

ONE_BY_ONE = 8  # folders in an object store; more are found by one listing of everything


def remove_tree(storage: Storage, name: str, first: Collection[str], rest: Collection[str]) -> list[str]:
    """Remove files of a folder in `storage`, folders that are empty by then, and at last the folder itself, or the link
    that stands in its place. Returns the paths of what stays there.

    The caller holds the folder's lock, whose file goes, too.

    - `first`, `rest`: paths in the folder. Those of `first` go before all others, in object stores in batches; if one
      cannot be removed, none of `rest` is. The last of each goes once all others of it have. A file that is not there
      is fine. A path that leads out, or that the storage might not take literally, stays, with a warning in the log.

    Raises ParameterError if the name is not literal, and nothing was removed; OSError, the first one, after all others
    were tried; of an object store, whatever its client raises.
    """
    result = remove_trees(storage, {name: (first, rest)})[name]
    if isinstance(result, Exception):
        raise result
    return result


def remove_trees(
    storage: Storage, orders: Mapping[str, Order], listed: Listing | None = None
) -> dict[str, list[str] | Exception]:
    """The same of many folders at once, each with `first` and `rest`: what stays in each, or why it could not be
    removed. `listed` gives the files of each, where an object store has listed them just now.
    """
    done: dict[str, list[str] | Exception] = {}
    batch: dict[str, list[list[str]]] = {}
    for name, paths in orders.items():
        try:
            storage.check_literal(name)
            literal = [[path for path in group if is_literal(storage, *path.split("/"))] for group in paths]
            if odd := sorted({*paths[0], *paths[1]}.difference(*literal)):
                _log.warning(_ODD, escaped(storage.label(name)), many(len(odd), "file"), escaped(some(odd)))
            groups = [part for group in literal for part in (group[:-1], group[-1:])]
            left = storage.remove_folder(name, groups)
        except (OSError, ParameterError) as error:  # the others are removed all the same
            done[name] = error
            continue
        if left is None:
            batch[name] = groups
        else:
            done[name] = left
    return done | _remove_batch(storage, batch, listed) if batch else done


def is_literal(storage: Storage, *names: str) -> bool:
    """Whether the storage takes all of these names literally."""
    with suppress(ParameterError):
        for name in names:
            storage.check_literal(name)
        return True
    return False


def remove_entry(storage: Storage, *paths: str) -> None:
    """Remove files or links by their paths, if they are there. Empty folders stay: somebody may be about to use one."""
    for path in paths:
        for part in path.split("/"):
            storage.check_literal(part)
    for error in storage.remove(paths).values():
        raise error


def files_of_many(storage: Storage, names: Collection[str]) -> Listing:
    """What gives the files of each of these folders. In an object store, those of many are listed at once."""
    if storage.near or len(names) <= ONE_BY_ONE:
        return storage.files_below
    found: dict[str, dict[str, StorageEntry]] = {}
    for entry in storage.below():
        folder, _, file = entry.name.partition("/")
        if file and entry.kind == "file":
            found.setdefault(folder, {})[file] = entry
    return lambda name: found.get(name, {})


def _remove_batch(
    storage: Storage, turns: Mapping[str, list[list[str]]], listed: Listing | None
) -> dict[str, list[str] | Exception]:
    done: dict[str, list[str] | Exception] = {}
    wanted: dict[str, list[list[str]]] = {}
    for name, groups in turns.items():
        if storage.is_link(name):
            done[name] = OSError(errno.ELOOP, "this is a link, which cannot be removed from here", storage.label(name))
        elif not storage.abilities.flat:  # which a listing does not enter
            there = storage.files_below(name)
            wanted[name] = [[path for path in group if path in there] for group in groups]
        else:
            wanted[name] = groups
    for number in range(4):
        places = {
            f"{name}/{path}": name for name, groups in wanted.items() if name not in done for path in groups[number]
        }
        for place, reason in storage.remove(places).items():
            done.setdefault(places[place], reason)
    names = [name for name in wanted if name not in done]
    files = listed or files_of_many(storage, names)
    for name in names:
        gone = {path for group in wanted[name] for path in group} if listed is not None else set()
        try:
            done[name] = sorted(files(name).keys() - gone) or storage.prune(name)
        except Exception as error:  # of whatever class; the others are done all the same
            done[name] = error
    return done
