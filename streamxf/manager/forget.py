"""`forget` removes the checkpoints of a run that a `Retention` does not keep: of each the files that it consists of and
nothing else, so that a kill at any point leaves nothing that passes for a checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from streamxf.errors import ParameterError, StreamxfError, escaped
from streamxf.manager.choice import Verify, check_later, check_verify, newest
from streamxf.manager.folder import Folder
from streamxf.manager.holds import active_holds, announce_removal, announced_removals, has_no_place, is_over
from streamxf.manager.listing import Run, read_named
from streamxf.manager.notes import remove_notes, written_since
from streamxf.manager.pins import in_turn, unpin, who_needs
from streamxf.manager.record import Line, Record, Taken, series_of
from streamxf.manager.removal import Listing, Order, files_of_many, remove_tree, remove_trees
from streamxf.manager.retention import Retention
from streamxf.manager.sessions import is_held
from streamxf.manager.state import keep_needed
from streamxf.notes import COMMIT, REMOVED, SAVING
from streamxf.places import Location, is_metadata_name, is_run_file, locked, made_by_saves, put_small, read_small
from streamxf.reading import KeysLike, TrustLike
from streamxf.wording import by_reason, listed, many, reason_of, size_text, some
from streamxf.writing import Pins


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
        What that frees, as far as it is known.
    shared_bytes : int
        What else they have, in files that other checkpoints share, and keep.
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
    shared_bytes: int = 0

    def __str__(self) -> str:
        did = "would remove" if self.dry_run else "removed"
        return "\n".join(
            [
                f"{did} {many(len(self.removed), 'checkpoint')}, {size_text(self.bytes)}",
                *([f"shared by others, and kept: {size_text(self.shared_bytes)}"] if self.shared_bytes else []),
                *listed(did, self.removed),
                *listed("not removed", by_reason(self.failed)),
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
    abandoned: bool = False,
    run_id: str | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> ForgetReport:
    """Remove the complete checkpoints of a run, with their files, that no rule of `keep` keeps.

    The rules are applied to each series of names separately: ``step-100`` and ``step-200`` are one, a model beside them
    in ``llama-7b`` is another, and so are ``exp2-step-100`` and ``exp2-step-200``: the last number is the step.

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
    abandoned : bool
        Whether to remove those that training has given up by going back to an earlier one; without `keep`, only these.
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
    given = keep is not None or abandoned
    rules = Retention.of(keep) if given else recorded_rules(place, dry_run=dry_run)
    return forget_in(place, rules, verify, dry_run=dry_run, abandoned=abandoned)


def recorded_rules(run: Run, *, dry_run: bool) -> Retention:
    """Those of the job, as the newest checkpoint that counts has them."""
    if not (dry_run or run.authority.strict):
        raise ParameterError(
            "rules recorded in a checkpoint are not trusted without keys: pass keep=, keys= or dry_run=True"
        )
    for record in reversed(read_named(run).records):
        now = run.record(record.name) if record.counts and not record.abandoned else None
        if now is not None and now.counts and now.rules:
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
    line: Line | None = None,
    abandoned: bool = False,
) -> ForgetReport:
    """The same; with `series`, for the checkpoints of that one alone, of which the newest is not read in full. Those in
    `protected` stay, for the reason that stands there. With `coming`, as if that had been saved already. Rules count
    within a `line`, by default the last of a series; what that has `abandoned` stays unless it may go.
    """
    state = read_named(run) if series is None else run.read(series=series)
    records = state.records
    extras = keep.extras == "remove"
    for each in {series or record.series for record in records if not record.complete and not dry_run}:
        finish(run, each, extras=extras)
    reasons: dict[str, tuple[str, ...]] = {
        record.name: (f"{'foreign' if record.kind == 'foreign' else 'not verified'}: {record.note}",)
        for record in records
        if record.complete and not record.counts
    }
    readers = active_holds(run.storage)
    how: Any = {"line": line, "protected": protected, "coming": coming, "abandoned": abandoned}
    how["newest"] = lambda records: newest(run, state, records, verify, thorough=series is None).record
    now, how["late"] = time.time(), not run.storage.abilities.keeps_older

    for each in sorted({record.series for record in records if record.counts}):
        if line is None and (last := state.newest(each)) is not None:
            check_later(run, state, last, ())  # or the rules of the wrong line might remove the other
        reasons |= state.rules_applied(each, keep, now, readers, **how)
    keep_needed(records, reasons, readers)
    in_use = {name: who for name, who in readers.items() if reasons.get(name) == ()}
    going = [record for record in records if reasons.get(record.name) == () and record.name not in readers]
    read, failed = ({}, {}) if dry_run else remove_checkpoints(run, going, extras=extras)
    gone = [record for record in going if record.name not in read and record.name not in failed]
    kept = {record.name: reasons[record.name] for record in records if reasons.get(record.name)}
    removed, taken = tuple(record.name for record in gone), Taken(record for record in records if record.complete)
    before = taken.bytes
    for record in gone:
        taken.drop(record)
    freed = before - taken.bytes
    return ForgetReport(kept, removed, freed, failed, in_use | read, dry_run, Taken(gone).bytes - freed)


