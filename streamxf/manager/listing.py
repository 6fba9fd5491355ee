"""`list_checkpoints`: the checkpoints of a run. One listing of its folder, and a look into what the catalog does not
know.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import metadata_among, read_metadata
from streamxf.checkpoint.publish import made_by_writers, written_at
from streamxf.checkpoint.storage import Storage, storage_errors
from streamxf.errors import NoCheckpointError, StreamxfError, UnsupportedError
from streamxf.manager.catalog import RunCatalog, read_catalog
from streamxf.manager.record import Record, is_numbered

_ONE_BY_ONE = 8  # unknown folders in an object store; more are found by one listing of everything


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
    facts = _all_at_once(storage) if storage.local is None and len(unknown) > _ONE_BY_ONE else None
    for name in unknown:
        record = look(storage, name, catalog, facts.get(name, {}) if facts is not None else None)
        if record is not None:
            found.append(record)
    return sorted(found, key=lambda record: record.order)


def look(
    storage: Storage,
    name: str,
    catalog: RunCatalog,
    entries: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    identify: bool = False,
) -> Record | None:
    """What one folder is by now; None if it holds nothing of a checkpoint.

    - `entries`: its files, as fsspec lists them; None to ask for them.
    - `identify`: whether to read which save it is in any case, and not only where that matters.
    """
    child = storage.child(name)
    files = child.names() if entries is None else {file: entry.get("size") for file, entry in entries.items()}
    metadata = metadata_among(files)
    known, saving = catalog.saved.get(name), catalog.saving.get(name)
    if saving is not None and saving.commits:
        return Record(name, saving.time, None, saving.metrics, "unfinished")
    if not metadata:
        if name in catalog.removing:
            return Record(name, known.time if known is not None else 0.0, state="removing")
        if saving is not None:
            return Record(name, saving.time, None, saving.metrics, "unfinished")
        if known is not None and known.save_id is None:  # it was committed
            return known
        data = next(filter(made_by_writers, files), None)
        return Record(name, _written(child, data, entries), state="unfinished") if data is not None else None
    identify = identify or name in catalog.saving or name in catalog.removing
    save_id = _save_id(child, metadata[0]) if identify else None
    size = sum(each or 0 for each in files.values())
    if name in catalog.removing and save_id == catalog.removing[name]:
        return Record(name, known.time if known is not None else 0.0, size, state="removing", save_id=save_id)
    if saving is not None and (save_id is None or save_id != saving.replaced):
        return Record(name, saving.time, size, saving.metrics, save_id=save_id)
    if known is not None and known.save_id == save_id:
        return known
    return Record(name, _written(child, metadata[0], entries), size, save_id=save_id)


def _written(child: Storage, file: str, entries: Mapping[str, Mapping[str, Any]] | None) -> float:
    when = written_at(child, file, entries[file] if entries is not None else None)
    return time.time() if when is None else when


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


def _save_id(child: Storage, name: str) -> str | None:
    """streamxf's id of the save that the folder has now; None of metadata that has none, or cannot be read."""
    try:
        index = read_metadata(child, name, Access(), listing=True).index
    except (StreamxfError, FileNotFoundError):
        return None
    return index.save_id if index is not None else None


def _all_at_once(storage: Storage) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Of all folders in a run, in an object store: their files, by name, as fsspec lists them."""
    storage.forget_listings()
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for path, entry in storage.filesystem.find(storage.path, detail=True).items():
        folder, _, name = _below(storage, path).partition("/")
        if name and "/" not in name:
            found.setdefault(folder, {})[name] = entry
    return found


def _below(storage: Storage, path: str) -> str:
    return path.removeprefix(storage.path.rstrip("/")).lstrip("/")
