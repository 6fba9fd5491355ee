"""`latest` and `is_complete`: which checkpoint a job can resume from. A folder is there before its checkpoint is."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Literal

from streamxf.errors import DAMAGE, ContainerError, NoCheckpointError, ParameterError, StreamxfError, escaped, is_damage
from streamxf.formats.opening import contents_of, open_source
from streamxf.manager import choice as choosing
from streamxf.manager.choice import Choice, Verify, check_verify, damage_of
from streamxf.manager.listing import Run, check_folder, of_other_formats, read_named, run_of
from streamxf.manager.record import Record, is_alike
from streamxf.notes import COMMIT, REMOVED, SAVING
from streamxf.places import AbilitiesLike, Location, Storage, open_storage
from streamxf.reading import KeysLike, TrustLike

_log = logging.getLogger(__name__)


def latest(
    folder: Location,
    *,
    verify: Verify = "none",
    best: str | None = None,
    mode: Literal["min", "max"] = "min",
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    ranks: int | None = None,
    run_id: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    abilities: AbilitiesLike = None,
) -> str | Storage | None:
    """The path of the newest checkpoint of a run that can be resumed from, or its `Storage` if the run is one; None if
    none was ever complete, and with a warning in the log if there is no such folder.

    It is *complete* if its metadata can be read, or a framework's save was committed to a `CheckpointManager`, and all
    files have their recorded sizes. The numbers in the folders' names say which is the newest, compared one after the
    other: ``step-1000`` is newer than ``step-900``, and ``epoch-2-step-100`` than ``epoch-1-step-900``. Names without a
    number, such as ``best``, hidden ones, and checkpoints of another run or saved under another name are passed over.
    If there are no DCP checkpoints and no committed ones, folders of other formats count, such as Hugging Face's.

    Parameters
    ----------
    folder : path, str or Storage
        The folder that holds the checkpoints' folders, or its URL.
    verify : {"none", "sample", "whole"}
        How much must be intact as well: nothing, which needs no keys; a sample; everything. As in `CheckpointManager`.
    best : str, optional
        A metric: return the checkpoint with its best value instead of the newest, or None if no checkpoint has it.
    mode : {"min", "max"}
        Whether lower or higher values are better.
    keys, trust, allow_unsigned
        As in `FileSystemReader`. With keys, or signers, only what they authenticate counts.
    ranks : int, optional
        How many ranks saved, if each has its own metadata (``use_collectives=False``). Without it such a checkpoint
        does not count as complete, since some rank's metadata may be missing.
    run_id : str, optional
        Which run, if the folder holds checkpoints of several.
    storage_options : mapping, optional
        fsspec's, for a URL. What a cache of fsspec's remembers is not read.
    abilities : Abilities or mapping, optional
        As in `open_storage`.

    Raises
    ------
    NoCheckpointError
        If there are complete checkpoints, and none of them can be resumed from, or several have data and none has
        metadata. A job that took this for a fresh start would overwrite them.
    ParameterError
        If the folder has checkpoints of several runs, and `run_id` is not given; if an argument is invalid.
    UnsupportedError
        If `folder` is a file, or a checkpoint.
    KeyMissingError, WrongKeyError, KeyServiceError, PolicyError, UnknownCodecError
        If a checkpoint cannot be verified for lack of a key or codec.
    OSError, ForeignError
        If the storage cannot be reached.
    """
    if mode not in ("min", "max"):
        raise ParameterError(f"mode={mode!r:.40}: it is 'min' or 'max'")
    place = open_storage(folder, storage_options, abilities)
    run = Run.at(place, None, run_id, keys=keys, trust=trust, allow_unsigned=allow_unsigned)
    storage = run.storage
    try:
        check_folder(storage)
    except NoCheckpointError as error:  # before its first save a run has none, and a mistyped one never does
        _log.warning("no checkpoint to resume from: %s", escaped(str(error)))
        return None
    choice = latest_in(run, verify, best=None if best is None else (best, mode), ranks=ranks)
    for passed, reason in choice.skipped.items():
        _log.warning("%s is passed over: %s", escaped(storage.label(passed)), escaped(reason))
    if choice.record is None and choice.skipped:
        raise NoCheckpointError(f"no checkpoint can be resumed from ({choice.why})", file=storage.label())
    if choice.record is None:
        return None
    return (storage.child if isinstance(folder, Storage) else storage.location)(choice.record.name)


def latest_in(run: Run, verify: Verify, *, best: tuple[str, str] | None = None, ranks: int | None = None) -> Choice:
    """The same, with what was passed over, and why. `best` is a metric, and ``"min"`` or ``"max"``."""
    check_verify(verify)
    run.storage.forget_listings()
    state = read_named(run)
    complete = [each for each in state.records if each.complete]
    ranked = complete[::-1] if best is None else choosing.by_metric(complete[::-1], *best)
    choice = choosing.newest(run, state, ranked, verify, thorough=True, ranks=ranks, ranked=best is not None)
    if (chosen := choice.record) is not None:
        choice.run_id = run.settle_id([each for each in complete if each.series == chosen.series])
        if best is None:
            choosing.check_later(run, state, chosen, choice.skipped)
        for each in state.lost if best is None else ():  # `check_later` looks at those of the same series
            if each.order > chosen.order and each.series != chosen.series and is_alike(each.name, chosen.name):
                _log.warning("%s is chosen, though %s may have been saved later: %s", chosen.name, each.name, each.note)
    elif not complete and best is None and not run.authority.strict:
        choice = _of_other_formats(run, state.records, verify)
    if not complete and choice.record is None:
        begun = {each.name for each in state.records}
        # one may be of a first save that was killed, without a manager
        choosing.check_copied(run, begun.intersection(state.bare), least=2)
    return choice


def is_complete(path: Location, *, ranks: int | None = None, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Whether a checkpoint is complete: its metadata can be read, or what a framework wrote has been committed to a
    `CheckpointManager`, and all files have the sizes that are recorded.

    ``os.path.exists`` is true where a save was killed. This reads metadata alone, without keys; `verify` reads all.

    Parameters
    ----------
    path : path, str or Storage
        A checkpoint's folder, file or URL, of any format that `inspect` reads.
    ranks, storage_options
        As in `latest`.

    Raises UnsupportedError if it is of a kind that cannot be read here; OSError, ForeignError if the storage cannot be
    reached. A job that took that for "no" would start from scratch.
    """
    storage = open_storage(path, storage_options)
    try:
        names = storage.names() if storage.is_folder() else {}
        if not {COMMIT, SAVING, REMOVED}.isdisjoint(names):
            folder, name = run_of(storage)
            run = Run.at(folder)
            record = run.record(name)
            return record is not None and record.complete and damage_of(run, record, "none", ranks=ranks) is None
        choosing.check_ranks(names, ranks)
        with open_source(storage, listing=True) as source:
            if not contents_of(source).incomplete:
                return True
            raise storage.doubted(ContainerError("not all files have their sizes", file=storage.label()))
    except (OSError, StreamxfError) as error:
        if not is_damage(error):
            raise
        return False


def _of_other_formats(run: Run, records: Collection[Record], verify: Verify) -> Choice:
    from streamxf.tools.verify.verify import verify_at

    choice = Choice()
    for record in of_other_formats(run, records):
        with suppress(*DAMAGE, FileNotFoundError):
            place = run.folder(record.name).place
            report = None if verify == "none" else verify_at(place, run.authority.access, only_dcp=False)
            if report is None or report.ok:
                choice.record = record
                break
            choice.skipped[record.name] = choosing.damage_in(report, place)
    return choice
