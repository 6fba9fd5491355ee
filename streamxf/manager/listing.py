"""`Run`: the checkpoints in a run's folder, by what each says of itself. What was found is remembered in small files
that may be lost at any time: they make a listing faster, and decide nothing that the folders do not say.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import GLOBAL, metadata_among, read_metadata
from streamxf.checkpoint.publish import made_by_writers, written_at
from streamxf.checkpoint.removal import files_of, files_of_many
from streamxf.checkpoint.storage import Storage, storage_errors
from streamxf.errors import NoCheckpointError, ParameterError, StreamxfError, UnsupportedError, escaped
from streamxf.manager.authority import Authority
from streamxf.manager.commits import COMMIT, REMOVED, SAVING, SUPPLEMENT, Commit, Files, Supplement, parsed, read
from streamxf.manager.record import Record, is_numbered, numbers_in
from streamxf.manager.rows import Look, Rows

_SETTLED = 2 * 10**9  # ns after which a change of a folder has changed its times, too
_log = logging.getLogger(__name__)


class Run:
    """A run's folder, as one job or tool sees it.

    - `run_id`: of the run; None while nobody has said it: then it is that of the newest checkpoint that counts, in each
      series of names by itself.
    """

    def __init__(self, storage: Storage, authority: Authority | None = None, run_id: str | None = None) -> None:
        self.storage = storage
        self.authority = authority or Authority(Access())
        self.run_id = run_id
        self.rows = Rows(storage, self.authority)

    # -- all checkpoints -------------------------------------------------------------------------------

    def records(self, *, series: str | None = None) -> list[Record]:
        """The checkpoints, the oldest first; empty if there is no folder."""
        try:
            names, links = self.entries()
        except FileNotFoundError:
            return []
        wanted = [name for name in names if series in (None, Record(name).series)]
        looks = self._looks(wanted)
        for name in links:
            if is_numbered(name) and series in (None, Record(name).series) and (look := self._look_through(name)):
                looks[name] = look
        ids = self._ids(looks) if self.run_id is None else {}
        found = [self._record(name, look, self.run_id or ids.get(Record(name).series)) for name, look in looks.items()]
        found = [
            replace(each, note="; ".join(filter(None, (f"link to {links[each.name]}", each.note)))) if each.name in links else each
            for each in found
        ]
        return sorted(found, key=lambda record: record.order)

    def entries(self) -> tuple[list[str], dict[str, str]]:
        """The folders that may be checkpoints; and links in the run's folder, each with the folder that it leads to."""
        local = self.storage.local
        if local is None:
            return [name for name in self.storage.folders() if is_numbered(name)], {}
        names, links = [], {}
        with os.scandir(local) as entries:
            for entry in entries:
                if entry.is_symlink():
                    with suppress(OSError):
                        target = os.path.realpath(entry.path)
                        if os.path.isdir(target):
                            links[entry.name] = target
                elif is_numbered(entry.name) and entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
        return names, links

    def linked(self) -> dict[str, str]:
        """The folders of this run that links in it lead to, as ``best -> step-100``: each with a link."""
        if self.storage.local is None:
            return {}
        base = os.path.realpath(self.storage.local)
        with suppress(FileNotFoundError):
            _, links = self.entries()
            return {os.path.basename(to): link for link, to in links.items() if os.path.dirname(to) == base}
        return {}

    def record(self, name: str) -> Record | None:
        """One checkpoint as its folder is now; None if it holds nothing of one."""
        look = self._look_through(name) if self._is_link(name) else self._looked(name, files_of(self.storage, name))
        return self._record(name, look, self.run_id) if look is not None else None

    def run_ids(self, records: Sequence[Record]) -> dict[str, list[str]]:
        """The runs that checkpoints which count were saved by, each with their names, the newest first."""
        found: dict[str, list[str]] = {}
        for record in reversed(records):
            if record.complete and record.verified and record.run is not None and not record.note.startswith(_COPY):
                found.setdefault(record.run, []).append(record.name)
        return found

    def settle_id(self, records: Sequence[Record]) -> str | None:
        """Which run this is, by its checkpoints; None if none says so. Raises ParameterError if they are of several."""
        if self.run_id is None:
            found = self.run_ids(records)
            if len(found) > 1:
                shown = "; ".join(f"{run}: {names[0]}" for run, names in list(found.items())[:5])
                raise ParameterError(
                    f"checkpoints of {len(found)} runs are in one folder, so it is not clear which to resume from "
                    f"({shown}). Pass run_id= with the one that is meant, or move the others away",
                    file=self.storage.given,
                )
            self.run_id = next(iter(found), None)
        return self.run_id

    # -- one checkpoint --------------------------------------------------------------------------------

    def _record(self, name: str, look: Look, run_id: str | None) -> Record:
        facts = look.facts
        when = facts.time if facts is not None else None if look.written is None else look.written / 1000
        made = Record(
            name, when, look.bytes, look.metrics, "unclaimed", look.save_id, facts and facts.run, not look.doubt, look.problem
        )
        if look.state != "complete":
            return replace(made, kind=look.state)
        if facts is None:
            return made
        if facts.name != name or facts.step != numbers_in(name)[-1]:
            return replace(made, kind="foreign", note=f"{_COPY}{escaped(facts.name)}")
        if run_id is not None and facts.run != run_id:
            return replace(made, kind="foreign", note=f"of the run {facts.run}")
        return replace(made, kind="own")

    def _ids(self, looks: Mapping[str, Look]) -> dict[str, str]:
        """The run of each series: that of its newest checkpoint that counts."""
        ids: dict[str, tuple[list[int], str]] = {}
        for name, look in looks.items():
            facts = look.facts
            if look.state == "complete" and not look.doubt and facts is not None and facts.name == name:
                series = Record(name).series
                ids[series] = max(ids.get(series, ([], "")), (numbers_in(name), facts.run))
        return {series: run for series, (_, run) in ids.items()}

    def _is_link(self, name: str) -> bool:
        local = self.storage.local_path(name)
        return local is not None and os.path.islink(local)

    def _look_through(self, name: str) -> Look | None:
        """What a link leads to. Without keys it counts only below the run's folder."""
        assert self.storage.local is not None
        target = os.path.realpath(os.path.join(self.storage.local, name))
        folder, base = os.path.split(target)
        where = Storage.of(folder)
        look = Run(where, self.authority)._looked(base, files_of(where, base))
        inside = os.path.commonpath([os.path.realpath(self.storage.local), target]) != target
        if look is not None and not self.authority.strict and not (inside and folder.startswith(os.path.realpath(self.storage.local))):
            look = replace(look, doubt="a link that leads out of the run")
        return look

    # -- looking ---------------------------------------------------------------------------------------

    def _looks(self, names: Collection[str]) -> dict[str, Look]:
        local = self.storage.local
        if local is not None:
            found = {}
            for name in names:
                mark = folder_mark(os.path.join(local, name))
                look = self.rows.get(name, mark)
                if look is None:
                    look = self._looked(name, files_of(self.storage, name))
                    self.rows.note(name, mark, look)
                if look is not None:
                    found[name] = look
            return found
        files = files_of_many(self.storage, names)
        found = {}
        for name in names:
            listed = files(name)
            mark = listing_mark(listed)
            look = self.rows.get(name, mark) or self._looked(name, listed)
            self.rows.note(name, mark, look)
            if look is not None:
                found[name] = look
        return found

    def _looked(self, name: str, files: Files) -> Look | None:
        top = {path for path in files if "/" not in path}
        if COMMIT in top:
            return self._committed(name, files)
        if metadata := metadata_among(top):
            return self._published(name, metadata, files)
        if REMOVED in top:
            return Look("removing")
        if SAVING in top or any(map(made_by_writers, top)):
            written = max((_ms(files[file]) or 0 for file in top), default=0)
            return Look("unfinished", written=written or None)
        return None

    def _published(self, name: str, metadata: list[str], files: Files) -> Look:
        """What DCP's metadata says."""
        child, access = self.storage.child(name), self.authority.access
        size = sum(entry.get("size") or 0 for path, entry in files.items() if "/" not in path and made_by_writers(path))
        size += files[GLOBAL].get("size") or 0 if GLOBAL in files else 0
        look = Look(written=_ms(files[metadata[0]]), bytes=size)
        try:
            said = [read_metadata(child, file, Access(), listing=True) for file in metadata]
        except (StreamxfError, FileNotFoundError) as error:
            problem = f"{type(error).__name__}: {error}"
            return replace(look, problem=problem, doubt=problem if self.authority.strict else "")
        index = said[0].index
        if index is not None:
            look = replace(look, save_id=index.save_id, facts=index.run)
        doubts = [
            self.authority.doubt(lambda access, file=file: read_metadata(child, file, access), each.signed_by)  # type: ignore[misc]
            for file, each in zip(metadata, said, strict=True)
        ]
        if look.save_id in self.authority.published:
            doubts = []
        return self._supplemented(name, files, replace(look, doubt=next(filter(None, doubts), "")))

    def _committed(self, name: str, files: Files) -> Look:
        """What a commit record says."""
        look = Look(written=_ms(files[COMMIT]))
        try:
            found = read(self.storage.child(name), COMMIT, Commit.of_json, self.authority)
            if found is None:
                raise NoCheckpointError("the commit record cannot be read")
        except StreamxfError as error:
            problem = f"{type(error).__name__}: {error.message}"
            return replace(look, problem=problem, doubt=problem if self.authority.strict else "")
        commit, doubt = found
        if commit.save_id in self.authority.published:
            doubt = ""
        size = sum(file.size for file in commit.files.values())
        look = replace(look, save_id=commit.save_id, facts=commit.run, bytes=size, doubt=doubt)
        return self._supplemented(name, files, look)

    def _supplemented(self, name: str, files: Files, look: Look) -> Look:
        """With the metrics that are known by now."""
        if look.facts is None:
            return look
        metrics = dict(look.facts.metrics)
        for each in self.supplements(name, files, look.save_id):
            metrics |= each.metrics
        return replace(look, metrics=metrics)

    def supplements(self, name: str, files: Files, save_id: str | None) -> list[Supplement]:
        """Those to a save that count, the oldest first."""
        found = []
        for file in filter(SUPPLEMENT.fullmatch, files):
            try:
                said = read(self.storage.child(name), file, Supplement.of_json, self.authority)
            except StreamxfError as error:
                _log.warning("%s/%s is ignored: %s", self.storage.full(name), file, error.message)
                continue
            if said is not None and said[0].save_id == save_id and (not said[1] or save_id in self.authority.published):
                found.append(said[0])
        return sorted(found, key=lambda each: each.time)


