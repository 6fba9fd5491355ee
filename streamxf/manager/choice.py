"""Which checkpoint to resume from: the newest that is as it was saved, as far as that was looked at."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Literal, get_args

from streamxf import errors
from streamxf.checkpoint.checkpoint import Checkpoint
from streamxf.errors import add_note, escaped, is_damage, is_exhausted, located, notes_of
from streamxf.formats.opening import contents_of
from streamxf.manager.folder import Folder
from streamxf.manager.holds import has_no_place, hold_checkpoint
from streamxf.manager.listing import SKIP, Run, named_to_skip, written
from streamxf.manager.notes import FOLDER, Authority, is_framework_file
from streamxf.manager.record import Record, is_alike, numbers_in, order_of, series_of
from streamxf.manager.removal import remove_entry
from streamxf.manager.retention import Retention
from streamxf.manager.sample import read_sample
from streamxf.manager.state import ABANDONED, FOREIGN, RunState
from streamxf.notes import Commit
from streamxf.places import GLOBAL, Storage, is_metadata_name, metadata_among, rank_of, small_names
from streamxf.wording import by_reason, some

if TYPE_CHECKING:
    from streamxf.tools.verify.report import VerifyReport

Verify = Literal["none", "sample", "whole"]
Part = tuple[int, int]
"""Which part of the files to read, of how many."""

ALL: Part = (0, 1)
ANY = -1  # ranks, whose number does not matter

_DAMAGE = "verify found damage: "
_TEXT = 500  # characters of a reason
_SMALL = 2**30  # bytes up to which a sample is all
_PIECE = 2**20
_ADVICE = {
    FOREIGN: "resume(state, step=N, foreign=True) loads a foreign one",
    ABANDONED: "resume(state, step=N) loads an abandoned one, and goes on from there",
    "is not encrypted": "to begin encrypting a run, resume(state, plaintext=True) loads an unencrypted one",
}
_log = logging.getLogger(__name__)


@dataclass
class Choice:
    """What to resume from, if anything.

    - `record`: the newest that may be resumed from, and is not in `skipped`; what is still to be read of it is `check`.
    - `skipped`: newer ones, each with the reason.
    - `run_id`: which run it is, as its checkpoints say.
    - `passed`: whether it is older than one that the caller has passed over.
    - `index_id`: the save that its DCP index names; `has_index`: whether it has DCP's metadata at all.
    """

    record: Record | None = None
    check: Verify = "none"
    run_id: str | None = None
    passed: bool = False
    index_id: str | None = None
    has_index: bool = True
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def why(self) -> str:
        """Why they were skipped, each reason once."""
        return "; ".join(by_reason(self.skipped)[:20])


def choose(
    run: Run,
    series: str,
    verify: Verify,
    holds: ExitStack,
    skipped: Mapping[str, str],
    name: str | None = None,
    *,
    foreign: bool = False,
    best: tuple[str, str] | None = None,
    passed: Collection[str] = (),
) -> Choice:
    """The first checkpoint of a series that may be resumed from, and was not `skipped` before: the newest, or that with
    the `best` value of a metric, ``"min"`` or ``"max"``. It stays until `holds` is closed, unless the run's folder is
    read-only.

    Raises NoCheckpointError if there are complete checkpoints, and none of them will do, or one that was not `passed`
    over by the caller may belong to another line, as `check_later`; ParameterError if they are of
    several runs; KeyMissingError if the job holds no key that reads them.
    """
    run.storage.forget_listings()
    looked: tuple[str, ...] = ()
    while True:
        state = run.read(series=series)
        choice, complete = Choice(skipped=dict(skipped)), [each for each in state.records if each.complete]
        if not complete:
            if skipped:
                raise _none(run, choice, name)
            check_copied(run, state.bare)
            if others := sorted(each for each in {*run.names}.difference(state.names) if is_alike(each, series)):
                _log.warning("%s: nothing is resumed from: %s is of no %s", run.storage.label(), others[-1], series)
            if left := [each.name for each in state.records if each.kind == "unfinished"]:
                _log.warning("%s: the save of %s was not completed, and does not count", run.storage.label(), left[-1])
            return choice
        run.authority.check_reads(complete[-1].name)
        known = run.run_id
        run.settle_id([each for each in state.records if not (foreign and each.name == name)])
        if foreign and run.run_id != known:
            continue  # seen from this run, it is a foreign one
        choice.run_id = run.run_id
        wanted = [each for each in reversed(complete) if name in (None, each.name)]
        wanted = wanted if best is None else by_metric(wanted, *best)
        how = {"foreign": foreign and name is not None, "abandoned": name is not None, "ranked": best is not None}
        fit = _fit(run, state, wanted, verify, choice.skipped, **how)
        choice.record, choice.check = next(fit, (None, "none"))
        if choice.record is None:
            if best is not None and not choice.skipped:
                return choice
            raise _none(run, choice, name)
        choice.index_id, folder = choice.record.save_id, run.folder(choice.record.name)
        if choice.record.name not in looked and not run.is_still(choice.record, folder):
            looked += (choice.record.name,)  # somebody has put another there; once, as others may go on writing there
            continue
        if folder.by_framework:
            choice.index_id, choice.has_index = folder.index_id, bool(folder.metadata)
            if choice.check == "sample":
                choice.check = "whole"  # frameworks load by themselves, and could not fall back
        try:
            holds.enter_context(hold_checkpoint(run, choice.record.name))
        except errors.NoCheckpointError:
            continue  # it has been removed meanwhile
        except (OSError, errors.ForeignError) as error:  # of Google's, say; loading shows whether all is lost
            if isinstance(error, OSError) and not has_no_place(error):
                raise
            _log.warning("nothing keeps %s from being removed while it is read: %s", choice.record.name, error)
        there = {*run.names, *(each.name for each in complete)}.intersection(passed)
        choice.passed = any(order_of(each) > choice.record.order for each in there if series_of(each) == series)
        if best is not None:
            state.last_line(series)  # raises if notes cannot be read
        elif name is None:
            check_later(run, state, choice.record, choice.skipped, passed)
        return choice


def check_copied(run: Run, bare: Collection[str], least: int = 1) -> None:
    """Raise NoCheckpointError if at least so many folders have data without metadata, and nothing says that a save was
    begun there: whoever copied the run has perhaps left out hidden files, and a job that takes this for a fresh start
    would save over the data.
    """
    if len(names := sorted(bare, key=order_of)) >= least:
        raise errors.NoCheckpointError(
            f"{some(names)} {'has' if len(names) == 1 else 'have'} data, and neither metadata nor a mark that a save "
            f"was begun there. Perhaps hidden files, such as {GLOBAL}, were left out when this was copied: copy "
            "them, too. Nothing was removed. To start over, use an empty folder, or move these away",
            file=run.storage.label(),
        )


def check_later(run: Run, state: RunState, chosen: Record, known: Iterable[str], passed: Iterable[str] = ()) -> None:
    """Say what may have been saved later than the chosen one, and whose metadata is lost or cannot be read. Raises
    NoCheckpointError where nobody can tell from where training went on, as `RunState.doubts` has it.
    """
    when = cache(partial(written, run))
    for each in [each for each in state.of(chosen.series) if each.name not in state.bare]:
        if each.kind == "unfinished" and each.order > chosen.order and run.has_published(each.name):
            text = "%s: %s is chosen, since the save that replaces %s was not completed"
            _log.warning(text, run.storage.label(), chosen.name, each.name)
    for doubt in state.doubts(chosen, when, {*named_to_skip(), *passed}, {*known}):
        if doubt.stops:
            raise errors.NoCheckpointError(
                f"{doubt.text}. Nothing was loaded or removed; say from where training goes on: resume(state, step=N) "
                f"or {SKIP}={doubt.name}, which passes it over for {chosen.name}",
                file=run.storage.label(doubt.name),
            )
        _log.warning("%s: %s", run.storage.label(), escaped(doubt.text))


def _none(run: Run, found: Choice, name: str | None) -> errors.NoCheckpointError:
    what = "no checkpoint" if name is None else f"no checkpoint of step {numbers_in(name)[-1]}"
    advice = ["`streamxf list` shows which there are"]
    advice += [text for mark, text in _ADVICE.items() if any(mark in reason for reason in found.skipped.values())]
    if found.skipped:
        advice.append("`streamxf salvage` saves the intact items of a damaged one; to start over, use an empty folder")
    why = f" ({found.why})" if found.skipped else ""
    text = f"{what} can be resumed from{why}. Nothing was removed; {'; '.join(advice)}"
    return errors.NoCheckpointError(text, file=run.storage.label())


def by_metric(records: Sequence[Record], metric: str, mode: str) -> list[Record]:
    """Those with a value of a metric, the best first, after those that cannot be read; ties go to the newer. A metric
    that is in none of those that can be read is one that nobody gave.
    """
    ranked = Retention(best=-1, metric=metric, mode="max" if mode == "max" else "min").ranked(records)
    unread = [each for each in records if each.metrics is None and each.note]
    return [*unread, *ranked] if ranked or len(unread) == len(records) else []


def newest(
    run: Run,
    state: RunState,
    records: Iterable[Record],
    verify: Verify,
    *,
    thorough: bool = False,
    ranks: int | None = ANY,
    ranked: bool = False,
) -> Choice:
    """The first of these that is as it was saved. Raises what is not damage: that a key or a codec is missing, or that
    the storage cannot be reached. Only a `thorough` search reads all of what is small.
    """
    choice = Choice()
    for record, check in _fit(run, state, records, verify, choice.skipped, thorough=thorough, ranked=ranked):
        reason = damage_of(run, record, check, ranks=ranks)
        if reason is None:
            choice.record = record
            if check == "whole":
                clear(run.storage, record)
            break
        choice.skipped[record.name] = reason
    return choice


def _fit(
    run: Run,
    state: RunState,
    records: Iterable[Record],
    verify: Verify,
    skipped: dict[str, str],
    *,
    thorough: bool = True,
    **how: bool,
) -> Iterator[tuple[Record, Verify]]:
    """Yield each candidate without an obstacle, and the check that it needs; `skipped` gets the others, with reasons.
    `how` is for `RunState.obstacle`, whose error is raised. A sample of little is all of it if the search is
    `thorough`, and so is one of what a reader has found damage in.
    """
    suspected = suspects(run.storage)
    for record in records:
        if record.name in skipped:
            continue
        obstacle = f"{SKIP} names it" if record.name in named_to_skip() else state.obstacle(record, **how)
        if isinstance(obstacle, Exception):
            with located(file=run.storage.label(record.name)):
                raise advised(obstacle, record)
        if obstacle is not None:
            skipped[record.name] = obstacle
        else:
            small = thorough and record.bytes is not None and record.bytes < _SMALL
            yield record, "whole" if verify == "sample" and (small or record.save_id in suspected) else verify


def check_verify(verify: str) -> None:
    if verify not in get_args(Verify):
        raise errors.ParameterError(f"verify={verify!r:.40}: it is one of {', '.join(map(repr, get_args(Verify)))}")


def damage_of(run: Run, record: Record, check: Verify, part: Part = ALL, *, ranks: int | None = ANY) -> str | None:
    """Why a checkpoint cannot be resumed from; None if nothing was found.

    With ``"none"``, its metadata can be read, and all files are there in their sizes; with ``"sample"``, blocks spread
    over its tensors were read as well; with ``"whole"``, all of it, or a `part` of its files. `ranks` is how many saved
    it, where each has metadata of its own; None if nobody knows.
    """
    try:
        folder = run.folder(record.name)
        if not folder.by_framework:
            check_ranks(folder.files, ranks)
        with run.storage.doubting(missing=True):
            if folder.by_framework:
                _check_commit(folder, check, part)
            else:
                _check_published(folder.place, run.authority, check, part)
    except Exception as error:
        if not is_damage(error):
            advised(error, record)
            with located(file=run.storage.label(record.name)):
                raise
        text = str(error)
        return (text if text.startswith(_DAMAGE) else f"{type(error).__name__}: {text}")[:_TEXT]
    return None


def advised(error: Exception, record: Record) -> Exception:
    """An error of a place, or of a newer version, with what to do if nothing else helps."""
    text = escaped(f"next: if that stays so, {SKIP}={record.name} passes this checkpoint over")
    passing = isinstance(error, OSError | errors.ForeignError | errors.UnsupportedError) and not is_exhausted(error)
    if passing and text not in notes_of(error):
        add_note(error, text)
    return error


def suspects(storage: Storage) -> set[str]:
    """The ids of saves in which readers have found damage."""
    return {name.removeprefix("damage-") for name in small_names(storage, FOLDER) if name.startswith("damage-")}


def clear(storage: Storage, record: Record) -> None:
    """The damage that a reader reported is not there; the file system may have had a bad moment."""
    if record.save_id in suspects(storage):
        try:
            remove_entry(storage, f"{FOLDER}/damage-{record.save_id}")
        except OSError as error:
            _log.debug("%s: %s", storage.label(), error)


def _check_published(place: Storage, authority: Authority, check: Verify, part: Part) -> None:
    """What DCP wrote. A job that cannot read it compares what is stored, all of it."""
    access, stored = authority.access, authority.strict and not authority.reads
    if check == "whole" or (check == "sample" and stored):
        from streamxf.tools.verify.verify import verify_at

        report = verify_at(place, access, part=part)
        if not report.ok:
            raise errors.ContainerError(damage_in(report, place))
    with Checkpoint.at(place, access, listing=stored or check == "none") as checkpoint:
        missing = contents_of(checkpoint).incomplete
        for path in missing:
            with suppress(FileNotFoundError), place.open(path):  # raises what says more, as of a Git LFS pointer
                pass
        if missing:
            raise errors.MetadataError(f"not there in the recorded size: {', '.join(missing[:3])}", file=place.label())
        if check == "sample" and not stored:
            read_sample(checkpoint)


def damage_in(report: VerifyReport, place: Storage) -> str:
    """Raises ForeignError if nothing is damaged, and something could not be read."""
    if not report.damaged:
        raise errors.ForeignError(f"it could not be read: {report.unread[0]}", file=place.label())
    return f"{_DAMAGE}{report.damaged[0]}"


def _check_commit(folder: Folder, check: Verify, part: Part) -> None:
    """What a framework wrote: all sizes, and the digests of a part of the files, where they are known by now."""
    commit, place, authority = folder.committed(), folder.place, folder.authority
    check_alone(folder, commit)
    if authority.strict and (bare := commit.without_digests()):
        raise errors.MetadataError(f"its commit record has no digest of {some(bare)}, so nothing authenticates that")
    digests = {path: file.sha256 for path, file in commit.files.items() if file.sha256 is not None}
    for each in folder.supplements(commit.save_id)[0]:
        digests |= each.sha256
    if check == "none":
        return
    for number, (path, digest) in enumerate(sorted(digests.items())):
        if number % part[1] == part[0] and digest_of(place, path) != digest:
            raise errors.ContainerError(
                "the SHA-256 of the file is not that which was committed", file=place.label(path)
            )
    if part[0] == 0:  # what DCP wrote below has checksums of its own
        for path in commit.files if authority.strict else commit.files.keys() - digests.keys():
            below, _, name = path.rpartition("/")
            if is_metadata_name(name):
                how = check if commit.files[path].checksum is None else "sample"
                _check_published(place.child(below) if below else place, authority, how, ALL)


def check_alone(folder: Folder, commit: Commit) -> None:
    """Frameworks take what they find, such as an ``optimizer.pt`` that somebody has put there, or a link."""
    found = set(folder.files)
    if not folder.place.abilities.flat:
        found = {each.name for each in folder.place.below() if each.kind != "folder"}
    if others := sorted(path for path in found - commit.files.keys() if is_framework_file(path)):
        text = f"{', '.join(others[:3])} {'is' if len(others) == 1 else 'are'} not among the committed files"
        if folder.authority.strict:
            raise errors.MetadataError(
                f"{text}, and might be loaded: nothing authenticates it. Look at it, and move it away"
            )
        _warn_once(f"{folder.place.label()}: {text}, and might be loaded")


@lru_cache(1000)
def _warn_once(text: str) -> None:
    _log.warning("%s", escaped(text))


def check_ranks(files: Collection[str], ranks: int | None) -> None:
    """Raise MetadataError if each rank has metadata of its own, and one may be missing."""
    found = {rank_of(name) for name in metadata_among([path for path in files if "/" not in path])} - {None}
    if not found or ranks == ANY:
        return
    if ranks is None:
        raise errors.MetadataError("each rank has its own metadata, and only ranks= says how many there were")
    if missing := sorted(set(range(ranks)) - found):
        raise errors.MetadataError(f"the metadata of rank {missing[0]} is missing")


def digest_of(place: Storage, path: str) -> str:
    """The SHA-256 of a file of a checkpoint."""
    digest = hashlib.sha256()
    with place.open(path) as file:
        for at in range(0, file.size, _PIECE):
            digest.update(file.read(at, min(_PIECE, file.size - at)))
    return digest.hexdigest()
