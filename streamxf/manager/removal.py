"""Checkpoints removed so that a kill at any point leaves nothing that passes for one: a note first, then metadata, then
data.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from streamxf.checkpoint.metadata import is_metadata_name
from streamxf.checkpoint.publish import DAY, locked, made_by_writers
from streamxf.checkpoint.removal import remove_trees
from streamxf.checkpoint.storage import Storage
from streamxf.errors import StreamxfError
from streamxf.manager.catalog import RunCatalog, Saving, change_catalog, read_catalog
from streamxf.manager.holds import held
from streamxf.manager.listing import ONE_BY_ONE, entries_of, files_below, mark_of


def remove_checkpoints(storage: Storage, names: Iterable[str]) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Remove checkpoints of a run: what was removed, what was not because someone reads it, and what could not be,
    each with the reason.
    """
    wanted = list(names)
    if not wanted:
        return [], {}, {}

    def note(catalog: RunCatalog) -> dict[str, str | None]:
        marks = {}
        for name in wanted:
            if name not in catalog.saving:
                known = catalog.saved.get(name)
                marks[name] = known.mark if known is not None else mark_of(storage, name)
        catalog.removing |= marks
        return marks

    try:
        marks = change_catalog(storage, note)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        marks = note(read_catalog(storage))  # without it, or a full disk would stay full
    return _remove_noted(storage, marks)


def finish_removals(storage: Storage) -> RunCatalog:
    """Go on with what another process began to remove, and was killed; returns the catalog as it is then."""
    catalog = read_catalog(storage)
    if not catalog.removing:
        return catalog
    _remove_noted(storage, catalog.removing)
    return read_catalog(storage)


def _remove_noted(
    storage: Storage, marks: Mapping[str, str | None]
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Remove what is noted, each with the mark of the save that is to go."""
    readers = held(storage)
    entries = entries_of(storage, marks)
    gone: list[str] = []
    in_use: dict[str, str] = {}
    failed: dict[str, str] = {}
    again: list[str] = []  # another save has been published there since, or the metadata is damaged

    def may_go(name: str) -> bool:
        noted, mark = marks[name], mark_of(storage, name, entries(name))
        if mark is not None and mark != noted:
            again.append(name)
        elif name in readers and mark == noted:
            in_use[name] = readers[name]
        else:
            return True
        return False

    if storage.local is not None:
        for name in marks:
            try:
                with locked(storage.child(name)):  # or a save might be published between the look and the removal
                    if may_go(name):
                        _remove_folder(os.path.join(storage.local, name))
                        gone.append(name)
            except (OSError, StreamxfError) as error:  # the others are removed all the same
                failed[name] = f"{type(error).__name__}: {error}"
    else:
        gone = list(filter(may_go, marks))
        failed = _remove_objects(storage, gone)
    failed |= dict.fromkeys(again, "its metadata has changed since it was listed; the next call looks at it again")
    removed = [name for name in gone if name not in failed]

    def drop(catalog: RunCatalog) -> None:
        for name in (*removed, *again):
            # what is known of the save that was to go says nothing of one that has been made meanwhile
            known = catalog.saved.get(name)
            if known is not None and known.mark == marks[name]:
                del catalog.saved[name]
        for name in (*removed, *in_use, *again):
            catalog.removing.pop(name, None)

    change_catalog(storage, drop)
    return removed, in_use, failed


def remove_leftover(storage: Storage, name: str, saving: Saving) -> bool:
    """Remove what a save left that was killed before it was complete; whether it is gone. While it may be under way it
    stays: for a day, or until no other process can publish it, whose save then fails.
    """
    child = storage.child(name)
    if (path := storage.local_path(name)) is not None and not os.path.lexists(path):
        return True  # it was killed before it began to write
    old = abs(time.time() - saving.time) >= DAY
    with locked(child) as alone:
        files = child.names(())
        if not old and (saving.commits or not alone):
            return False
        if not saving.commits and not all(made_by_writers(file) and not is_metadata_name(file) for file in files):
            return False
        if storage.local is None:
            return not _remove_objects(storage, [name])
        _remove_folder(os.path.join(storage.local, name))
    return True


def _remove_folder(path: str) -> None:
    """Remove a folder with all that is in it, and its metadata first, for readers that do not know the catalog."""
    if os.path.islink(path):
        os.unlink(path)
    while os.path.lexists(path):
        with suppress(FileNotFoundError):  # someone else removes it, too
            for file in filter(is_metadata_name, os.listdir(path)):
                os.unlink(os.path.join(path, file))
            shutil.rmtree(path)


def _remove_objects(storage: Storage, names: list[str]) -> dict[str, str]:
    """The same where fsspec stores them: all metadata by as few requests as there can be, and then everything else."""
    if not names:
        return {}
    if len(names) > ONE_BY_ONE:
        below = files_below(storage)
    else:
        below = {folder: files for name in names for folder, files in files_below(storage, name).items()}
    files = {name: below.get(name, {}) for name in names}
    orders = {
        name: (
            [file for file in found if is_metadata_name(file)],
            [file for file in found if not is_metadata_name(file)],
        )
        for name, found in files.items()
    }
    try:
        done = remove_trees(storage, orders)
    except Exception as error:  # of whatever class; what is left is removed by the next call
        return dict.fromkeys(names, f"{type(error).__name__}: {error}")
    finally:
        storage.forget_listings()
    return {name: f"{type(why).__name__}: {why}" for name, why in done.items() if isinstance(why, Exception)}
