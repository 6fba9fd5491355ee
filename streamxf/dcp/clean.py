"""`clean`: removes what saves that failed, or were killed, left in a checkpoint's folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from streamxf.dcp.folder import Folder, digest
from streamxf.dcp.load.advice import resumable, unfinished
from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.metadata.manifest import Manifest, split
from streamxf.dcp.metadata.unpickle import load_metadata
from streamxf.dcp.metadata.whole import check_items, check_places
from streamxf.dcp.publish.leftovers import leftovers, remove_files
from streamxf.dcp.publish.listing import list_files, rank_of
from streamxf.dcp.publish.lock import locked
from streamxf.dcp.publish.settled import DAY, settled
from streamxf.errors import MetadataError, ParameterError, PolicyError, located
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.wording import listed, many, size_text


@dataclass(frozen=True)
class CleanReport:
    """What `clean` did, or would do.

    Attributes
    ----------
    removed : tuple of str
        Names of the files that were removed; with `dry_run`, those that would be.
    bytes : int
        What they took, as far as the storage tells.
    failed : mapping of str to str
        Names of leftovers that could not be removed, each with the reason.
    kept : tuple of str
        Names of files that no writer makes, and of data files of ranks that have no metadata there. Nobody but you
        knows what they are for.
    recent : tuple of str
        Names of files that may be leftovers, or belong to a save that is under way: somebody wrote to them less than
        `min_age` ago.
    dry_run : bool
    """

    removed: tuple[str, ...]
    bytes: int
    failed: Mapping[str, str]
    kept: tuple[str, ...]
    recent: tuple[str, ...]
    dry_run: bool

    def __str__(self) -> str:
        did = "would remove" if self.dry_run else "removed"
        lines = [
            f"{did} {many(len(self.removed), 'file')}, {size_text(self.bytes)}",
            *listed(did, self.removed),
            *listed("not removed", [f"{name}: {reason}" for name, reason in self.failed.items()]),
            *listed("left alone", self.kept),
            *listed("left alone, since a save may be writing it", self.recent),
            *resumable((*self.removed, *self.recent) if self.dry_run else self.recent),
        ]
        return "\n".join(lines)


def clean(
    path: str | os.PathLike[str],
    *,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    min_age: float | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> CleanReport:
    """Remove data files and drafts that the checkpoint does not name: what saves left that failed or were killed.

    The next save does the same, once it is published. Files that no writer makes stay. Call it when no save to the
    folder is under way. One that is fails on a local disk, and what is published stays whole. Elsewhere nothing keeps
    the two apart, and the save might be published without its files; so what is younger than a day stays there.

    Parameters
    ----------
    path : path or str
        The checkpoint's folder, or a URL that fsspec knows.
    keys, trust, allow_unsigned
        As `FileSystemReader` has them, to have the metadata authenticated. Without keys, the two lists of files that it
        has must agree.
    min_age : float, optional
        Seconds since somebody last wrote to a file, for it to be a leftover. By default 0 where a lock of the folder
        keeps saves from being published meanwhile, and a day elsewhere: in object stores, on network file systems, on
        Windows. 0 there says that you know of no save under way.
    dry_run : bool
        Whether to remove nothing, and only say what would be.
    storage_options : mapping, optional
        fsspec's, for the URL.

    Returns
    -------
    CleanReport

    Raises
    ------
    MetadataError
        If there is no metadata, or it is damaged, or names files that are not there or have another size. Nothing is
        removed then: it may be all that is left of a checkpoint.
    AuthenticationError, KeyMissingError, WrongKeyError, PolicyError
        If keys are given, and the metadata is not what they say, or is not encrypted.
    ParameterError
        If `min_age` is no number of seconds.
    UnsupportedError
        If the URL leads through a cache of fsspec's.
    AbortedError
        If somebody publishes to the folder, or cleans it up, and does not finish.
    """
    if min_age is not None and not (isinstance(min_age, int | float) and min_age >= 0):
        raise ParameterError(f"min_age={min_age!r:.80}: it is a number of seconds, from 0")
    ring = KeyRing.of(keys, trust, allow_unsigned)
    folder = Folder(path, storage_options)
    folder.check_uncached()
    with locked(folder.filesystem, folder.path) as alone:
        names = _names(folder)
        files = list_files(folder.filesystem, folder.path)
        named = set(names)
        read: dict[str, bytes] = {}
        for name in names:
            data = folder.read(name)
            read[name] = digest(data)
            with located(file=folder.full(name)):
                named |= _named_files(data, ring, rank_of(name), files)
        ranks = None if names == [".metadata"] else {rank_of(name) for name in names}
        found = [name for name in leftovers(files, named, None) if ranks is None or rank_of(name) in ranks]
        kept = sorted(files.keys() - named - set(found))
        age = min_age if min_age is not None else 0 if alone else DAY
        old = settled(folder.filesystem, folder.path, found, age)
        recent = [name for name in found if name not in old]
        found = [name for name in found if name in old]
        for name in names if found and not alone else ():
            if digest(folder.read(name)) != read[name]:  # by a save that may name what was found
                raise folder.replaced(name)
        failed = {} if dry_run else remove_files(folder.filesystem, folder.path, found)
    report = CleanReport(
        tuple(name for name in found if name not in failed),
        sum(files[name] or 0 for name in found if name not in failed),
        {name: str(error) for name, error in failed.items()},
        tuple(kept),
        tuple(recent),
        dry_run,
    )
    if failed:
        warnings.warn(f"{many(len(failed), 'file')} could not be removed:\n{report}", stacklevel=2)
    return report


def _names(folder: Folder) -> list[str]:
    try:
        return folder.names(beside=True)
    except MetadataError as error:
        reason = "Nothing was removed"
        if not unfinished(list_files(folder.filesystem, folder.path)):
            reason += (
                ": its files may be what is left of a checkpoint. If you know that no save to it was ever published, "
                "save to it again, which removes them in time, or delete the folder"
            )
        raise type(error)(f"{error.message}. {reason}", file=error.file) from error


def _named_files(data: bytes, keys: KeyRing, rank: int | None, files: Mapping[str, int | None]) -> set[str]:
    """The data files that a metadata file names, once all of them were found."""
    content, manifest = _read(data, keys, rank)
    ends: dict[str, int] = {}
    for place in (content.storage_data or {}).values():
        path = place.relative_path
        ends[path] = max(ends.get(path, 0), place.offset + place.length)
    if manifest is not None and manifest.files.keys() != ends.keys():
        raise _doubtful("its items and its manifest name different files")
    for path, end in ends.items():
        if "/" in path:
            continue  # nothing in folders is ever removed
        if path not in files:
            raise _doubtful(f"it names {path}, which is not there")
        size = files[path]
        if size is not None and (size < end or (manifest is not None and manifest.files[path].size != size)):
            raise _doubtful(f"{path} has {size} bytes, which is not what it says")
    return set(ends)


def _read(data: bytes, keys: KeyRing, rank: int | None) -> tuple[Metadata, Manifest | None]:
    parts = split(data)
    if data and len(keys) and parts.key is None:
        raise PolicyError(
            "keys were given, and this metadata has no MAC that they could check. Leave keys= out if you know that it "
            "was not encrypted by streamxf's writer. Nothing was removed"
        )
    if len(keys) or parts.key is None:
        content = metadata_file.load(data, keys, rank=rank)
        return content, metadata_file.manifest_of(content)
    manifest = parts.manifest  # nobody can say that it is right, only that both its parts say the same
    content = load_metadata(parts.pickled)
    check_places(content, manifest)
    check_items(content, rank)
    return content, manifest


def _doubtful(reason: str) -> MetadataError:
    return MetadataError(
        f"the checkpoint is not whole, or its metadata is damaged: {reason}. Nothing was removed, since what looks "
        "like a leftover may belong to it. streamxf.verify says what is wrong, streamxf.salvage reads what is left"
    )
