"""`stock`: torch's own readers read a checkpoint that was saved without a pickle for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.storage.opening import Location, open_storage
from streamxf.tools.rekey.holders import MetadataFile, each, metadata_of, replace_each


def stock(path: Location, *, storage_options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Put the pickle that torch's own readers need at the head of a checkpoint's metadata.

    It needs no keys, and vouchers and signatures stay: they are made for the index, from which the pickle is derived.
    Each metadata file is replaced in one step; if ranks have their own, one after the other.

    `path` is the checkpoint's folder, or its URL, which fsspec opens with `storage_options`. Returns the names of the
    rewritten files; ``()`` if torch's readers could read all of them before.

    Raises
    ------
    MetadataError
        If it is missing or damaged, was replaced meanwhile, or would be too large.
    UnsupportedError
        If another writer made it, or several processes encrypted it: torch's readers need each data key wrapped for
        the recipients, which only a save can do.
    OSError
        If it cannot be written. Then the old file is still there.
    """

    def plan(file: MetadataFile) -> tuple[MetadataFile, bytes] | None:
        if file.sections.pickled:
            return None
        file.read(Access(), listing=True)
        return file, file.pack(file.keys if file.is_encrypted else None, replace(file.sections, pickled=True))

    return replace_each(each(metadata_of(open_storage(path, storage_options)), plan))
