"""What a load that fails tells its caller to do next."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from streamxf.errors import (
    AuthenticationError,
    CodecError,
    ContainerError,
    DescriptorError,
    IdentityError,
    MetadataError,
    StreamxfError,
)

_OF_METADATA = (AuthenticationError, DescriptorError, MetadataError)
_OF_ITEMS = (*_OF_METADATA, CodecError, ContainerError, IdentityError)
_SLIP = ".slip"  # what conversions write beside a data file that is finished, until all are
_SHOWN = 8

_ITEMS = "next: streamxf.verify(path, keys) lists all that is damaged, streamxf.salvage(path, keys=keys) loads the rest"
_METADATA = (
    "next: put back a copy of this file if there is one; if not, see streamxf.salvage(path, keys=keys, "
    "without_metadata=True)"
)


@contextmanager
def items_advised() -> Iterator[None]:
    """Add a note to errors that mean damage. Others say themselves what to do: give another key, say."""
    try:
        yield
    except _OF_ITEMS as error:
        error.add_note(_ITEMS)
        raise


def advise_on_metadata(error: StreamxfError) -> None:
    """The same for what is wrong with metadata. An `IdentityError` says there that it is another save's."""
    if isinstance(error, _OF_METADATA):
        error.add_note(_METADATA)


def unfinished(names: Collection[str]) -> str | None:
    """What a folder without metadata is, if a conversion to it was stopped or is at work; else None.

    Parameters
    ----------
    names : collection of str
        Those of the files that are in it.
    """
    data = [name for name in names if name.endswith(".distcp")]
    finished = [name for name in data if f"{name}{_SLIP}" in names]
    if not finished:
        return None
    return (
        "there is no checkpoint here yet: a pack, transcode or salvage to this folder was interrupted, or is at work. "
        f"{len(finished):,} of the {len(data):,} data files that are here are finished. The same call resumes from "
        "there and publishes the checkpoint; to give it up, delete the folder"
    )


def resumable(leftovers: Collection[str]) -> list[str]:
    """A line that says so if some leftovers are what a conversion was stopped at, in place of the checkpoint beside."""
    finished = sum(name.endswith(f".distcp{_SLIP}") for name in leftovers)
    if not finished:
        return []
    return [
        f"interrupted: {finished:,} of the data files left over {'is' if finished == 1 else 'are'} finished by a "
        "transcode, pack or salvage that was interrupted, or is at work; the same call resumes from there"
    ]


def why_missing(names: Collection[str], rank: int | None) -> str:
    """Why a metadata file may not be there.

    Parameters
    ----------
    names : collection of str
        Those of the files that are in its folder.
    rank : int or None
        Whose it would be; None for that of all ranks.
    """
    if (text := unfinished(names)) is not None:
        return text
    if rank is None:
        return "there is no .metadata"
    ranks = sorted(name for name in names if name.startswith("__") and name.endswith(".metadata"))
    if ranks:
        shown = ", ".join(ranks[:_SHOWN]) + (f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else "")
        return (
            f"the folder has metadata of single ranks ({shown}), and none of rank {rank}: such a checkpoint is loaded "
            "by the ranks that saved it"
        )
    if any(name.endswith(".distcp") for name in names):
        return (
            "the folder has data files and no metadata at all. Either no save to it was ever published (a later "
            "save removes these files), or its .metadata was lost: then put back a copy, or see "
            "streamxf.salvage(path, keys=keys, without_metadata=True)"
        )
    return "there is no checkpoint in the folder, or no such folder"
