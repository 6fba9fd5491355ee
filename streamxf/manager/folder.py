"""`Folder`: one folder of a run, and what lies in it says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, TypeVar

from streamxf import errors
from streamxf.cached import cached_property
from streamxf.errors import escaped
from streamxf.manager.notes import ELSEWHERE, Authority, read
from streamxf.manager.record import Record, numbers_in
from streamxf.notes import COMMIT, REMOVED, SAVING, SUPPLEMENT, Commit, Saving, Supplement, ordered
from streamxf.places import Entries, Storage, is_metadata_name, is_run_file, made_by_saves, metadata_among
from streamxf.reading import Access, Metadata, read_metadata
from streamxf.storage.storage import StorageEntry
from streamxf.writing import RunFacts

T = TypeVar("T")
_MANY = 1024  # files of one checkpoint
_OF_COMMITS = (*ELSEWHERE, errors.UnsupportedError)  # a record of a newer version is not a damaged one

_log = logging.getLogger(__name__)


class Folder:
    """A folder as it was listed.

    - `name`: in the run.
    - `place`: where it is, and `files` the regular files below it. With `is_link` it is what a link leads to.
    """

    def __init__(self, name: str, place: Storage, files: Entries, authority: Authority, is_link: bool = False) -> None:
        self.name = name
        self.place = place
        self.files = files
        self.authority = authority
        self.is_link = is_link
        self.top = [path for path in files if "/" not in path]
        self.metadata = metadata_among(self.top)

    def note(
        self, file: str, make: Callable[[Any], T], raises: tuple[type[errors.StreamxfError], ...] = ELSEWHERE
    ) -> tuple[T | None, str]:
        """What a note there says, if it can be read, and why it does not count, if it does not."""
        try:
            said, doubt = read(self.place, file, make, self.authority)
        except raises:
            raise
        except (errors.StreamxfError, FileNotFoundError) as error:
            if errors.UnsupportedError in raises:
                with suppress(OSError), self.place.open(file):  # raises what says more, as of a Git LFS pointer
                    pass
                if (known := self.place.doubted(error, missing=True)) is not error:
                    raise known from error
            return None, f"{type(error).__name__}: {error}"
        if said is None:
            return None, doubt or "it is not there, or no regular file"
        return said, doubt

    @cached_property
    def saving(self) -> Saving | None:
        """The save begun there: a framework's counts once it is committed; a manager's own metadata says so itself."""
        said, doubt = self.note(SAVING, Saving.of_json) if SAVING in self.top else (None, "")
        return said if said is not None and not doubt and said.name == self.place.name else None

    def supplements(self, save_id: str | None) -> tuple[list[Supplement], bool]:
        """Those to a save that count, in order; and whether there are others, of which nobody knows what they say."""
        found: dict[str, Supplement] = {}
        others = False
        for file in filter(SUPPLEMENT.fullmatch, self.top):
            said, doubt = self.note(file, Supplement.of_json)
            if said is not None and not doubt and said.save_id == save_id:
                found[file] = said
            else:
                _log.warning("%s", escaped(f"{self.place.label(file)} is ignored: {doubt or 'it is of another save'}"))
                others = True
        return ordered(found.items()), others

    def replaced_supplements(self, save_id: str) -> list[str]:
        """The files of those to other saves than this one, which has just been published in their place."""
        notes = ((file, *self.note(file, Supplement.of_json)) for file in filter(SUPPLEMENT.fullmatch, self.top))
        return [file for file, said, doubt in notes if said is not None and not doubt and said.save_id != save_id]

    def committed(self) -> Commit:
        """The commit record of what a framework wrote. Raises MetadataError if it cannot be read, ContainerError unless
        its files are there in their sizes, UnsupportedError if it is of a newer version.
        """
        commit, doubt = self.note(COMMIT, Commit.of_json, _OF_COMMITS)
        if commit is None:
            raise errors.MetadataError(f"the commit record cannot be read: {doubt}")
        for path, file in commit.files.items():
            entry = self.files.get(path)
            if entry is None:
                raise errors.ContainerError("the file is gone", file=self.place.label(path))
            if entry.size != file.size:
                with self.place.open(path):  # raises what says more, as of a Git LFS pointer
                    pass
                raise errors.ContainerError(
                    f"the file had {file.size} bytes when it was committed, and now has {entry.size}",
                    file=self.place.label(path),
                )
            if file.checksum is not None and checksum_of(entry) not in (None, file.checksum):
                raise errors.ContainerError(
                    "the store's checksum of the file has changed since it was committed", file=self.place.label(path)
                )
        return commit

    def contents(self) -> list[str]:
        """The files of its checkpoint, by its index or commit record, and by names that only writers make."""
        ours = {path for path in self.top if made_by_saves(path) or is_run_file(path) or is_metadata_name(path)}
        for file in {COMMIT, REMOVED}.intersection(self.top):
            commit, doubt = self.note(file, Commit.of_json)
            if commit is not None and not doubt and commit.run.name == self.name:
                ours |= commit.files.keys() & self.files.keys()
        with suppress(errors.StreamxfError, FileNotFoundError):
            for metadata in self.metadata if set(self.top) - ours else ():
                ours |= self._read(metadata)[0].files.keys() & self.files.keys()
        return sorted(ours)

    # -- what it is ------------------------------------------------------------------------------------

    def record(self) -> Record | None:
        """What it says of itself, in the run that it names; None if it holds nothing of a checkpoint. Where a
        framework's save was begun over one that names no run, `run` is that of the save.
        """
        if self.by_framework:
            return self._supplemented(self._commit)
        if self.metadata:
            record = self._published
            if record.kind != "own" and self.saving is not None and self.saving.framework:
                return replace(record, run=self.saving.run)
            return self._supplemented(record)
        if REMOVED in self.top:
            return self._committed(REMOVED)
        if SAVING in self.top or any(map(made_by_saves, self.top)):
            written = max(self._written(path) or 0 for path in self.top) or None
            run = self.saving.run if self.saving is not None else None
            return Record(self.name, written, kind="unfinished", run=run)
        return None

    @cached_property
    def by_framework(self) -> bool:
        """Whether its commit record says what it is, and not DCP's metadata. A manager's own metadata does so itself,
        whatever is put beside it, and so does what keys verify beside what they do not.
        """
        if COMMIT not in self.top or not self.metadata:
            return COMMIT in self.top
        return not self._published.verified or (self._published.kind != "own" and self._commit.verified)

    @property
    def index_id(self) -> str | None:
        """The save that the index in its DCP metadata names, which a commit record does not; None without one."""
        return self._published.save_id if self.metadata else None

    @cached_property
    def _commit(self) -> Record:
        return self._committed(COMMIT)

    @cached_property
    def _published(self) -> Record:
        """What DCP's metadata says."""
        ours = [path for path in self.top if path in self.metadata or made_by_saves(path)]
        record = Record(self.name, self._written(self.metadata[0]), sum(self.files[path].size or 0 for path in ours))
        try:
            said, doubts = zip(*map(self._read, self.metadata), strict=True)
        except ELSEWHERE:
            raise
        except errors.UnsupportedError as error:  # no job may remove it, or go on from before it
            return self._doubted(replace(record, kind="foreign", newer=True), error.message)
        except (errors.StreamxfError, FileNotFoundError) as error:
            return self._doubted(replace(record, damaged=True), f"{type(error).__name__}: {error}")
        if (index := said[0].index) is not None:
            record = self._with_facts(record, index.save_id, index.run)
            if index.version is not None:
                number, run = index.version
                record = replace(record, kind="foreign", version=number, run=run)
            linked = {path: size for path in ours if (size := self.files[path].size) and self.files[path].names > 1}
            if index.bases is not None:
                record = replace(record, increment=True, files=linked, needs=tuple(sorted(index.beside)))
            elif len(ours) <= _MANY:
                record = replace(record, files={path: self.files[path].size or 0 for path in ours})
        counts = self.authority.has_published(record.save_id, self.place.name)
        return record if counts else self._doubted(record, next(filter(None, doubts), ""))

    def _read(self, file: str) -> tuple[Metadata, str]:
        """A metadata file, and why it does not count; "" if it does."""
        said: list[Metadata] = []

        def read(access: Access | None = None) -> Metadata:
            said.append(self._metadata(file, access))
            return said[0]

        doubt = self.authority.doubt(read, lambda trust: read().signed_by(trust) and bool(said[0].wrapped))
        return said[0] if said else self._metadata(file), doubt

    def _metadata(self, file: str, access: Access | None = None) -> Metadata:
        """A metadata file, of which nothing is authenticated without `access`, and items are not looked at. It is read
        again if it has been replaced since it was listed; an object store is asked once otherwise.
        """
        mode: Literal["root", False] = "root" if access is None else False
        near = self.place.near
        try:
            size = None if near else self.files[file].size
            return read_metadata(self.place, file, access or Access(), size=size, listing=mode)
        except errors.KeyServiceError:
            raise
        except Exception as error:  # of whatever class: if the file was not replaced, the same comes again
            if near and not isinstance(error, errors.ReplacedError):
                raise
            return read_metadata(self.place, file, access or Access(), listing=mode)

    def _committed(self, file: str) -> Record:
        """What a commit record says."""
        record = Record(self.name, self._written(file))
        try:
            commit, doubt = self.note(file, Commit.of_json, _OF_COMMITS)
        except errors.UnsupportedError as error:
            newer = file == COMMIT  # what is being removed by one is gone
            return self._doubted(replace(record, kind="foreign" if newer else "removing", newer=newer), error.message)
        going = file == REMOVED
        if commit is not None:
            # which takes metadata away first
            going |= REMOVED in self.top and any(is_metadata_name(path) for path in commit.files.keys() - self.files)
            record = self._with_facts(record, commit.save_id, commit.run)
            record = replace(record, bytes=sum(each.size for each in commit.files.values()))
        return self._doubted(replace(record, kind="removing" if going else record.kind, damaged=commit is None), doubt)

    def _with_facts(self, record: Record, save_id: str, facts: RunFacts | None) -> Record:
        record = replace(record, save_id=save_id)
        if facts is None:
            return record
        is_copy = facts.name != self.name or numbers_in(self.name)[-1:] != (facts.step,)
        record = replace(record, kind="own", run=facts.run, copy_of=facts.name if is_copy else "")
        return replace(record, time=facts.time, metrics=dict(facts.metrics), rules=facts.rules, line=facts.line)

    def _doubted(self, record: Record, doubt: str) -> Record:
        return replace(record, verified=not (doubt and self.authority.strict), note=doubt)

    def _supplemented(self, record: Record) -> Record:
        """With the metrics that are known by now."""
        if record.kind != "own":
            return record
        found, others = self.supplements(record.save_id)
        known = dict(record.metrics or {})
        for each in found:
            known |= each.metrics
        return replace(record, metrics=known, other_notes=others)

    def _written(self, path: str) -> float | None:
        when = self.files[path].written
        return None if when is None else max(int(when * 1000), 0) / 1000


def checksum_of(entry: StorageEntry) -> str | None:
    """What an object store says of a file's contents."""
    return None if entry.tag is None else entry.tag.strip('"')
