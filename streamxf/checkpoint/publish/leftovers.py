"""Files that no published save names: those of a checkpoint that was replaced, of saves that failed or died."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import metadata_name, read_metadata
from streamxf.checkpoint.publish.names import DRAFT, OWN_FILE, made_by_writers, rank_of
from streamxf.checkpoint.storage import Storage
from streamxf.errors import StreamxfError

DAY = 86_400.0
"""Seconds: no save takes so long from its last byte to its publication, and no clocks differ so much."""

_SHOWN = 5
_WRITTEN = ("LastModified", "last_modified", "mtime", "updated")  # in listings of S3, Azure, SFTP, Google Cloud Storage


def leftovers(files: Iterable[str], named: Collection[str], rank: int | None) -> list[str]:
    """The names among `files` that writers made, and that the save that was just published has no use for.

    Parameters
    ----------
    named : collection of str
        What the save consists of, its metadata among it.
    rank : int or None
        For rank-local metadata, whose it is: then only this rank's files count, since nothing is known of the others'.
    """
    if rank is None:
        found = [name for name in files if name not in named and made_by_writers(name)]
    else:  # every rank looks through the files of all, so what is surely another's goes by at a glance
        prefix = f"__{rank}"
        found = [name for name in files if name.startswith(prefix) and name not in named and rank_of(name) == rank]
    # ranks in their order, so that a save which looks for its own first file sees that they are being removed
    return sorted(found, key=lambda name: (-1 if (number := rank_of(name)) is None else number, name))


def find_leftovers(
    storage: Storage, files: Iterable[str], named: Collection[str], rank: int | None, locked: bool
) -> list[str]:
    """What a save that is about to be published will make superfluous.

    Parameters
    ----------
    files, named, rank
        As `leftovers` has them.
    locked : bool
        Whether no other process can publish to the folder meanwhile. Otherwise files that no metadata names may belong
        to a save that is about to be published, too; then only files that the current metadata names are leftovers,
        which no other save will name, and those older than a day. The rest is for `streamxf.clean`.
    """
    found = leftovers(files, named, rank)
    if locked:
        return found
    replaced = _files_of(storage, metadata_name(rank))
    doubtful = [name for name in found if name not in replaced and (OWN_FILE.fullmatch(name) or DRAFT.fullmatch(name))]
    kept = set(doubtful) - settled(storage, doubtful, DAY)
    return [name for name in found if name not in kept]


def remove_leftovers(storage: Storage, names: Iterable[str], encrypted: bool) -> None:
    """Remove the leftovers of a save that was just published.

    Whatever goes wrong is only warned about: the new checkpoint is the one that loads already.
    """
    failed = storage.remove(names)
    if failed:
        shown = [storage.full(name) for name in list(failed)[:_SHOWN]]
        more = f" and {len(failed) - len(shown)} more" if len(failed) > len(shown) else ""
        plain = "; unlike the new checkpoint, they may be unencrypted" if encrypted else ""
        warnings.warn(
            f"the checkpoint is saved, but files of earlier saves could not be removed{plain}: "
            f"{', '.join(shown)}{more} ({next(iter(failed.values()))}). "
            "Once that is mended, `streamxf clean` removes them",
            stacklevel=2,
        )


def _files_of(storage: Storage, name: str) -> Collection[str]:
    """The files that a metadata file names. Nothing vouches for it, so it only ever narrows what is removed."""
    try:
        index = read_metadata(storage, name, Access(), listing=True).index
    except (StreamxfError, OSError):
        return ()  # it is damaged, or there is none
    return index.files.keys() if index is not None else ()


def settled(storage: Storage, names: Collection[str], age: float) -> set[str]:
    """Those of the files `names` that were last written at least `age` seconds ago.

    A file of which the storage does not tell is not among them, unless `age` is 0.
    """
    if not age or not names:
        return set(names)
    now = time.time()
    local = storage.local
    listed = {} if local is not None else _listed(storage)
    found = set()
    for name in names:
        with suppress(OSError, NotImplementedError, AttributeError, ValueError):  # it has gone, or its age is unknown
            if local is not None:
                written = os.lstat(os.path.join(local, name)).st_mtime
            elif (
                told := next((listed[name][key] for key in _WRITTEN if key in listed.get(name, ())), None)
            ) is not None:
                written = _seconds(told)
            else:  # a request for each
                written = _seconds(storage.filesystem.modified(storage.inner(name)))
            if now - written >= age:
                found.add(name)
    return found


def _listed(storage: Storage) -> dict[str, Mapping[str, Any]]:
    """What a listing tells of each file. A file system that remembers the one of a moment ago asks for none."""
    entries = storage.filesystem.ls(storage.path, detail=True)
    return {os.path.basename(entry["name"].rstrip("/")): entry for entry in entries}


def _seconds(written: Any) -> float:
    """A moment as a file system of fsspec's gives it, in seconds since 1970."""
    if isinstance(written, str):
        written = datetime.fromisoformat(written)
    return written.timestamp() if isinstance(written, datetime) else float(written)
