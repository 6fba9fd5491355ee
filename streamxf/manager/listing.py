"""`list_checkpoints`: the checkpoints of a run. One listing of its folder, and a look into what the catalog does not
know.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from streamxf.checkpoint.metadata import metadata_among
from streamxf.checkpoint.publish import made_by_writers, written_at
from streamxf.checkpoint.storage import Storage, storage_errors
from streamxf.errors import NoCheckpointError, UnsupportedError
from streamxf.manager.catalog import RunCatalog, read_catalog
from streamxf.manager.record import Record, is_numbered

Entries = Mapping[str, Mapping[str, Any]]

_END = 256  # bytes
ONE_BY_ONE = 8  # unknown folders in an object store; more are found by one listing of everything


def list_checkpoints(run: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> list[Record]:
    """The checkpoints in a run's folder, the oldest first: those that are complete, and those that are not.

    Nothing is verified, and no key is needed: a checkpoint counts as complete from the moment when its save was
    published. Folders that hold nothing of a DCP checkpoint, and were not committed to a `CheckpointManager`, are left
    out, and so are hidden ones, and those without a number in their names.

    Parameters
    ----------
    run : path or str
        The folder that holds the checkpoints' folders, or its URL.
    storage_options : mapping, optional
        fsspec's, for the URL.

    Raises
    ------
    NoCheckpointError, UnsupportedError
        If there is no such folder, or it is a file.
    MetadataError
        If the run's catalog is damaged.
    OSError, ForeignError
        If the storage cannot be reached.
    """
    storage = Storage.of(run, storage_options)
    with storage_errors(storage.given):
        check_folder(storage)
        return survey(storage, read_catalog(storage))


def check_folder(storage: Storage) -> None:
    """Raise NoCheckpointError if there is no such folder, UnsupportedError if it is a file."""
    try:
        if not storage.is_folder():
            raise UnsupportedError("this is a file, and not a folder of checkpoints", file=storage.given)
    except FileNotFoundError:
        raise NoCheckpointError("there is no such folder", file=storage.given) from None


def survey(storage: Storage, catalog: RunCatalog) -> list[Record]:
    """The same, of a run whose catalog is known; an empty list if there is no folder."""
    try:
        names = [name for name in storage.folders() if is_numbered(name)]
    except FileNotFoundError:
        return []
    aliases = links(storage)
    doubtful = catalog.saving.keys() | catalog.removing.keys()
    found = [catalog.saved[name] for name in names if name in catalog.saved and name not in doubtful]
    unknown = [name for name in names if name not in aliases and (name in doubtful or name not in catalog.saved)]
    entries = entries_of(storage, unknown)
    for name in unknown:
        record = look(storage, name, catalog, entries(name))
        if record is not None:
            found.append(record)
    return sorted(found, key=lambda record: record.order)


def look(storage: Storage, name: str, catalog: RunCatalog, entries: Entries | None = None) -> Record | None:
    """What one folder is by now; None if it holds nothing of a checkpoint. `entries` are its files, where known."""
    child = storage.child(name)
    files = entries if entries is not None else entries_of(storage, [name])(name)
    metadata = metadata_among(files)
    known, saving = catalog.saved.get(name), catalog.saving.get(name)
    if saving is not None and saving.commits:
        return Record(name, saving.time, None, saving.metrics, "unfinished")
    if not metadata:
        if name in catalog.removing:
            return Record(name, known.time if known is not None else 0.0, state="removing")
        if saving is not None:
            return Record(name, saving.time, None, saving.metrics, "unfinished")
        if known is not None and known.mark is None:  # it was committed
            return known
        data = next(filter(made_by_writers, files), None)
        return Record(name, _written(child, data, files), state="unfinished") if data is not None else None
    mark = _mark(child, metadata[0], files) if known or saving or name in catalog.removing else None
    size = sum(entry.get("size") or 0 for entry in files.values())
    if name in catalog.removing and mark == catalog.removing[name]:
        return Record(name, known.time if known is not None else 0.0, size, state="removing", mark=mark)
    if saving is not None and mark != saving.replaced:
        return Record(name, saving.time, size, saving.metrics, mark=mark)
    if known is not None and known.mark == mark:
        return known
    return Record(name, _written(child, metadata[0], files), size, mark=mark)


def _written(child: Storage, file: str, entries: Entries) -> float:
    when = written_at(child, file, entries[file])
    return time.time() if when is None else when


def entries_of(storage: Storage, names: Collection[str]) -> Callable[[str], Entries]:
    """What gives the files of each of these folders, by their names, as fsspec lists them; in an object store, many of
    them are listed at once. A folder that is not there has none.
    """
    if storage.local is None and len(names) > ONE_BY_ONE:
        everything = files_below(storage)
        return lambda name: {file: entry for file, entry in everything.get(name, {}).items() if "/" not in file}

    def listed(name: str) -> Entries:
        child = storage.child(name)
        if storage.local is not None:
            return {file: {"size": size} for file, size in child.names().items()}
        with suppress(FileNotFoundError):
            return {file: entry for file, entry in child.listed() if entry.get("type") != "directory"}
        return {}

    return listed


def files_below(storage: Storage, name: str = "") -> dict[str, dict[str, Mapping[str, Any]]]:
    """Where fsspec stores a run: all files below one of its folders, or below all, by folder and by the path in it."""
    storage.forget_listings()
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for path, entry in storage.filesystem.find(storage.inner(name), detail=True).items():
        folder, _, file = path.removeprefix(storage.path.rstrip("/")).lstrip("/").partition("/")
        if file:
            found.setdefault(folder, {})[file] = entry
    return found


def links(storage: Storage) -> dict[str, str]:
    """The links in a run's folder that lead to its own checkpoints, as ``best -> step-100``: each with its target."""
    local = storage.local
    found: dict[str, str] = {}
    if local is None:
        return found
    base = os.path.realpath(local)
    with suppress(FileNotFoundError), os.scandir(local) as entries:
        for entry in entries:
            if entry.is_symlink():
                folder, target = os.path.split(os.path.realpath(entry.path))
                if folder == base:
                    found[entry.name] = target
    return found


def mark_of(storage: Storage, name: str, entries: Entries | None = None) -> str | None:
    """What tells the save that a folder has from any other; None if it has no metadata."""
    files = entries if entries is not None else entries_of(storage, [name])(name)
    for file in metadata_among(files):
        return _mark(storage.child(name), file, files)
    return None


def _mark(child: Storage, file: str, entries: Entries) -> str | None:
    """The store's own mark of the metadata, or a digest of its end, where streamxf has a digest of all of it, and torch
    the save's id.
    """
    if (stamp := entries[file].get("ETag") or entries[file].get("etag")) is not None:
        return str(stamp).strip('"')
    child.forget_listings()
    with suppress(FileNotFoundError), child.open(file, random=True) as metadata:
        end = metadata.read(max(metadata.size - _END, 0))
        return hashlib.sha256(b"%d %b" % (metadata.size, end)).hexdigest()[:32]
    return None
