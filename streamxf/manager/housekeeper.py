"""`Housekeeper`: what one process of a job does in the run's folder besides saving, in a thread of its own."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from streamxf.cached import cached_property
from streamxf.errors import MetadataError, NoCheckpointError, ParameterError, escaped
from streamxf.manager import notes
from streamxf.manager.choice import Verify, check_alone, digest_of
from streamxf.manager.folder import checksum_of
from streamxf.manager.forget import finish, forget_in, leftovers
from streamxf.manager.holds import has_no_place, put_hold
from streamxf.manager.listing import Run, written
from streamxf.manager.record import Line, Record, numbers_in, series_of
from streamxf.manager.removal import remove_entry, remove_tree
from streamxf.manager.retention import Retention
from streamxf.manager.saves import SaveNote
from streamxf.manager.sessions import Session, Sessions
from streamxf.manager.state import ABANDONED, RunState, lined
from streamxf.notes import COMMIT, REMOVED, SAVING, Commit, CommittedFile, Saving, Supplement
from streamxf.places import is_metadata_name, made_by_saves, put_small
from streamxf.reading import Note
from streamxf.wording import many, size_text, some
from streamxf.writing import Pins, RunFacts

T = TypeVar("T")

_NOTHING = Record("0", kind="foreign")
_MARGIN = 1.05  # of the last save's size, for the next one
_log = logging.getLogger(__name__)


@dataclass
class _Save:
    """One under way: what it is to say of itself, whether a framework makes it, what lay in its folder before, why it
    may not begin, and what keeps it from being removed.
    """

    facts: RunFacts
    framework: bool
    before: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    hold: ExitStack = field(default_factory=ExitStack)


class Housekeeper:
    """Keeps the rules of retention, and what the run's folder says beside its checkpoints; on rank 0 alone.

    What its calls ask for is done in their order, and few of them wait for it. An error is logged, unless a call says
    otherwise: a saved checkpoint is good without late metrics, and one that cannot be removed goes after the next save.
    """

    def __init__(self, run: Run, keep: Retention, series: str, verify: Verify) -> None:
        self._run = run
        self._storage = run.storage
        self._keep = keep
        self._series = series
        self._verify = verify
        self._sessions = Sessions(run.storage, series, run.authority)
        self._began = False
        self._size = 0  # of the last checkpoint
        self._saves: dict[str, _Save] = {}
        self.resumed: str | None = None
        self.line: Line | None = None  # of what this job saves, from its first save after it has loaded one
        self._loaded: Record | None = None
        self._passed: list[str] = []  # of which nobody knew the line
        self.continues: tuple[int, str] | None = None
        self._abandoned: list[str] = []  # of which was said that they stay

    def begin(self, name: str, metrics: Mapping[str, float], *, framework: bool = False) -> RunFacts:
        """Note that a save begins, and return what it is to say of itself; no rank may write before this returns, or a
        kill might leave files that nobody knows of. What a `framework` saves is complete only once that is committed,
        and what was there before is no longer: so if it cannot be noted, that is raised.

        With its first save this process becomes the one that saves to the run, and puts in order what those left that
        were killed. One that only reads leaves the saves of others alone.

        Raises AbortedError if another job saves to this run, ParameterError if its checkpoints are of several runs or a
        `Publisher` has put weights there, and what listing the folder raises.
        """
        if not self._began:
            self._pool.submit(self._prepare).result()
            self._began = True
        elif self.line is None:
            self._pool.submit(self._settle_line).result()
        self._pool.submit(self._run.check_there, name).result()
        self.make_room(name)
        assert self._run.run_id is not None
        rules = self._keep.to_json()
        line = self.continues, self.line or ()
        facts = RunFacts(self._run.run_id, name, numbers_in(name)[-1], time.time(), rules, metrics, *line)
        facts.to_json()  # raises here what the index could not take, and not when all data is written
        save = self._saves[name] = _Save(facts, framework)
        if framework:
            self._pool.submit(self._note, name, save).result()
        else:
            self._submit(f"the save of {name} could not be noted", self._note, name, save).result()
        if save.refused:
            raise ParameterError(self._saves.pop(name).refused, file=self._storage.label(name))
        return facts

    def commit(self, name: str, save_id: str | None, metrics: Mapping[str, float]) -> None:
        """Note that a save is published, with metrics that came later; then remove what the rules do not keep."""
        self._submit(f"{name} is saved, and could not be noted", self._saved, name, save_id, dict(metrics))
        self._submit("older checkpoints could not be removed", self._forget, {name: "was just saved"})

    def go_on_from(self, record: Record | None) -> None:
        """What is saved next continues this checkpoint, which was loaded; or nothing, since there was none."""
        self._loaded, self.line = record or _NOTHING, None
        self.continues = (record.step, record.save_id) if record is not None and record.save_id is not None else None

    def complete(
        self, name: str, metrics: Mapping[str, float], digests: Mapping[str, str], *, wait: bool = True
    ) -> None:
        """Write the commit record of a framework's save, or add metrics to one; then remove what the rules do not keep.
        Raises what goes wrong with the record, unless it does not wait.
        """
        if wait:
            self._pool.submit(self._complete, name, dict(metrics), digests).result()
        else:
            self._submit(f"{name} could not be committed", self._complete, name, dict(metrics), digests)
        self._submit("older checkpoints could not be removed", self._forget, {name: "was just saved"})

    def give_up(self, name: str) -> None:
        """Note that a save failed. The writers remove its files, or else the next save of the step, or the next job."""
        self._submit(f"the failed save of {name} could not be taken back", self._take_back, name)

    def make_room(self, name: str, *, full: bool = False) -> bool:
        """Apply the rules as after a save, if it would not fit, or did not; whether that removed anything."""
        volume = self._storage.volume()
        if self._keep.keeps_all or not (full or (volume is not None and volume.free < self._size * _MARGIN)):
            return False
        _log.warning("%s: applying the rules before %s is saved, which would not fit", self._storage.label(), name)
        coming = Record(name, time.time(), self._size, {})
        return bool(self._submit("no room could be made", self._forget, {}, coming).result())

    def sessions(self) -> list[Session]:
        """The processes that saved here before; empty if that cannot be read."""
        return self._submit("earlier sessions could not be read", self._sessions.earlier).result() or []

    def wait(self) -> None:
        """Until all that was asked for is done."""
        if "_pool" in vars(self):  # or nothing was asked for, and there may be no thread to be had for it
            self._pool.submit(lambda: None).result()

    def close(self, *, ended: bool) -> None:
        """Finish what was asked for. `ended` says that the job came to an end of its own."""
        if self._began:
            self._submit("the end of the job could not be noted", self._sessions.seen, ended)
            self._submit("", self._sessions.close)
        self.wait()  # what is asked for may ask for more
        self._pool.shutdown()
        for save in self._saves.values():
            save.hold.close()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "streamxf-housekeeper")

    def _submit(self, failure: str, call: Callable[..., T], *arguments: Any) -> Future[T | None]:
        return self._pool.submit(_logging, failure, call, *arguments)

    # -- in the housekeeper's thread --------------------------------------------------------------------

    def _settle_line(self) -> RunState:
        """Which line this job's saves are of; what is there. Not before its first: another job may have saved since."""
        state = self._run.read(series=self._series)
        if self._loaded is None:
            self.line = state.last_line(self._series)
        else:
            self.line, self._passed = state.line_after(self._series, self._loaded, partial(written, self._run))
        return state

    def _prepare(self) -> None:
        records = self._run.read(series=self._series).records
        begun = [record.run for record in records if record.kind == "unfinished" and record.run]
        # if its first save was killed, nothing but that tells of the run
        if self._run.settle_id(records) is None:
            begun += [noted.run for each in records if (noted := self._run.saves.get(each.name)) is not None]
            self._run.run_id = begun[-1] if begun else secrets.token_hex(16)
        self._size = next((record.bytes for record in reversed(records) if record.counts and record.bytes), 0)
        if self._run.authority.blind and (older := [record for record in records if record.complete]):
            _log.warning(
                "%s: %s of earlier jobs, %s, stay regardless of the rules: this job can verify only its own, and "
                "without run_id= what it saves is another run. Give the chain's Encrypt a signer",
                self._storage.label(),
                many(len(older), "checkpoint"),
                size_text(sum(record.bytes or 0 for record in older)),
            )
        try:
            self._sessions.begin()
        except OSError as error:
            _log.error("this job could not be noted: %s", escaped(f"{type(error).__name__}: {error}"))
        try:
            state = self._settle_line()  # from here on no other job saves
        except BaseException:
            self._sessions.close()
            raise
        gone = [name for name in {*self._run.saves.names}.difference(state.names) if series_of(name) == self._series]
        _logging("what is noted of saves could not be removed", self._run.saves.drop, gone)
        extras = self._keep.extras == "remove"
        tidy = partial(finish, self._run, self._series, session=self._sessions.own.id, saves=True, extras=extras)
        _logging("what killed saves left could not be removed", tidy)
        _logging("older checkpoints could not be removed", self._forget, {})

    def _note(self, name: str, save: _Save) -> None:
        storage, run = self._storage, self._run
        if storage.is_link(name):
            _log.warning("%s is a link, in whose place this save puts a folder", storage.label(name))
            remove_tree(storage, name, [], [])
        folder = run.folder(name)
        files, ours = folder.files, folder.contents()
        published = {path for path in folder.top if is_metadata_name(path)}
        old: Record | None = None  # if it can be read
        with suppress(OSError, *notes.ELSEWHERE):
            old = run.record(name, folder) if published or COMMIT in files else None
        if old is not None and old.version is not None:
            text = "is here, whose place this save would take: give one of the two a folder of its own"
            save.refused = f"version {old.version:,} of published weights {text}"
            return
        left = {*leftovers(run, folder, self._sessions.own.id, again=True)} - {SAVING}
        # which would go on to tell of what is replaced; on a local disk also what is no file, and would be in the way
        gone = left | ({COMMIT, REMOVED} if storage.near else files.keys() & {COMMIT, REMOVED})
        if why := old and lined([old], self.line or ())[0].abandoned:
            _log.warning("%s: this save replaces the checkpoint of another line: %s", storage.label(name), why)
        if published or COMMIT in files:
            if why and not folder.place.abilities.keeps_older:  # it goes first: what was resumed from stays
                gone |= {*ours} - {SAVING}
            else:
                folder.place.check_may_replace()
        if save.framework:
            gone |= published
        record = old if save.framework or COMMIT in files else None
        if record is not None and record.counts:  # some frameworks refuse to save over files of theirs
            kept = set() if save.framework else published.union(filter(made_by_saves, files))  # of DCP, until replaced
            gone |= {*ours} - kept - {SAVING}
        gone -= Pins.of(folder.place, folder.files).needed(gone)
        # another run's files stay, and what this save does not write of them is none of it
        goes_on = gone if record is not None and record.complete else gone.union(ours)
        save.before = {path: notes.mark_of(entry) for path, entry in files.items() if path not in goes_on}
        for path in save.before if save.framework else ():
            Note.check_path(path)  # raises here what the mark of this save cannot name
        try:
            save.hold.enter_context(put_hold(storage, name, self._sessions.own.id))
        except OSError as error:
            if not has_no_place(error):
                raise
            _log.warning("nothing keeps %s from being removed while it is saved: %s", name, error)
        saving = Saving(
            *(save.facts.run, name, int(time.time() * 1000), self._sessions.own.id),
            *(save.before if save.framework else {}, save.framework),
        )
        if left & published:  # only the note that is replaced says that these were never committed
            remove_tree(storage, name, sorted(left), [])
        put_small(storage, f"{name}/{SAVING}", run.authority.seal(saving.to_json(), Saving.of_json), sync=False)
        # after that mark: who reads an object store meanwhile remembers nothing of what has one
        before = (old.line,) if old is not None and old.counts and not old.damaged else None if files else ()
        change = partial(SaveNote.begin, before=before, line=save.facts.line)
        _logging("the line could not be noted", run.saves.change, name, save.facts.run, change)
        if gone:  # not before: what cannot be noted does not begin, and leaves what is there
            remove_tree(storage, name, sorted(gone), [])

    def _end(self, name: str, *, noted: bool = False) -> None:
        if (save := self._saves.pop(name, None)) is not None:
            save.hold.close()
        if not noted:
            remove_entry(self._storage, f"{name}/{SAVING}")

    def _take_back(self, name: str) -> None:
        """The note stays where files do, such as those of a rank that was killed: it says whose they are."""
        save, holds_some, published, is_own = self._saves.get(name), True, False, False
        try:
            folder = self._run.folder(name)
            holds_some = any(map(notes.is_framework_file, folder.files))
            published = save is not None and not save.framework and bool(folder.metadata or COMMIT in folder.files)
            record = self._run.record(name, folder) if published else None
            is_own = save is not None and record is not None and record.time == save.facts.time
        finally:
            try:
                if save is not None:  # what was there before stays, and may be unreadable
                    change = partial(SaveNote.publish, line=save.facts.line) if is_own else SaveNote.fail
                    self._run.saves.change(name, save.facts.run, change)
            finally:
                self._end(name, noted=holds_some and not published)
        if not holds_some:
            remove_tree(self._storage, name, [], [])

    def _saved(self, name: str, save_id: str | None, more: dict[str, float]) -> None:
        folder = self._run.folder(name)
        if stale := {COMMIT, REMOVED}.intersection(folder.top):  # where the save could not be noted
            remove_entry(self._storage, *(f"{name}/{file}" for file in stale))
            folder = self._run.folder(name)
        record = self._run.record(name, folder)
        if record is None:
            raise NoCheckpointError("it has been removed meanwhile", file=self._storage.label(name))
        if (known := save_id or record.save_id) is not None:
            remove_entry(self._storage, *(f"{name}/{file}" for file in folder.replaced_supplements(known)))
            self._run.authority.published[known] = name
            if more:
                self._supplement(name, known, more)
        self._size = record.bytes or self._size
        self._published(name)
        self._sessions.seen()

    def _complete(self, name: str, metrics: dict[str, float], digests: Mapping[str, str]) -> None:
        save, authority = self._saves.get(name), self._run.authority
        if save is None:
            if digests:
                raise ParameterError(f"digests: {name} is complete, or was never begun: give them to its first commit")
            record = self._run.record(name)
            if record is None or record.save_id is None:
                _log.warning("%s has been removed, so its metrics are not noted", name)
            elif metrics:
                self._supplement(name, record.save_id, metrics)
            return
        folder = self._run.folder(name)
        place, files = folder.place, notes.written_since(folder.files, save.before, digests)
        if not files:
            raise NoCheckpointError("nothing was saved there", file=place.label())
        if absent := sorted(digests.keys() - files):
            raise ParameterError(f"digests: {some(absent)}: the save wrote no such file", file=place.label())
        for path in files:
            for part in Note.check_path(path).split("/"):
                self._storage.check_literal(part)
        found = {
            path: CommittedFile(entry.size or 0, digests.get(path), checksum_of(entry))
            for path, entry in sorted(files.items())
        }
        commit = Commit(secrets.token_hex(16), replace(save.facts, metrics=metrics), found)
        if authority.strict:  # later, somebody might have changed them meanwhile, or take the note away
            found |= {path: found[path]._replace(sha256=digest_of(place, path)) for path in commit.without_digests()}
        put_small(self._storage, f"{name}/{COMMIT}", authority.seal(commit.to_json(), Commit.of_json), once=True)
        try:
            check_alone(folder, commit)
        except MetadataError as error:
            _log.warning("%s will not be resumed from as it is: %s", place.label(), error)
        authority.published[commit.save_id] = name
        self._size = sum(file.size for file in found.values())
        self._published(name)
        self._submit(f"{name} could not be digested", self._digest, name, commit)
        self._submit("", self._sessions.seen)

    def _digest(self, name: str, commit: Commit) -> None:
        """Where no store tells what it has, compute what the plug-in has not, so that damage is found later."""
        unknown = [path for path, file in commit.files.items() if file.sha256 is None and file.checksum is None]
        if unknown and self._storage.near and not self._run.authority.strict:
            place = self._storage.child(name)
            digests = {path: digest_of(place, path) for path in unknown}
            self._supplement(name, commit.save_id, {}, digests)

    def _published(self, name: str) -> None:
        self.resumed = None
        if (save := self._saves.get(name)) is not None:
            change = partial(SaveNote.publish, line=save.facts.line)
            _logging("the line could not be noted", self._run.saves.change, name, save.facts.run, change)
        self._end(name)
        for passed in [each for each in self._passed if each != name]:  # not before: what of this line is there does so
            self._run.saves.change(passed, str(self._run.run_id), partial(SaveNote.give_up, line=self.line or ()))
        self._passed = []

    def _supplement(self, name: str, save_id: str, *known: Mapping[str, Any]) -> None:
        content = Supplement(save_id, max(time.time_ns() // 10**6, 0), *known).to_json()
        file = f"{name}/.streamxf-note-{secrets.token_hex(4)}"
        put_small(self._storage, file, self._run.authority.seal(content, Supplement.of_json), once=True)
        self._run.saves.touch(name)

    def _forget(self, protected: Mapping[str, str], coming: Record | None = None) -> bool:
        """Whatever the rules say of the step, the job's own last save stays: it may have resumed from an older step."""
        if self._keep.keeps_all:
            return False
        if self.resumed is not None:  # until this job has saved itself
            protected = {self.resumed: "is resumed from", **protected}
        report = forget_in(
            self._run, self._keep, self._verify, series=self._series, protected=protected, coming=coming, line=self.line
        )
        if report.removed:
            _log.info("removed %s, %s", some(report.removed), size_text(report.bytes))
        left = [name for name, why in report.kept.items() if why[0].startswith(ABANDONED)]
        if set(left) - set(self._abandoned):
            text = "%s: no rule removes %s: training went back to an earlier one. `streamxf forget --abandoned` does"
            _log.warning(text, self._storage.label(), some(left))
        self._abandoned = left
        for name, reason in report.failed.items():
            _log.warning("%s could not be removed, which is tried again later: %s", name, escaped(reason))
        return bool(report.removed)


def _logging(failure: str, call: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return call(*arguments)
    except Exception as error:
        _log.error("%s: %s", failure, escaped(f"{type(error).__name__}: {error}"))
        return None
