"""`forget`: removes the checkpoints of a run that a `Retention` does not keep."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamxf.errors import ParameterError
from streamxf.keys import KeysLike, TrustLike
from streamxf.manager.choice import Verify, check_verify, newest
from streamxf.manager.holds import held
from streamxf.manager.listing import Run, records_of
from streamxf.manager.record import Record
from streamxf.manager.removal import finish, remove_checkpoints
from streamxf.manager.retention import Retention, settled
from streamxf.storage.opening import Location
from streamxf.wording import listed, many, size_text

_NEWEST = "the newest that verifies"
_UNVERIFIED = "no checkpoint of this run verifies, so none is removed"


@dataclass(frozen=True)
class ForgetReport:
    """What `forget` did, or would do.

    Attributes
    ----------
    kept : mapping of str to tuple of str
        The complete checkpoints that stay, the oldest first, each with the reasons. They include foreign ones, and with
        keys those that the keys do not verify: no rule applies to these.
    removed : tuple of str
        Those that were removed; with `dry_run`, those that would be.
    bytes : int
        Their size, as far as it is known.
    failed : mapping of str to str
        Those that could not be removed, each with the reason. The next call tries again.
    in_use : mapping of str to str
        Those that no rule keeps, but someone is reading, each with the reader.
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
    run: Location,
    keep: Retention | int | None = None,
    *,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    verify: Verify = "sample",
    unverified: bool = False,
    run_id: str | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> ForgetReport:
    """Remove the complete checkpoints of a run, with their files, that no rule of `keep` keeps.

    The rules are applied to each series of names separately: ``step-100`` and ``step-200`` are one, and a model beside
    them in ``llama-7b`` is another.

    These always stay: the newest; the newest that verifies; those being read through a `CheckpointManager` or `hold`;
    targets of links in the run's folder; those being saved; those of another run, or saved under another name; and with
    keys, those that the keys do not verify. If none verifies, none is removed. A killed call leaves no half checkpoint
    that could be resumed from, and the next call finishes it.

    Parameters
    ----------
    run : path, str or Storage
        The folder that holds the checkpoints' folders, or its URL.
    keep : Retention or int, optional
        A number means the last N. By default the job's own rules, as recorded in the newest checkpoint that verifies;
        they are only applied if keys authenticate them, or with `dry_run`.
    keys, trust, allow_unsigned
        As in `FileSystemReader`, to verify.
    verify : {"sample", "whole", "none"}
        How the newest one that stays is verified first: by its metadata and blocks spread over its tensors, by reading
        all of it, or by its metadata and the sizes of its files. A sample of less than 1 GiB is everything.
    unverified : bool
        Whether to count and remove checkpoints that the keys do not verify.
    run_id : str, optional
        Which run, if the folder holds checkpoints of several.
    dry_run : bool
        Whether to remove nothing, and only report what would be removed.
    storage_options : mapping, optional
        fsspec's, for the URL.

    Raises
    ------
    NoCheckpointError, UnsupportedError
        If there is no such folder; if it is a file, or a checkpoint.
    ParameterError
        If no rules are given or recorded, or the recorded ones are not authenticated.
    KeyMissingError, WrongKeyError, KeyServiceError, PolicyError, UnknownCodecError
        If a checkpoint cannot be verified for lack of a key or codec, or is weaker than keys require.
    OSError, ForeignError
        If the storage cannot be reached.
    """
    check_verify(verify)
    vouchers = {"keys": keys, "trust": trust, "allow_unsigned": allow_unsigned}
    place = Run.at(run, storage_options, run_id, unverified=unverified, **vouchers)
    rules = Retention.of(keep) if keep is not None else recorded_rules(place, dry_run=dry_run)
    return forget_in(place, rules, verify, dry_run=dry_run)


def recorded_rules(run: Run, *, dry_run: bool) -> Retention:
    """Those of the job, as the newest checkpoint that counts has them."""
    if not (dry_run or run.authority.strict):
        raise ParameterError(
            "without keys anybody can have written the rules in a checkpoint: give rules, or dry_run=True"
        )
    for record in reversed(records_of(run)):
        if record.counts and (now := run.record(record.name)) is not None and now.counts and now.rules:
            return Retention.of_json(now.rules)
    raise ParameterError("nothing says what is to stay: no checkpoint has recorded rules, so give some")


def forget_in(
    run: Run,
    keep: Retention,
    verify: Verify,
    *,
    dry_run: bool = False,
    series: str | None = None,
    protected: Mapping[str, str] | None = None,
    coming: Record | None = None,
) -> ForgetReport:
    """The same; with `series`, for the checkpoints of that one alone, of which the newest is not read in full. Those in
    `protected` stay, for the reason that stands there. With `coming`, as if that had been saved already.
    """
    records = records_of(run, sure=keep.by_facts) if series is None else run.records(series=series, sure=keep.by_facts)
    extras = keep.extras == "remove"
    for each in {record.series for record in records if not record.complete and not dry_run}:
        finish(run, each, extras=extras)
    reasons: dict[str, tuple[str, ...]] = {
        record.name: ("not verified" if record.kind != "foreign" else f"foreign: {record.note}",)
        for record in records
        if record.complete and not record.counts
    }
    readers, going = held(run.storage), []
    in_use: dict[str, str] = {}
    counted = [record for record in records if record.counts]
    for each in sorted({record.series for record in counted}):
        own = [record for record in counted if record.series == each]
        ranked = own
        if coming is not None and coming.series == each:
            ranked = [*(record for record in own if record.name != coming.name), coming]
        decided = keep.decide(settled(ranked, time.time()))
        for why in (protected or {}, {name: f"link {link}" for name, link in run.linked.items()}):
            decided |= {name: (*decided[name], why[name]) for name in why.keys() & decided.keys()}
        doomed = [record for record in own if not decided[record.name] and record.name not in readers]
        if doomed:
            good = newest(run, reversed(own), verify, thorough=series is None).record
            for record in doomed if good is None else [good]:
                decided[record.name] = decided[record.name] or (_UNVERIFIED if good is None else _NEWEST,)
        in_use |= {name: who for name, who in readers.items() if name in decided and not decided[name]}
        going += [record for record in doomed if not decided[record.name]]
        reasons |= decided
    read, failed = ({}, {}) if dry_run else remove_checkpoints(run, going, extras=extras)
    gone = [record for record in going if record.name not in read and record.name not in failed]
    return ForgetReport(
        {record.name: reasons[record.name] for record in records if reasons.get(record.name)},
        tuple(record.name for record in gone),
        sum(record.bytes or 0 for record in gone),
        failed,
        in_use | read,
        dry_run,
    )
