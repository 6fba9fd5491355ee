"""Checkpoints removed: of each the files that it consists of and nothing else, so that a kill at any point leaves
nothing that passes for a checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, nullcontext, suppress

from streamxf.checkpoint.publish import DAY, RUN_FILE
from streamxf.errors import StreamxfError, escaped
from streamxf.format.limits import MAX_NOTE
from streamxf.format.names import is_metadata_name, made_by_saves
from streamxf.manager.folder import Folder
from streamxf.manager.holds import going, has_no_place, held, is_over, removing
from streamxf.manager.listing import Run
from streamxf.manager.notes import COMMIT, REMOVED, SAVING, remove_notes, written_since
from streamxf.manager.record import Record, series_of
from streamxf.manager.sessions import is_held
from streamxf.storage.lock import locked
from streamxf.storage.removal import Order, files_of_many, remove_tree, remove_trees
from streamxf.storage.small import put_small, read_small
from streamxf.storage.storage import Entries
from streamxf.wording import many

_AT_ONCE = 1000  # checkpoints in an object store between two looks at who reads them
_log = logging.getLogger(__name__)


def remove_checkpoints(
    run: Run, records: Sequence[Record], *, extras: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Remove these, unless they have changed since; with `extras`, other regular files in the folders of the run's own
    ones, too. Returns those that were not removed because somebody reads them, and those that could not be, each with
    the reason.
    """
    storage, in_use, failed = run.storage, {}, {}
    files = files_of_many(storage, [each.name for each in records])
    for at in range(0, len(records), _AT_ONCE):
        part = {each.name: each for each in records[at : at + _AT_ONCE]}
        run.change(*part, known=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(removing(run, part))
            except OSError as error:
                if not has_no_place(error):
                    raise  # otherwise unannounced, or a full disk would stay full
            readers = held(storage, tidies=True)
            in_use.update({name: readers[name] for name in part if name in readers})
            unread = [record for name, record in part.items() if name not in readers]
            if not storage.near:
                failed.update(_remove_unchanged(run, unread, files, extras))
            for record in unread if storage.near else ():
                try:
                    # or a save might be published between the look and the removal; what a link leads to is not touched
                    with nullcontext() if record.link else locked(storage.child(record.name), links=False):
                        failed.update(_remove_unchanged(run, [record], files, extras))
                except (OSError, StreamxfError) as error:  # the others are removed all the same
                    failed[record.name] = f"{type(error).__name__}: {error}"
        run.change(*part)  # it was looked at meanwhile
    return in_use, failed


def _remove_unchanged(
    run: Run, records: Sequence[Record], files: Callable[[str], Entries], extras: bool
) -> dict[str, str]:
    """Those that could not be removed, each with the reason."""

    def order(record: Record) -> Order | None:
        folder = run.folder(record.name, files(record.name))
        if not run.is_still(record, folder):
            return None
        return ([], []) if record.link else _order(run, folder, extras and record.kind == "own")

    made = dict(zip([each.name for each in records], run.side_by_side(order, records), strict=True))
    orders = {name: order for name, order in made.items() if order is not None}
    failed = dict.fromkeys(made.keys() - orders, "it has changed since it was listed; the next call looks at it again")
    notes = {each.name: each.note for each in records}
    for name, left in remove_trees(run.storage, orders, files).items():
        if isinstance(left, Exception):
            failed[name] = f"{type(left).__name__}: {left}"
        elif left and notes[name]:
            text = "%s still holds %s, since nothing says whose they are (%s): delete it if you need none"
            _log.warning(text, escaped(run.storage.label(name)), many(len(left), "file"), escaped(notes[name]))
        elif left:
            _log.info("%s: %d files stay that are not of the checkpoint", escaped(run.storage.label(name)), len(left))
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
            name, commit = f"{folder.name}/{REMOVED}", read_small(run.storage, f"{folder.name}/{COMMIT}", MAX_NOTE)
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
    announced = going(run)
    records = {each.name: each for each in run.records(series=series)}
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
            if left:
                with locked(run.storage.child(name), links=False):
                    remove_tree(run.storage, name, [], left)
        except (OSError, StreamxfError) as error:
            _log.warning("%s", escaped(f"{run.storage.label(name)} could not be cleaned up: {error}"))
            over.discard(announced.get(name, ""))
    for name in run.names if saves and run.storage.near else ():
        if series_of(name) == series and name not in records:
            files = run.folder(name).files
            if all(map(RUN_FILE.fullmatch, files)) and {COMMIT, REMOVED, SAVING}.isdisjoint(files):
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
    if alive or (alive is None and waits and abs(time.time() - saving.time / 1000) < DAY):
        return []
    record = run.record(folder.name, folder)
    if record is not None and record.complete:
        return [SAVING]  # it was killed after it had published, or over what is there
    run_id = run.ids.get(series_of(folder.name))
    if saving.run != (run_id or run.run_id) or (run_id is None and not again and folder.metadata):
        return []  # the note may come from another run; the next save of the step takes away what is there
    written = written_since(folder.files, saving.before)
    return [path for path in written if saving.framework or made_by_saves(path)] + [SAVING]
