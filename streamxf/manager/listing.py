"""`Run`: the checkpoints in a run's folder, by what each says of itself."""

from __future__ import annotations

import logging
import os
import re
import shlex
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import GLOBAL, is_metadata_name, metadata_among, read_metadata
from streamxf.checkpoint.publish import RUN_FILE, made_by_saves, written_in
from streamxf.collector import collector_paused
from streamxf.errors import (
    DAMAGE,
    MetadataError,
    NoCheckpointError,
    ParameterError,
    StreamxfError,
    UnsupportedError,
    escaped,
)
from streamxf.formats.opening import contents_of, open_source, parts_of
from streamxf.manager.authority import Authority
from streamxf.manager.commits import COMMIT, REMOVED, SAVING, SUPPLEMENT, Commit, Files, Saving, Supplement, read
from streamxf.manager.record import Kind, Record, is_numbered, numbers_in, series_of
from streamxf.manager.rows import ANY, Look, RowCache
from streamxf.storage.removal import files_of, files_of_many
from streamxf.storage.storage import Storage, storage_errors

_OF_CHECKPOINTS = {COMMIT, SAVING, REMOVED, "scheduler.pt", "scheduler.bin"}  # of frameworks, that is
_AT_ONCE = 16  # folders of an object store that are looked at
_SETTLED = 2 * 10**9  # ns after which a change of a folder shows in its times
_OUT = "a link that leads out of the run"
_log = logging.getLogger(__name__)