_COPY = "a copy of "


def folder_mark(folder: str) -> str | None:
    """What changes with the names in a local folder, its metadata and its commit record; None where there is neither,
    and while its times may not show a change that follows.
    """
    times = []
    for path in (folder, f"{folder}/{GLOBAL}", f"{folder}/{COMMIT}"):
        with suppress(FileNotFoundError, NotADirectoryError):
            times.append(os.lstat(path))
    if len(times) < 2 or not stat.S_ISDIR(times[0].st_mode) or times[0].st_mtime_ns + _SETTLED > time.time_ns():
        return None
    return "-".join(f"{each.st_ino:x}.{each.st_size:x}.{each.st_mtime_ns:x}.{each.st_ctime_ns:x}" for each in times)


def listing_mark(files: Files) -> str | None:
    """The same of a folder in an object store, by its listing; None where that has no marks."""
    own = [path for path in files if path in (GLOBAL, COMMIT) or SUPPLEMENT.fullmatch(path)]
    tags = [f"{path} {files[path].get('ETag') or files[path].get('etag')}" for path in sorted(own)]
    if not tags or any(tag.endswith(" None") for tag in tags):
        return None
    return hashlib.sha256("\n".join(tags).encode()).hexdigest()[:32]


def _ms(entry: Mapping[str, Any]) -> int | None:
    return None


def list_checkpoints(run: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> list[Record]:
    """The checkpoints in a run's folder, the oldest first: those that are complete, and those that are not.

    Nothing is verified, and no key is needed: a checkpoint counts as complete from the moment when its save was
    published. Folders that hold nothing of a DCP checkpoint, and were not committed to a `CheckpointManager`, are left
    out, and so are hidden ones, and those without a number in their names.

    Parameters
    ----------
    run : path or str
        The folder that holds the checkpoints' folders, or its URL.
    storage_options : mapping, optional
        fsspec's, for the URL.

    Raises
    ------
    NoCheckpointError, UnsupportedError
        If there is no such folder, or it is a file.
    OSError, ForeignError
        If the storage cannot be reached.
    """
    storage = Storage.of(run, storage_options)
    with storage_errors(storage.given):
        check_folder(storage)
        return Run(storage).records()


def check_folder(storage: Storage) -> None:
    """Raise NoCheckpointError if there is no such folder, UnsupportedError if it is a file."""
    try:
        if not storage.is_folder():
            raise UnsupportedError("this is a file, and not a folder of checkpoints", file=storage.given)
    except FileNotFoundError:
        raise NoCheckpointError("there is no such folder", file=storage.given) from None
