"""Whether a save that is about to be published may be: all that it names is there, and nothing that must stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from streamxf.checkpoint.metadata import GLOBAL
from streamxf.checkpoint.storage import Storage
from streamxf.errors import AbortedError, ContainerError, UnsupportedError
from streamxf.format.index import File


def check_free(path: Any, found: Collection[str], name: str, overwrite: bool) -> None:
    """Refuse to publish `name`, a metadata file, beside or over what is in its folder by now.

    Raises
    ------
    UnsupportedError
        If it is metadata of a single rank, and there is global metadata.
    AbortedError
        If there is a checkpoint that may not be replaced.
    """
    if name != GLOBAL and GLOBAL in found:
        raise UnsupportedError(
            f"{path} holds a checkpoint with global metadata, which readers prefer; save without collectives into "
            "another folder"
        )
    if name in found and not overwrite:
        raise AbortedError(
            f"{path} holds a checkpoint that another save published meanwhile, and overwrite=False; this one was not "
            "published. Save into a folder of its own"
        )


def check_present(
    storage: Storage,
    found: Mapping[str, int | None],
    files: Mapping[str, File],
    elsewhere: Collection[str],
) -> None:
    """Refuse to publish a save some of whose files have gone, or are not as long as they were written.

    Parameters
    ----------
    found : mapping of str to int or None
        What `Storage.names` found in the folder.
    files : mapping of str to File
        The index's.
    elsewhere : collection of str
        Those that other hosts wrote, to folders that surely are their own. Where people copy these together later, none
        of them is here.

    Raises
    ------
    AbortedError
        If files are missing: another save to this folder has been published meanwhile, and removed them.
    ContainerError
        If one is shorter or longer than what was written.
    """
    missing = [path for path in files if path not in found]
    local = storage.local is not None
    if missing and local and len(missing) < len(files) and not any(path in found for path in elsewhere):
        missing = [path for path in missing if path not in elsewhere]
    if missing:
        raise AbortedError(
            f"data files of this save are gone ({len(missing)} of {len(files)}, {missing[0]} first): another save to "
            "this folder was published meanwhile, or the folder was cleaned up. This save was not published, and what "
            "is there stays as it is. Save into a folder of its own",
            file=storage.full(missing[0]),
        )
    for path, facts in files.items():
        if path not in found:
            continue
        size = found[path]
        if size != facts.size and (local or size is not None):
            raise ContainerError(
                f"{facts.size} bytes were written to the file, and now it has {'none' if size is None else size}: the "
                "storage lost some of them, or another program writes to it. The save was not published, and what is "
                "there stays as it is",
                file=storage.full(path),
            )
