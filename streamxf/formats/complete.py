"""`is_complete` and `latest`: which checkpoint a job can resume from. A folder is there before its checkpoint is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from streamxf.checkpoint.metadata import rank_of
from streamxf.checkpoint.storage import Storage
from streamxf.errors import ContainerError, DescriptorError, MetadataError, UnsupportedError
from streamxf.formats.contents import Contents
from streamxf.formats.opening import contents_of, open_source


def is_complete(
    path: str | os.PathLike[str], *, ranks: int | None = None, storage_options: Mapping[str, Any] | None = None
) -> bool:
    """Whether a checkpoint is complete: its metadata can be read, and all files that it names have their size.

    ``os.path.exists`` is true of the folder of a save that was killed. This reads metadata alone, and needs no keys;
    `verify` reads all data.

    Parameters
    ----------
    path : path or str
        A checkpoint's folder, file or URL, of any format that `inspect` reads.
    ranks : int, optional
        How many ranks saved, where each has metadata of its own (``use_collectives=False``). Without it such a
        checkpoint does not count as complete, since some rank's metadata may be missing.
    storage_options : mapping, optional
        fsspec's, for a URL.

    Raises
    ------
    UnsupportedError
        If it is of a kind that cannot be read here.
    OSError, ForeignError
        If the storage cannot be reached. A job that took that for "no" would start from scratch.
    """
    try:
        with open_source(Storage.of(path, storage_options), listing=True) as source:
            contents = contents_of(source)
    except (FileNotFoundError, MetadataError, ContainerError, DescriptorError):
        return False
    return not contents.incomplete and _has_all_ranks(contents, ranks)


def latest(
    folder: str | os.PathLike[str], *, ranks: int | None = None, storage_options: Mapping[str, Any] | None = None
) -> str | None:
    """The path of the latest complete checkpoint among the folders in `folder`; None if there is none, or no `folder`.

    The numbers in their names say which is the latest, compared one after the other: ``step-1000`` is later than
    ``step-900``, and ``epoch-2-step-100`` later than ``epoch-1-step-900``. Names without a number, such as ``best``,
    are passed over, and so are hidden ones.

    `folder` may be a URL; the other arguments, and what it raises, are those of `is_complete`.
    """
    storage = Storage.of(folder, storage_options)
    try:
        if not storage.is_folder():
            raise UnsupportedError("this is a file, and not a folder of checkpoints", file=storage.given)
        names = storage.folders()
    except FileNotFoundError:
        return None
    numbered = [name for name in names if not name.startswith(".") and re.search(r"[0-9]", name)]
    for name in sorted(numbered, key=_numbers, reverse=True):
        path = storage.full(name)
        if is_complete(path, ranks=ranks, storage_options=storage_options):
            return path
    return None


def _has_all_ranks(contents: Contents, ranks: int | None) -> bool:
    found = {rank for name in contents.files if (rank := rank_of(name)) is not None}
    return not found or (ranks is not None and found >= set(range(ranks)))


def _numbers(name: str) -> tuple[list[int], str]:
    return [int(digits) for digits in re.findall(r"[0-9]+", name)], name
