"""`forget`: removes the checkpoints of a run that a `Retention` does not keep."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.storage import Storage, storage_errors
from streamxf.keys import KeysLike, TrustLike
from streamxf.manager.catalog import read_catalog
from streamxf.manager.choice import Verify, check_verify, choose
from streamxf.manager.holds import held
from streamxf.manager.listing import check_folder, links, survey
from streamxf.manager.record import Record
from streamxf.manager.removal import finish_removals, remove_checkpoints
from streamxf.manager.retention import Retention
from streamxf.wording import listed, many, size_text

_NEWEST = "the newest that verifies"
_UNVERIFIED = "no checkpoint of this run verifies, so none is removed"


@dataclass(frozen=True)
class ForgetReport:
    """What `forget` did, or would do.

    Attributes
    ----------
    kept : mapping of str to tuple of str
        The complete checkpoints that stay, the oldest first, each with the reasons.
    removed : tuple of str
        Those that were removed; with `dry_run`, those that would be.
    bytes : int
        What they took, as far as it is known.
    failed : mapping of str to str
        Those that could not be removed, each with the reason. The next call tries again.
    in_use : mapping of str to str
        Those that stay for now although no rule keeps them, since someone reads them, each with who does.
    dry_run : bool
    """

    kept: Mapping[str, tuple[str, ...]]
    removed: tuple[str, ...]
    bytes: int
    failed: Mapping[str, str]
    in_use: Mapping[str, str]
    dry_run: bool

    def __str__(self) -> str:
        did = "would remove" if self.dry_run else "removed"
        return "\n".join(
            [
                f"{did} {many(len(self.removed), 'checkpoint')}, {size_text(self.bytes)}",
                *listed(did, self.removed),
                *listed("not removed", [f"{name}: {reason}" for name, reason in self.failed.items()]),
                *listed("in use", [f"{name}: {who}" for name, who in self.in_use.items()]),
                *listed("kept", [f"{name}: {', '.join(reasons)}" for name, reasons in self.kept.items()]),
            ]
        )


def forget(
    run: str | os.PathLike[str],
    keep: Retention | int,
    *,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    verify: Verify = "sample",
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> ForgetReport:
    """Remove those complete checkpoints of a run that no rule of `keep` keeps, each with its whole folder.

    The rules are applied to each series of names by itself: ``step-100`` and ``step-200`` are of one, and a model
    beside them in ``llama-7b`` is of another.

    Whatever the rules say, these stay: the newest one; the newest one that verifies; those that someone reads through a
    `CheckpointManager` or `hold`; those that links in the run's folder lead to; and those that are being saved over. If
    none verifies, none is removed. A call that is killed leaves no half checkpoint that could be resumed from, and the
    next call goes on with it.

    Parameters
    ----------
    run : path or str
        The folder that holds the checkpoints' folders, or its URL.
    keep : Retention or int
        A number means the last so many.
    keys, trust, allow_unsigned
        As in `FileSystemReader`, to verify.
    verify : {"sample", "whole", "none"}
        How the newest one that stays is verified first: by its metadata and blocks spread over its tensors, by reading
        all of it, or by its metadata and the sizes of its files.
    dry_run : bool
        Whether to remove nothing, and only report what would be removed.
    storage_options : mapping, optional
        fsspec's, for the URL.

    Raises
    ------
    NoCheckpointError, UnsupportedError
        If there is no such folder, or it is a file.
    MetadataError
        If the run's catalog is damaged.
    KeyMissingError, WrongKeyError, KeyServiceError, PolicyError, UnknownCodecError
        If a checkpoint cannot be verified for lack of a key or codec, or is weaker than keys require.
    OSError, ForeignError
        If the storage cannot be reached.
    """
    check_verify(verify)
    rules = Retention.of(keep)
    storage = Storage.of(run, storage_options)
    access = Access.of(keys, trust=trust, allow_unsigned=allow_unsigned)
    with storage_errors(storage.given):
        check_folder(storage)
        return forget_in(storage, rules, access, verify, dry_run=dry_run)


def forget_in(
    storage: Storage,
    keep: Retention,
    access: Access,
    verify: Verify,
    *,
    dry_run: bool = False,
    series: str | None = None,
    protected: str | None = None,
) -> ForgetReport:
    """The same; with `series`, for the checkpoints of that one alone. The one named `protected` stays."""
    catalog = read_catalog(storage) if dry_run else finish_removals(storage)
    records = [record for record in survey(storage, catalog) if record.state == "complete"]
    found = sorted({record.series for record in records if series in (None, record.series)})
    readers = held(storage)
    targets = {target: link for link, target in links(storage).items()}
    reasons: dict[str, tuple[str, ...]] = {}
    in_use: dict[str, str] = {}
    going: list[Record] = []
    for each in found:
        own = [record for record in records if record.series == each]
        decided = keep.decide(own)
        for name in decided:
            if name in catalog.saving:
                decided[name] += ("is being saved",)
            if name == protected:
                decided[name] += ("was just saved",)
            if name in targets:
                decided[name] += (f"link {targets[name]}",)
        doomed = [record for record in own if not decided[record.name] and record.name not in readers]
        if doomed:
            newest = choose(storage, own, access, verify).record
            for record in doomed if newest is None else [newest]:
                decided[record.name] = decided[record.name] or (_UNVERIFIED if newest is None else _NEWEST,)
        in_use |= {name: readers[name] for name, why in decided.items() if not why and name in readers}
        going += [record for record in doomed if not decided[record.name]]
        reasons |= decided
    names = [record.name for record in going]
    failed: dict[str, str] = {}
    if not dry_run:
        names, late, failed = remove_checkpoints(storage, names)
        in_use |= late
    removed = set(names)
    gone = [record for record in going if record.name in removed]
    return ForgetReport(
        {record.name: reasons[record.name] for record in records if reasons.get(record.name)},
        tuple(record.name for record in gone),
        sum(record.bytes or 0 for record in gone),
        failed,
        in_use,
        dry_run,
    )