class Run:
    """A run's folder, as one job or tool sees it.

    - `run_id`: of the run; None while nobody has said it: then it is that of the newest checkpoint that counts, in each
      series of names by itself.
    """

    def __init__(self, storage: Storage, authority: Authority | None = None, run_id: str | None = None) -> None:
        if run_id is not None and not re.fullmatch("[0-9a-f]{32}", run_id):
            raise ParameterError(f"run_id={run_id!r:.80}: that of a run has 32 hexadecimal digits")
        self.storage = storage
        self.authority = authority or Authority(Access())
        self.run_id = run_id
        self._rows = RowCache(storage, self.authority)
        self._names: list[str] = []
        self._ids: dict[str, str] = {}
        self._links: dict[str, str] = {}

    # -- all checkpoints -------------------------------------------------------------------------------

    @collector_paused()
    def records(self, *, series: str | None = None) -> list[Record]:
        """The checkpoints, the oldest first; empty if there is no folder."""
        try:
            names, links = self._entries()
        except FileNotFoundError:
            return []
        self._names, self._links = names, links
        wanted = [name for name in names if series in (None, series_of(name))]
        looks = {name: look for name in wanted if (look := self._rows.get(name, self._mark(name))) is not None}
        told = {name for name in looks if self._rows.known(name, looked=True) is None}
        self._look_at([name for name in wanted if name not in looks], looks)
        for name in links:
            if is_numbered(name) and series in (None, series_of(name)) and (look := self._look(name)) is not None:
                looks[name] = look
        lied = False
        while True:
            newest = self._newest(looks)
            # a row hides nothing, and does not say which run this is
            if not (again := told.intersection(newest.values())):
                others = {} if series is None else {each: run for each, run in self._ids.items() if each != series}
                self._ids = others | {each: facts.run for each, name in newest.items() if (facts := looks[name].facts)}
                found = [self._record(name, look) for name, look in looks.items()]
                if not (again := {each.name for each in found if each.kind == "foreign"} & told):
                    return sorted(found, key=lambda record: record.order)
            elif lied:
                again = told
            self._look_at(again, looks)
            told, lied = told - again, True

    def record(self, name: str, files: Files | None = None) -> Record | None:
        """One checkpoint as its folder is now; None if it holds nothing of one. `files` are its, if they are known."""
        look = self._look(name, files)
        return self._record(name, look) if look is not None else None

    def empty(self, series: str) -> list[str]:
        """The local folders of a series in which nothing is, or drafts and supplements alone."""
        local, alone = self.storage.local, {COMMIT, REMOVED, SAVING}
        if local is None or not os.path.isdir(local):
            return []
        found = {name: os.listdir(f"{local}/{name}") for name in self._entries()[0] if series_of(name) == series}
        return [name for name, files in found.items() if all(map(RUN_FILE.fullmatch, files)) and not alone & {*files}]

    def linked(self) -> dict[str, str]:
        """The folders of this run to which links in it led when it was listed last, such as ``best -> step-100``: each
        with a link.
        """
        base = os.path.realpath(self.storage.local or "")
        targets = {link: os.path.split(target) for link, target in self._links.items()}
        return {name: link for link, (folder, name) in targets.items() if folder == base}

    def settle_id(self, records: Sequence[Record]) -> str | None:
        """Which run this is, by its checkpoints; None if none says so. Raises ParameterError if they are of several."""
        if self.run_id is None:
            found: dict[str, str] = {}
            for record in records:
                if record.complete and record.verified and record.run and not record.note.startswith(_COPY):
                    found[record.run] = record.name
            if len(found) > 1:
                shown = "; ".join(f"{run}, as {name}" for run, name in list(found.items())[:5])
                raise ParameterError(
                    f"checkpoints of {len(found)} runs lie in one folder ({shown}), so it is not clear which run this "
                    "is: pass run_id= with the one that is meant, or move the others away",
                    file=self.storage.given,
                )
            self.run_id = next(iter(found), None)
        return self.run_id

    def id_of(self, series: str) -> str | None:
        """The run that the newest of its checkpoints names, when they were listed last; None if none names one."""
        return self._ids.get(series)

    def remember(self) -> None:
        """Store what was found, for the next process. Raises OSError."""
        self._rows.save(self._names)

    def change(self, *names: str, known: bool = False) -> None:
        """Say that checkpoints are about to change, where their folders have no mark that shows it; what is `known` of
        them counts here for a while. Raises OSError.
        """
        if self.storage.local is None:
            self._rows.drop(names, known=known)

    # -- one checkpoint --------------------------------------------------------------------------------

    def place(self, name: str) -> Storage:
        """A checkpoint's folder; of a link, that to which it leads."""
        where, base = self._split(name)
        return where.child(base)

    def files(self, name: str) -> Files:
        """The regular files below it."""
        return files_of(*self._split(name))

    def rules(self, name: str) -> Mapping[str, Any] | None:
        """The rules of the job that saved it, if it has recorded them."""
        look = self._look(name)
        return look.facts.rules or None if look is not None and look.facts is not None else None

    def supplements(self, place: Storage, files: Files, save_id: str | None) -> tuple[list[Supplement], bool]:
        """Those to a save that count, the oldest first; and whether there are others, whose contents nobody knows.
        `place` is the checkpoint's folder.
        """
        found, lost = [], False
        for file in filter(SUPPLEMENT.fullmatch, files):
            try:
                said, doubt = read(place, file, Supplement.of_json, self.authority)
            except StreamxfError as error:
                said, doubt = None, error.message
            if said is None or (doubt and not self.authority.has_published(save_id, place.name)):
                _log.warning("%s is ignored: %s", place.full(file), doubt or "it is not there, or no regular file")
                lost = True
            elif said.save_id == save_id:
                found.append(said)
        return sorted(found, key=lambda each: each.time), lost

    def _split(self, name: str) -> tuple[Storage, str]:
        """The folder that a checkpoint's folder lies in, and its name there."""
        local = self.storage.local_path(name)
        if local is None or not os.path.islink(local):
            return self.storage, name
        folder, base = os.path.split(os.path.realpath(local))
        return Storage.of(folder), base

    def _record(self, name: str, look: Look) -> Record:
        facts, run_id = look.facts, self.run_id or self._ids.get(series_of(name))
        kind: Kind = look.state if look.state != "complete" else "unclaimed" if facts is None else "own"
        if look.begun and run_id in (None, look.begun):
            kind = "unfinished"
        note = look.problem or look.doubt
        if kind == "own" and facts is not None:
            if facts.name != name or numbers_in(name)[-1:] != (facts.step,):
                kind, note = "foreign", f"{_COPY}{escaped(facts.name)}"
            elif run_id is not None and facts.run != run_id:
                kind, note = "foreign", f"of the run {facts.run}"
        return Record(
            name,
            facts.time if facts is not None else None if look.written is None else look.written / 1000,
            look.bytes,
            look.metrics,
            kind,
            look.save_id,
            facts.run if facts is not None else (look.begun or None) if kind == "unfinished" else None,
            not look.doubt,
            look.link,
            note,
        )

    def _newest(self, looks: Mapping[str, Look]) -> dict[str, str]:
        """Of each series the newest checkpoint that counts and names a run, or that which is known."""
        newest: dict[str, tuple[tuple[int, ...], str]] = {}
        for name, look in looks.items():
            facts = look.facts if look.state == "complete" and not look.doubt else None
            if facts is not None and facts.name == name and self.run_id in (None, facts.run):
                series = series_of(name)
                newest[series] = max(newest.get(series, ((), "")), (numbers_in(name), name))
        return {series: name for series, (_, name) in newest.items()}

    # -- looking ---------------------------------------------------------------------------------------

    def _entries(self) -> tuple[list[str], dict[str, str]]:
        """The folders that may be checkpoints; and links to folders, each with what it leads to."""
        local = self.storage.local
        if local is None:
            return [name for name in self.storage.folders() if is_numbered(name)], {}
        names, links = [], {}
        with os.scandir(local) as entries:
            for entry in entries:
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    if os.path.isdir(target):
                        links[entry.name] = target
                elif is_numbered(entry.name) and entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
        return names, links

    def _mark(self, name: str) -> str | None:
        return folder_mark(f"{self.storage.local}/{name}") if self.storage.local is not None else ANY

    def _look_at(self, names: Collection[str], found: dict[str, Look]) -> None:
        """What these folders say themselves."""
        marks = {name: self._mark(name) for name in names}
        files = files_of_many(self.storage, names)

        def look_at(name: str) -> tuple[str, Look | None]:
            return name, self._looked(self.storage, name, files(name))

        with ThreadPoolExecutor(_AT_ONCE if self.storage.local is None else 1) as pool:
            for name, look in map(look_at, names) if self.storage.local is not None else pool.map(look_at, names):
                self._rows.note(name, listing_mark(files(name)) if marks[name] == ANY else marks[name], look)
                found.pop(name, None)
                if look is not None:
                    found[name] = look

    def is_still(self, record: Record, files: Files) -> bool:
        """Whether a folder, with these files, holds what a record says. It is looked at again unless its metadata is
        the same file as then.
        """
        local = self.storage.local_path(record.name)
        mark = file_mark(local) if local is not None else (listing_mark(files) or "/")[1:]
        if mark and not record.link and not any(map(SUPPLEMENT.fullmatch, files)):
            known = self._rows.known(record.name, looked=not self.authority.strict)
            if known is not None and known[0].endswith(f"/{mark}") and known[1].save_id == record.save_id:
                return True
        return record.is_still(self.record(record.name, files))

    def _look(self, name: str, files: Files | None = None) -> Look | None:
        where, base = self._split(name)
        if where is self.storage:
            local = self.storage.local_path(name)
            listed = files_of(where, name) if files is None else files
            mark = listing_mark(listed) if local is None else folder_mark(local)
            look = self._looked(where, name, listed)
            self._rows.note(name, mark, look)
            return look
        look = self._looked(where, base, files_of(where, base))
        if look is None:
            return None
        assert self.storage.local is not None
        base_folder = os.path.realpath(self.storage.local)
        inside = os.path.commonpath([base_folder, where.given]) == base_folder
        doubt = look.doubt or ("" if inside or self.authority.strict else _OUT)
        return replace(look, link=where.full(base), doubt=doubt)

    def _looked(self, where: Storage, name: str, files: Files) -> Look | None:
        top = [path for path in files if "/" not in path]
        if COMMIT in top:
            return self._supplemented(where.child(name), files, self._committed(where.child(name), files))
        if metadata := metadata_among(top):
            look = self._published(where.child(name), metadata, files)
            if look.facts is None and SAVING in top:
                mark = self._begun(where.child(name), name)
                return replace(look, begun=mark.run if mark is not None and mark.framework else "")
            return self._supplemented(where.child(name), files, look)
        if REMOVED in top:
            return self._committed(where.child(name), files, REMOVED)
        if SAVING in top or any(map(made_by_saves, top)):
            written = max((_written(files[path]) or 0 for path in top), default=0) or None
            mark = self._begun(where.child(name), name) if SAVING in top else None
            return Look("unfinished", written=written, begun=mark.run if mark is not None else "")
        return None

    def _begun(self, place: Storage, name: str) -> Saving | None:
        """The save that was begun there. What a framework writes counts once it is committed; what a manager saved says
        so itself, whatever is put beside it.
        """
        try:
            mark, doubt = read(place, SAVING, Saving.of_json, self.authority)
        except StreamxfError:
            return None
        return mark if mark is not None and not doubt and mark.name == name else None

    def _published(self, place: Storage, metadata: list[str], files: Files) -> Look:
        """What DCP's metadata says."""
        ours = [path for path in files if "/" not in path and (path in metadata or made_by_saves(path))]
        look = Look(written=_written(files[metadata[0]]), bytes=sum(files[path].get("size") or 0 for path in ours))
        try:
            said = [read_metadata(place, file, Access(), listing=True) for file in metadata]
        except (StreamxfError, FileNotFoundError) as error:
            return self._problem(look, error)
        if (index := said[0].index) is not None:
            look = replace(look, save_id=index.save_id, facts=index.run)
        if self.authority.has_published(look.save_id, place.name):
            return look
        for file, each in zip(metadata, said, strict=True):
            doubt = self.authority.doubt(lambda access, file=file: read_metadata(place, file, access), each.signed_by)  # type: ignore[misc]
            if doubt:
                return replace(look, doubt=doubt)
        return look

    def _committed(self, place: Storage, files: Files, record: str = COMMIT) -> Look:
        """What a commit record says."""
        look = Look("complete" if record == COMMIT else "removing", written=_written(files[record]))
        try:
            commit, doubt = read(place, record, Commit.of_json, self.authority)
            if commit is None and not doubt:
                raise MetadataError("the commit record cannot be read")
        except StreamxfError as error:
            return self._problem(look, error)
        if commit is None:
            return replace(look, doubt=doubt)
        if REMOVED in files and any(is_metadata_name(path) and path not in files for path in commit.files):
            look = replace(look, state="removing")  # which takes metadata away first
        size = sum(file.size for file in commit.files.values())
        if self.authority.has_published(commit.save_id, place.name):
            doubt = ""
        return replace(look, save_id=commit.save_id, facts=commit.run, bytes=size, doubt=doubt)

    def _problem(self, look: Look, error: Exception) -> Look:
        text = f"{type(error).__name__}: {error}"
        return replace(look, problem=text, doubt=text if self.authority.strict else "")

    def _supplemented(self, place: Storage, files: Files, look: Look) -> Look:
        """With the metrics that are known by now."""
        if look.facts is None:
            return look
        metrics = dict(look.facts.metrics)
        found, lost = self.supplements(place, files, look.save_id)
        for each in found:
            metrics |= each.metrics
        return replace(look, metrics=None if lost else metrics)


