"""`stock`: torch's own readers read a checkpoint that was saved without a pickle for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import metadata_in
from streamxf.errors import located
from streamxf.storage.opening import Location, open_storage
from streamxf.tools.rekey.holders import MetadataFiles, key_set


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
    files, written = MetadataFiles(open_storage(path, storage_options)), []
    for name in files.names():
        with located(file=files.label(name)):
            sections = files.sections(name)
            if not sections.pickled:
                metadata_in(sections, name, Access(), listing=True)
                files.replace(name, sections, replace(sections, pickled=True), key_set(sections))
                written.append(name)
    return tuple(written)
