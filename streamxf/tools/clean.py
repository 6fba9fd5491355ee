"""`clean`: removes what saves that failed, or were killed, left in a checkpoint's folder."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Unpack

from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import MetadataError, NoCheckpointError, ParameterError, PolicyError, UnsupportedError
from streamxf.formats.opening import contents_of
from streamxf.places import GLOBAL, Location, Storage, is_run_file, locked, made_by_saves, open_storage, rank_of
from streamxf.reading import Access, AccessOptions, Metadata, metadata_files
from streamxf.tools.damage import resumable
from streamxf.wording import by_reason, listed, many, reason_of, size_text, some
from streamxf.writing import Pins


@dataclass(frozen=True)
class CleanReport:
    """The result of `clean`.

    - `removed`: the files that were removed; with `dry_run`, those that would be.
    - `bytes`: their size, if the storage reports it.
    - `failed`: leftovers that could not be removed, each with the reason.
    - `uploads`: files with unfinished uploads: their parts in the store were dropped, or would be.
    - `kept`: files that no writer makes, and data files of ranks without metadata. Only you know their purpose.
    - `pinned`: leftovers that increments beside this folder need; `pinned_by`: the folders of these.
    - `recent`: files written, or with an upload begun, less than `min_age` ago: leftovers, or of a save under way.
    """

    removed: tuple[str, ...]
    bytes: int
    failed: Mapping[str, str]
    uploads: tuple[str, ...]
    kept: tuple[str, ...]
    recent: tuple[str, ...]
    dry_run: bool
    pinned: tuple[str, ...] = ()
    pinned_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        did = "would remove" if self.dry_run else "removed"
        lines = [
            f"{did} {many(len(self.removed), 'file')}, {size_text(self.bytes)}",
            *listed(did, self.removed),
            *listed(f"{did} the parts of an unfinished upload", self.uploads),
            *listed("not removed", by_reason(self.failed)),
            *listed("left alone", self.kept),
            *listed(f"left alone, since {some(self.pinned_by)} needs it, until `streamxf consolidate`", self.pinned),
            *listed("left alone, since a save may be writing it", self.recent),
            *resumable((*self.removed, *self.recent) if self.dry_run else self.recent),
        ]
        return "\n".join(lines)


def clean(
    path: Location,
    *,
    min_age: float | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    **options: Unpack[AccessOptions],
) -> CleanReport:
    """Remove leftovers of failed and killed saves: files and drafts that no metadata names, and unfinished uploads.

    The next save does the same, once it is published. Files that no writer makes stay. Call it when no save to the
    folder is under way. Where there are locks, a process that saves holds one until it has published, and no leftover
    is removed meanwhile. Elsewhere files younger than a day stay.

    Parameters
    ----------
    path, storage_options, keys, trust, allow_unsigned, require, expect_save_id, codecs
        As in `Checkpoint`. Keys authenticate the metadata; without them, its digest must match.
    min_age : float, optional
        Minimum age of a leftover: seconds since it was last written to. By default 0 where a lock of the folder keeps
        saves from being published meanwhile, elsewhere a day. 0 there says that you know of no save under way.
    dry_run : bool
        Whether to remove nothing, and only report what would be removed.

    Raises
    ------
    MetadataError
        If there is no metadata, or it is damaged, or names files that are missing or have another size. Then nothing is
        removed: it may be all that is left of a checkpoint.
    AuthenticationError, KeyMissingError, WrongKeyError, PolicyError
        If keys are given, and the metadata is not authentic or not encrypted.
    ParameterError
        If `min_age` is not a number of seconds.
    UnsupportedError
        If the URL leads through a cache of fsspec's.
    AbortedError
        If another process publishes to the folder, or cleans it up, and does not finish.
    """
    if min_age is not None and not (isinstance(min_age, int | float) and min_age >= 0):
        raise ParameterError(f"min_age={min_age!r:.80}: it is a number of seconds, from 0")
    access = Access.of(**options)
    storage = open_storage(path, storage_options)
    storage.check_fresh()
    with storage.entered() as storage, locked(storage) as alone:
        age = min_age if min_age is not None else 0 if alone else storage.DAY
        uploads, young, failed_uploads = _clean_uploads(storage, age, dry_run)
        try:
            names = _metadata_files(storage)
        except NoCheckpointError:
            if not uploads and not young:  # the save that was killed may have been the first
                raise
            names = []
        files = storage.names()
        before = _read(storage, access) if names else None
        named = _named_files(before) if before is not None else set()
        ranks = None if names == [GLOBAL] else {rank_of(name) for name in names}
        made = filter(made_by_saves, files.keys() - named)
        pairs = sorted((-1 if (rank := rank_of(name)) is None else rank, name) for name in made)
        found = [name for _, name in pairs if ranks is None or rank_of(name) in ranks]
        pins = Pins.of(storage, files)
        pinned = pins.needed(found)
        found = [name for name in found if name not in pinned]
        kept = sorted(name for name in files.keys() - named - {*found, *pinned} if not is_run_file(name))
        old = set() if in_use(storage, found, lately=alone) else storage.older_than(found, age)
        if old and not alone and before is not None and _read(storage, access).metadata != before.metadata:
            raise MetadataError(
                "the metadata was replaced meanwhile: another process saves to this folder. Nothing was removed; try "
                "again when that is over",
                file=storage.label(),
            )
        failed, spared = ({}, ()) if dry_run else _remove(storage, [name for name in found if name in old])
        old = old.difference(spared)
    removed = tuple(name for name in found if name in old and name not in failed)
    report = CleanReport(
        removed,
        sum(files[name] or 0 for name in removed),
        {name: reason_of(error, name) for name, error in {**failed, **failed_uploads}.items()},
        uploads,
        tuple(kept),
        (*(name for name in found if name not in old), *young),
        dry_run,
        tuple(sorted(pinned)),
        tuple(sorted(pins.by)),
    )
    if report.failed:
        warnings.warn(f"{many(len(report.failed), 'file')} could not be removed:\n{report}", stacklevel=2)
    return report


def in_use(storage: Storage, names: Iterable[str], *, lately: bool = True) -> bool:
    """Whether a process writes one of these files, by their locks; without locks, whether one did so `lately`."""
    unlocked: list[str] = []
    for name in names:
        try:
            with storage.lock_file(name) or nullcontext() as file:
                unlocked += [name] if file is None else []
        except BlockingIOError:
            return True
    return lately and storage.was_written_lately(unlocked)


def _remove(storage: Storage, names: list[str]) -> tuple[dict[str, Exception], list[str]]:
    """Remove leftovers; what could not be removed, and what stays, since a save has locked one of them meanwhile."""
    failed: dict[str, Exception] = {}
    step = 1 if storage.near else max(len(names), 1)
    for at in range(0, len(names), step):
        try:
            with storage.lock_file(names[at]) or nullcontext():
                failed |= storage.remove(names[at : at + step])
        except BlockingIOError:
            return failed, names[at:]
    return failed, []


def _clean_uploads(
    storage: Storage, age: float, dry_run: bool
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, Exception]]:
    """Abort uploads begun at least `age` seconds ago: their files, those of later ones, and what could not be done."""
    done, young, failed = [], [], {}
    try:
        found = [upload for upload in storage.uploads() if made_by_saves(upload.name) or is_run_file(upload.name)]
    except (OSError, NotImplementedError) as error:  # not every user of a bucket may list them
        return (), (), {"unfinished uploads": error}
    for upload in found:
        if age and time.time() - upload.begun.timestamp() < age:
            young.append(upload.name)
            continue
        try:
            if not dry_run:
                upload.abort()
            done.append(upload.name)
        except FileNotFoundError:
            """It was finished or aborted meanwhile."""
        except Exception as error:  # the others are aborted all the same
            failed[upload.name] = error
    return tuple(done), tuple(young), failed


def _metadata_files(storage: Storage) -> list[str]:
    try:
        if not storage.is_folder():
            raise UnsupportedError("this is a file, and not a checkpoint's folder", file=storage.label())
        return metadata_files(storage)
    except FileNotFoundError:
        raise Metadata.absent(storage, ()) from None
    except MetadataError as error:
        reason = "Nothing was removed"
        if not isinstance(error, NoCheckpointError):
            reason += (
                ": its files may be the rest of a checkpoint. If you know that no save to it was ever published, "
                "save to it again, which removes them in time, or delete the folder"
            )
        raise type(error)(f"{error.message}. {reason}", file=error.file) from error


def _read(storage: Storage, access: Access) -> Checkpoint:
    try:
        return Checkpoint.at(storage, access, listing=True)
    except PolicyError as error:
        raise PolicyError(f"{error.message}. Nothing was removed", file=error.file) from None


def _named_files(checkpoint: Checkpoint) -> set[str]:
    """The files of a checkpoint, once all of them were found."""
    contents = contents_of(checkpoint)
    for name in contents.incomplete:
        if "/" in name:
            continue  # nothing in folders is ever removed
        size = contents.files.get(name)
        reason = f"it names {name}, which is missing"
        if size is not None:
            reason = f"{name} has {size} bytes, not the recorded size"
        text = (
            f"the checkpoint is incomplete, or its metadata is damaged: {reason}. Nothing was removed, since an "
            "apparent leftover may belong to it. `streamxf verify` lists the damage, `streamxf salvage` saves the rest"
        )
        raise checkpoint.storage.doubted(MetadataError(text, file=checkpoint.storage.label()))
    return {*contents.files}