_COPY = "a copy of "


def folder_mark(folder: str) -> str | None:
    """What changes with the names in a local folder, and with its metadata or commit record; None where there is
    neither, and while its times may not show the next change.
    """
    try:
        facts, file = os.lstat(folder), file_mark(folder)
    except OSError:
        return None
    if file is None or not stat.S_ISDIR(facts.st_mode) or facts.st_mtime_ns + _SETTLED > time.time_ns():
        return None
    return f"{facts.st_ino:x}.{facts.st_mtime_ns:x}/{file}"


def file_mark(folder: str) -> str | None:
    """The part of it that changes with the metadata, or the commit record where there is none."""
    for name in (GLOBAL, COMMIT):
        try:
            facts = os.lstat(f"{folder}/{name}")
        except OSError:
            continue
        return f"{facts.st_ino:x}.{facts.st_size:x}.{facts.st_mtime_ns:x}.{facts.st_ctime_ns:x}"
    return None


def listing_mark(files: Files) -> str | None:
    """The same of a folder in an object store, as far as that has marks."""
    entry = files.get(COMMIT) or files.get(GLOBAL) or {}
    tag = entry.get("ETag") or entry.get("etag")
    return None if tag is None else f"/{tag}"


def _written(entry: Mapping[str, Any]) -> int | None:
    when = written_in(entry)
    return None if when is None else max(int(when * 1000), 0)