_AT_ONCE = 1000  # checkpoints in an object store between two looks at who reads them
_log = logging.getLogger(__name__)


def remove_checkpoints(
    run: Run, records: Sequence[Record], *, extras: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Remove these, unless they have changed since; with `extras`, other regular files in the folders of the run's own
    ones, too. Returns those that were not removed because somebody reads them, and those that could not be, each with
    the reason.
    """
    storage, in_use, failed = run.storage, dict[str, str](), dict[str, str]()
    groups = (group[at : at + _AT_ONCE] for group in in_turn(records) for at in range(0, len(group), _AT_ONCE))
    for part in ({each.name: each for each in group} for group in groups):
        with ExitStack() as stack:
            try:
                stack.enter_context(announce_removal(run, part))
            except OSError as error:
                if not has_no_place(error):
                    raise  # otherwise unannounced, or a full disk would stay full
            files = files_of_many(storage, part)
            readers = active_holds(storage, tidies=True)
            in_use.update({name: readers[name] for name in part if name in readers})
            unread = [record for name, record in part.items() if name not in readers]
            if not storage.near:
                failed.update(_remove_unchanged(run, unread, files, extras, in_use))
            for record in unread if storage.near else ():
                try:
                    # or a save might be published between the look and the removal; what a link leads to is not touched
                    with nullcontext() if record.link else locked(storage.child(record.name), links=False):
                        failed.update(_remove_unchanged(run, [record], files, extras, in_use))
                    if not (record.link or record.name in failed or record.name in in_use):
                        _remove_if_empty(run, record.name)
                except (OSError, StreamxfError) as error:  # the others are removed all the same
                    failed[record.name] = reason_of(error, record.name)
    return in_use, failed


def _remove_if_empty(run: Run, name: str) -> None:
    """Remove the folder that a lock has outlived: some mounts keep a file in it as long as the lock's is open."""
    if run.storage.near and run.storage.exists(name) and not [*run.storage.entries(name)]:
        remove_tree(run.storage, name, [], [])


def _remove_unchanged(
    run: Run, records: Sequence[Record], files: Listing, extras: bool, in_use: dict[str, str]
) -> dict[str, str]:
    """Those that could not be removed, each with the reason; what others need comes to those `in_use`."""

    def order(record: Record) -> Order | Exception | None:
        try:
            folder = run.folder(record.name, files(record.name))
            if not run.is_still(record, folder):
                return None
            if not record.link and (needing := who_needs(run, folder)):
                in_use[record.name] = f"{some(needing)} needs it: `streamxf consolidate` ends that"
                return None
            return ([], []) if record.link else _order(run, folder, extras and record.kind == "own")
        except (OSError, StreamxfError) as error:  # the others are removed all the same
            return error

    by_name = {each.name: each for each in records}
    made = dict(zip(by_name, run.side_by_side(order, records), strict=True))
    orders = {name: order for name, order in made.items() if isinstance(order, tuple)}
    others = {*made} - orders.keys() - in_use.keys()
    failed = dict.fromkeys(others, "it has changed since it was listed; the next call looks at it again")
    failed |= {name: reason_of(order, name) for name, order in made.items() if isinstance(order, Exception)}
    with suppress(*[OSError] * run.storage.near):  # a full disk: what cannot be noted goes all the same
        run.saves.drop(orders)
    for name, left in remove_trees(run.storage, orders, files).items():
        if isinstance(left, Exception):
            failed[name] = reason_of(left, name)
            continue
        unpin(run, by_name[name])
        if stays := sorted({*left}.difference(orders[name][1])):  # the log has a warning of what was to go
            _log.info(
                "%s: what is not of the checkpoint stays: %s", escaped(run.storage.label(name)), escaped(some(stays))
            )
    return failed


def _order(run: Run, folder: Folder, everything: bool) -> Order:
    """What is removed first, so that no checkpoint is there any more, and what then. The commit record of a framework
    is put aside for that time, since it alone says which files are its own; it goes after DCP's metadata, which by
    itself would pass for a checkpoint.
    """
    files, ours = folder.files, folder.contents()
    first = sorted((path for path in files if path == COMMIT or is_metadata_name(path)), key=COMMIT.__eq__)
    rest = _in_order({*(files if everything else ours)}.difference(first), ours)
    if COMMIT in files:
        with suppress(OSError):  # of a full disk, which must not stay full
            name, commit = f"{folder.name}/{REMOVED}", read_small(run.storage, f"{folder.name}/{COMMIT}")
            put_small(run.storage, name, commit or b"")
        rest = [path for path in rest if path != REMOVED] + [REMOVED]
    return first, rest


def _in_order(paths: Iterable[str], ours: Collection[str]) -> list[str]:
    """What is not of the checkpoint goes before what tells whose it is, if the removal is killed."""
    return sorted(paths, key=lambda path: (path in ours, path == REMOVED))


def finish(run: Run, series: str, *, session: str = "", saves: bool = False, extras: bool = False) -> None:
    """Remove what killed removals and killed saves have left in the folders of a series, with `extras` as in
    `remove_checkpoints`. If the job of this `session` `saves`, also folders in which there is nothing of one; to others
    a save that begins looks the same.
    """
    announced = announced_removals(run)
    records = {each.name: each for each in run.read(series=series).records}
    over = {file for file in announced.values() if is_over(file)}
    for name, record in records.items():
        if record.complete or record.link:
            continue
        try:
            folder = run.folder(name)
            if SAVING not in folder.files and (name in announced or record.kind == "removing"):
                ours = folder.contents() if record.verified else []
                left = _in_order(folder.files if ours and extras else ours, ours)
            else:
                left = leftovers(run, folder, session)
            needed = Pins.of(folder.place, folder.top).needed(left)
            left = [path for path in left if path not in needed]
            if left:
                with locked(run.storage.child(name), links=False):
                    remove_tree(run.storage, name, [], left)
                _remove_if_empty(run, name)
        except (OSError, StreamxfError) as error:
            _log.warning("%s", escaped(f"{run.storage.label(name)} could not be cleaned up: {error}"))
            over.discard(announced.get(name, ""))
    for name in run.names if saves and run.storage.near else ():
        if series_of(name) == series and name not in records:
            files = run.folder(name).files
            if all(map(is_run_file, files)) and {COMMIT, REMOVED, SAVING}.isdisjoint(files):
                remove_tree(run.storage, name, [], files)
    remove_notes(run.storage, over)


def leftovers(run: Run, folder: Folder, session: str, *, again: bool = False) -> list[str]:
    """What a save has left in a folder, if it was killed, or is of this `session`; nothing while it may be under way:
    as long as another process runs that began it, and where no lock tells, for a day. What a framework wrote there goes
    at once if the step is saved `again`: later nobody knows of it.
    """
    saving = folder.saving
    if saving is None:
        return []
    alive = saving.session != session and is_held(run.storage, saving.session)
    waits = not (again and saving.framework)
    if alive or (alive is None and waits and abs(time.time() - saving.time / 1000) < run.storage.DAY):
        return []
    record = run.record(folder.name, folder)
    if record is not None and record.complete:
        return [SAVING]  # it was killed after it had published, or over what is there
    if run.may_be_lost(folder):
        return []  # which has lost its metadata: nobody knows whose data this is
    run_id = run.ids.get(series_of(folder.name))
    if saving.run != (run_id or run.run_id) or (run_id is None and not again and folder.metadata):
        return []  # the note may come from another run; the next save of the step takes away what is there
    written = written_since(folder.files, saving.before)
    return [path for path in written if saving.framework or made_by_saves(path)] + [SAVING]
