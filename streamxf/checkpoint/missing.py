"""Errors for what is not there: they say what was found instead, and what to do."""

from __future__ import annotations

from collections.abc import Collection

from streamxf.errors import MetadataError, NoCheckpointError

_SHOWN = 8


_SLIP = ".slip"  # what conversions write beside a data file that is finished, until all are


def unfinished(names: Collection[str]) -> str | None:
    """What a folder without metadata is, if a conversion to it was interrupted or is at work; else None."""
    data = [name for name in names if name.endswith(".distcp")]
    finished = [name for name in data if f"{name}{_SLIP}" in names]
    if not finished:
        return None
    return (
        "there is no checkpoint here yet: a pack, transcode or salvage to this folder was interrupted, or is at work. "
        f"{len(finished):,} of the {len(data):,} data files that are here are finished. "
        "Repeat it to resume from there and to publish the checkpoint; to give it up, delete the folder"
    )


def resumable(leftovers: Collection[str]) -> list[str]:
    """A line that says so if some leftovers are of an interrupted conversion."""
    finished = sum(name.endswith(f".distcp{_SLIP}") for name in leftovers)
    if not finished:
        return []
    return [
        f"interrupted: {finished:,} of the data files left over {'is' if finished == 1 else 'are'} finished by a "
        "transcode, pack or salvage that was interrupted, or is at work; repeat it to resume from there"
    ]


def no_metadata(names: Collection[str], folder: str, rank: int | None = None) -> MetadataError:
    """Why a metadata file is not there."""
    if (text := unfinished(names)) is not None:
        return NoCheckpointError(text, file=folder)
    ranks = sorted(name for name in names if name.startswith("__") and name.endswith(".metadata"))
    if rank is not None and ranks:
        shown = ", ".join(ranks[:_SHOWN]) + (f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else "")
        return MetadataError(
            f"the folder has metadata of single ranks ({shown}), and none of rank {rank}: such a checkpoint is loaded "
            "by the ranks that saved it",
            file=folder,
        )
    if any(name.endswith(".distcp") for name in names):
        return MetadataError(
            "the folder has data files and no metadata at all. Either no save to it was ever published (a later save "
            "removes these files), or its .metadata was lost: then restore a copy, or see "
            "`streamxf salvage --without-metadata`",
            file=folder,
        )
    return NoCheckpointError("there is no checkpoint in the folder, or no such folder", file=folder)


def no_file(path: str) -> MetadataError:
    """The error for a data file that is missing."""
    return MetadataError("the file that holds the item is missing from the checkpoint", file=path)
