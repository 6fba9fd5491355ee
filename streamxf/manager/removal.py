"""Checkpoints removed so that a kill at any point leaves nothing that passes for one: a note first, then metadata, then
data.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from streamxf.checkpoint.disk import sync_folder
from streamxf.checkpoint.metadata import is_metadata_name
from streamxf.checkpoint.publish import DAY, locked, made_by_writers
from streamxf.checkpoint.storage import Storage
from streamxf.manager.catalog import RunCatalog, Saving, change_catalog, read_catalog
from streamxf.manager.holds import held
from streamxf.manager.listing import look

_AT_ONCE = 8  # folders in an object store, each of which takes a few requests


def remove_checkpoints(storage: Storage, names: Iterable[str]) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Remove checkpoints of a run: what was removed, what was not because someone reads it, and what could not be,
    each with the reason.
    """
    wanted = list(names)

    def note(catalog: RunCatalog) -> list[str]:
        free = [name for name in wanted if name not in catalog.saving]
        for name in free:
            record = catalog.saved.get(name)
            if record is None or record.save_id is None:
                record = look(storage, name, catalog, identify=True)
            catalog.removing[name] = record.save_id if record is not None else None
        return free

    return _remove_noted(storage, change_catalog(storage, note)) if wanted else ([], {}, {})


def finish_removals(storage: Storage) -> None:
    """Go on with what another process began to remove, and was killed."""
    noted = read_catalog(storage).removing
    if noted:
        _remove_noted(storage, list(noted))


def _remove_noted(storage: Storage, names: list[str]) -> tuple[list[str], dict[str, str], dict[str, str]]:
    catalog = read_catalog(storage)
    readers = held(storage)
    removed: list[str] = []
    in_use: dict[str, str] = {}
    failed: dict[str, str] = {}
    again: list[str] = []  # another save has been published there since

    def remove(name: str) -> None:
        record = look(storage, name, catalog)
        if record is not None and record.state == "complete":
            again.append(name)
        elif name in readers and record is not None and _has_metadata(storage, name):
            in_use[name] = readers[name]
        else:
            try:
                _remove_folder(storage, name)
                removed.append(name)
            except Exception as error:  # of whatever class; the others are removed all the same
                failed[name] = f"{type(error).__name__}: {error}"

    _for_each(storage, names, remove)

    def drop(catalog: RunCatalog) -> None:
        for name in (*removed, *in_use, *again):
            catalog.removing.pop(name, None)
        for name in removed:
            catalog.saved.pop(name, None)

    change_catalog(storage, drop)
    return removed, in_use, failed


def remove_leftover(storage: Storage, name: str, saving: Saving) -> bool:
    """Remove what a save left that was killed before it was complete; whether it is gone. While it may be under way it
    stays: for a day, or until no other process can publish it, whose save then fails.
    """
    child = storage.child(name)
    old = abs(time.time() - saving.time) >= DAY
    with locked(child) as alone:
        files = child.names(())
        if not old and (saving.commits or not alone):
            return False
        if not saving.commits and not all(made_by_writers(file) and not is_metadata_name(file) for file in files):
            return False
        _remove_folder(storage, name)
    return True


def _has_metadata(storage: Storage, name: str) -> bool:
    return any(map(is_metadata_name, storage.child(name).names(())))


def _for_each(storage: Storage, names: list[str], call: Callable[[str], Any]) -> None:
    if storage.local is not None or len(names) == 1:
        for name in names:
            call(name)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(call, names))


def _remove_folder(storage: Storage, name: str) -> None:
    """A checkpoint's folder with all that is in it. Its metadata goes first, for a reader that does not know the
    catalog.
    """
    child = storage.child(name)
    if (path := storage.local_path(name)) is not None and os.path.islink(path):
        os.unlink(path)
        return
    metadata = [file for file in child.names(()) if is_metadata_name(file)]
    for error in child.remove(metadata).values():
        raise error
    try:
        if path is not None:
            if metadata:
                sync_folder(path)
            shutil.rmtree(path)
        else:
            child.forget_listings()
            child.filesystem.rm(child.path, recursive=True)
    except FileNotFoundError:
        """It had no other files, and an object store has no empty folders; or someone else removed it, too."""