def list_checkpoints(
    run: str | os.PathLike[str], *, run_id: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> list[Record]:
    """The checkpoints in a run's folder, the oldest first: those that are complete, and those that are not.

    Nothing is verified, and no key is needed: each is what it says of itself. Hidden folders, and those without a
    number in their names, are left out. Folders of other formats, such as Hugging Face's, are listed where there are no
    complete checkpoints of DCP and none that were committed to a `CheckpointManager`.

    Parameters
    ----------
    run : path or str
        The folder that holds the checkpoints' folders, or its URL.
    run_id : str, optional
        Which run this is, if the folder holds checkpoints of several. By default that of the newest checkpoint, in each
        series of names by itself.
    storage_options : mapping, optional
        fsspec's, for the URL.

    Raises
    ------
    NoCheckpointError, UnsupportedError
        If there is no such folder; if it is a file, or a checkpoint.
    OSError, ForeignError
        If the storage cannot be reached.
    """
    storage = Storage.of(run, storage_options)
    with storage_errors(storage.given):
        records = records_of(named := Run(storage, run_id=run_id))
        others = [] if any(each.complete for each in records) else of_other_formats(named, records)
        return sorted([*records, *others], key=lambda record: record.order)


def records_of(run: Run) -> list[Record]:
    """The checkpoints of a run that somebody has named; raises as `list_checkpoints`."""
    storage = run.storage
    check_folder(storage)
    records = run.records()
    if any(record.kind == "own" for record in records):  # what else there is need not be listed
        return records
    may_be_run = any(map(is_numbered, storage.folders())) or not parts_of(storage, 0)
    if may_be_run and _OF_CHECKPOINTS.isdisjoint(storage.names(())):
        return records
    raise UnsupportedError(
        "this is a checkpoint, and not a run; the run is the folder that it lies in: `streamxf list "
        f"{shlex.quote(run_of(storage)[0])}` shows what is there",
        file=storage.given,
    )


def of_other_formats(run: Run, records: Collection[Record]) -> Iterator[Record]:
    """The whole checkpoints of other formats, which say nothing of themselves, besides `records`; the newest first."""
    names = {name for name in run.storage.folders() if is_numbered(name)} - {each.name for each in records}
    for record in sorted(map(Record, names), key=lambda each: each.order, reverse=True):
        with suppress(*DAMAGE, FileNotFoundError):
            if not run.files(record.name):  # a name that is not literal has none
                continue
            with open_source(run.place(record.name), listing=True) as source:
                found = contents_of(source)
            if not found.incomplete:
                yield replace(record, bytes=sum(found.files.values()), note=str(found.format))


def run_of(checkpoint: Storage) -> tuple[str, str]:
    """The folder that a checkpoint's folder lies in, and its name there."""
    given = checkpoint.given if checkpoint.local is None else os.path.realpath(checkpoint.local)
    folder, _, name = given.rstrip("/").rpartition("/")
    return folder or "/", name


def check_folder(storage: Storage) -> None:
    """Raise NoCheckpointError if there is no such folder, UnsupportedError if it is a file."""
    try:
        if not storage.is_folder():
            raise UnsupportedError("this is a file, and not a folder of checkpoints", file=storage.given)
    except FileNotFoundError:
        raise NoCheckpointError("there is no such folder", file=storage.given) from None
