"""Publishing a finished save: one process at a time, only what is whole, and what it replaces is removed."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import read_metadata
from streamxf.errors import AbortedError, ContainerError, StreamxfError, UnsupportedError
from streamxf.format.index import File
from streamxf.format.names import DRAFT, GLOBAL, OWN_FILE, made_by_saves, metadata_name, rank_of
from streamxf.storage.storage import LOCK, Storage

RUN_FILE = re.compile(
    r"\.streamxf-(?:commit|saving|removed|note-[0-9a-f]{8})(?:\.[0-9a-f]{8}\.tmp)?|" + re.escape(LOCK), re.ASCII
)
"""What lies beside a save, and says something of it: no leftover of any."""


def made_by_writers(name: str) -> re.Match[str] | None:
    """A match of what may be a save's leftover, or lies beside one."""
    return made_by_saves(name) or RUN_FILE.fullmatch(name)


def check_free(path: Any, found: Collection[str], name: str, overwrite: bool) -> None:
    """Refuse to publish `name`, a metadata file, beside or over what is in its folder by now. Raises UnsupportedError
    if it is metadata of a single rank, and there is global metadata; AbortedError if there is a checkpoint that may
    not be replaced.
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
    storage: Storage, found: Mapping[str, int | None], files: Mapping[str, File], elsewhere: Collection[str]
) -> None:
    """Refuse to publish a save whose folder or some of whose files have gone, which raises AbortedError, or whose files
    are not as long as they were written, which raises ContainerError.

    - `found`: what `Storage.names` found in the folder.
    - `elsewhere`: files that other hosts wrote, to folders that surely are their own. Where people copy these together
      later, none of them is here.
    """
    if storage.was_swapped():
        text = "the folder was moved or removed while it was saved to; the save was not published: find out by whom"
        raise AbortedError(text, file=storage.given)
    missing = [path for path in files if path not in found]
    if missing and len(missing) < len(files) and not any(path in found for path in elsewhere):
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
        if size != facts.size and (storage.has_links or size is not None):
            raise ContainerError(
                f"{facts.size} bytes were written to the file, and now it has {'none' if size is None else size}: the "
                "storage lost some of them, or another program writes to it. The save was not published, and what is "
                "there stays as it is",
                file=storage.full(path),
            )


DAY = 86_400.0  # seconds: no save takes so long from its last byte to its publication, and no clocks differ so much

_SHOWN = 5


def leftovers(files: Iterable[str], named: Collection[str], rank: int | None) -> list[str]:
    """The names among `files` that writers made, and that the save that was just published has no use for.

    - `named`: what the save consists of, its metadata among it.
    - `rank`: for rank-local metadata, whose it is: then only this rank's files count, since nothing is known of the
      others'.
    """
    if rank is None:
        found = [name for name in files if name not in named and made_by_saves(name)]
    else:  # every rank looks through the files of all, so what is surely another's goes by at a glance
        prefix = f"__{rank}"
        found = [name for name in files if name.startswith(prefix) and name not in named and rank_of(name) == rank]
    # ranks in their order, so that a save which looks for its own first file sees that they are being removed
    return sorted(found, key=lambda name: (-1 if (number := rank_of(name)) is None else number, name))


def find_leftovers(
    storage: Storage, files: Iterable[str], named: Collection[str], rank: int | None, locked: bool
) -> list[str]:
    """What a save that is about to be published will make superfluous; arguments as for `leftovers`.

    - `locked`: whether no other process can publish to the folder meanwhile. Otherwise files that no metadata names may
      belong to a save that is about to be published, too; then only files that the current metadata names are
      leftovers, which no other save will name, and those older than a day. The rest is for `streamxf.clean`.
    """
    found = leftovers(files, named, rank)
    if locked:
        return found
    replaced = files_of(storage, metadata_name(rank))
    doubtful = [name for name in found if name not in replaced and (OWN_FILE.fullmatch(name) or DRAFT.fullmatch(name))]
    kept = set(doubtful) - settled(storage, doubtful, DAY)
    return [name for name in found if name not in kept]


def remove_leftovers(storage: Storage, names: Iterable[str], encrypted: bool) -> None:
    """Remove the leftovers of a save that was just published. Failures are warnings: the new checkpoint is the one that
    loads already.
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


def files_of(storage: Storage, name: str) -> Collection[str]:
    """The files that a metadata file names. Nothing vouches for it, so it only ever narrows what is removed."""
    try:
        index = read_metadata(storage, name, Access(), listing=True).index
    except (StreamxfError, OSError):
        return ()  # it is damaged, or there is none
    return index.files.keys() if index is not None else ()


def settled(storage: Storage, names: Collection[str], age: float) -> set[str]:
    """Those of `names` that were last written at least `age` seconds ago; where the storage does not tell, only if
    `age` is 0.
    """
    if not age or not names:
        return set(names)
    now = time.time()
    return {name for name, written in storage.written(names).items() if written is not None and now - written >= age}
