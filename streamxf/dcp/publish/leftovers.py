"""Files that no published save names: those of a checkpoint that was replaced, of saves that failed or died."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable
from typing import Any

from streamxf.dcp.publish.listing import list_files, made_by_writers, rank_of

_SHOWN = 5


def leftovers(files: Iterable[str], named: Collection[str], rank: int | None) -> list[str]:
    """The names among `files` that writers made, and that the save that was just published has no use for.

    Parameters
    ----------
    named : collection of str
        What the save consists of, its metadata among it.
    rank : int or None
        For rank-local metadata, whose it is: then only this rank's files count, since nothing is known of the others'.
    """
    found = [name for name in files if name not in named and made_by_writers(name)]
    if rank is not None:
        found = [name for name in found if rank_of(name) == rank]
    # ranks in their order, so that a save which looks for its own first file sees that somebody removes them
    return sorted(found, key=lambda name: (-1 if (number := rank_of(name)) is None else number, name))


def remove_leftovers(
    filesystem: Any, folder: str | os.PathLike[str], named: Collection[str], rank: int | None, encrypted: bool
) -> None:
    """Remove what a save that was published just now leaves behind.

    Whatever goes wrong is only warned about: the new checkpoint is the one that loads already.
    """
    try:
        found = leftovers(list_files(filesystem, folder), named, rank)
    except Exception as error:  # whatever a file system raises here, the save stands
        warnings.warn(
            f"the checkpoint is saved, but {folder} could not be listed, so files of the one before it may still be "
            f"there: {error}. streamxf.clean removes them",
            stacklevel=2,
        )
        return
    failed = remove_files(filesystem, folder, found)
    if failed:
        names = [os.fspath(filesystem.concat_path(folder, name)) for name in list(failed)[:_SHOWN]]
        more = f" and {len(failed) - len(names)} more" if len(failed) > len(names) else ""
        plain = "; unlike the new checkpoint, they may be unencrypted" if encrypted else ""
        warnings.warn(
            f"the checkpoint is saved, but files of earlier saves could not be removed{plain}: "
            f"{', '.join(names)}{more} ({next(iter(failed.values()))}). "
            "Once that is mended, streamxf.clean removes them",
            stacklevel=2,
        )


def remove_files(filesystem: Any, folder: str | os.PathLike[str], names: Iterable[str]) -> dict[str, Exception]:
    """Remove files; gives those that could not be removed, each with the reason."""
    failed: dict[str, Exception] = {}
    for name in names:
        try:
            filesystem.rm_file(filesystem.concat_path(folder, name))
        except FileNotFoundError:
            pass
        except Exception as error:  # the others shall go all the same
            failed[name] = error
    return failed
