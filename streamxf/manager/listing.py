"""`Run`: the checkpoints in a run's folder, by what each says of itself."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from streamxf import errors
from streamxf.buffers import collector_paused
from streamxf.errors import NoCheckpointError, ParameterError, UnsupportedError
from streamxf.formats.opening import contents_of, open_source, parts_of
from streamxf.manager.folder import Folder, checksum_of
from streamxf.manager.notes import Authority
from streamxf.manager.record import Record, is_numbered, series_of
from streamxf.manager.removal import files_of_many, is_literal
from streamxf.manager.saves import SaveNotes
from streamxf.manager.state import RunState, runs_named, seen_from
from streamxf.notes import COMMIT, REMOVED, SAVING, SUPPLEMENT
from streamxf.places import GLOBAL, Entries, Location, Storage, is_metadata_name, made_by_saves, open_storage
from streamxf.reading import Access
from streamxf.wording import some

_OF_CHECKPOINTS = {COMMIT, SAVING, REMOVED, "scheduler.pt", "scheduler.bin"}  # of frameworks, that is
_AT_ONCE = 16  # folders of an object store that are looked at
_MARKED = (GLOBAL, COMMIT)  # the first of these that is there says which checkpoint a folder holds
_OUT = "a link that leads out of the run"
_AWAY = "a checkpoint was here, and the folder is empty: mount it, or remove the folder"

SKIP = "STREAMXF_SKIP"
_DATA = re.compile(
    r".*\.(distcp|safetensors|bin|pt|pth|ckpt|h5|keras|sxf|msgpack|npz|npy|gguf|tar|zst|gz|pkl|pickle)", re.DOTALL
)
_LARGE = 2**20  # bytes; no file that a person puts beside checkpoints has so many


def named_to_skip() -> list[str]:
    """The checkpoints that the environment names, separated by commas, which a name may hold itself; paths will do."""
    skip = os.environ.get(SKIP, "")
    return [skip, *(os.path.basename(each.strip().rstrip("/")) for each in skip.split(","))]


def data_in(folder: Folder, *, saved: bool) -> str | None:
    """What a folder without a checkpoint has: "" for nothing; None for what nobody asks about, or a mark says, such as
    that of a save, unless one was `saved` there; else data, which a ``"save"`` has left, by its names, or ``"others"``.
    """
    if not folder.files:
        return "save" if folder.place.is_link(GLOBAL) else ""
    if not {COMMIT, REMOVED, *folder.metadata, *([] if saved else [SAVING])}.isdisjoint(folder.top):
        return None
    if any(map(made_by_saves, folder.top)):
        return "save"
    data = (_DATA.fullmatch(path) or (file.size or 0) >= _LARGE for path, file in folder.files.items())
    return "others" if any(data) else None


class Run:
    """A run's folder, as one job or tool sees it.

    - `run_id`: of the run; None while nobody has said it: then it is that of the newest checkpoint that counts, in each
      series of names by itself.
    """

    def __init__(self, storage: Storage, authority: Authority | None = None, run_id: str | None = None) -> None:
        if run_id is not None and not (isinstance(run_id, str) and re.fullmatch("[0-9a-f]{32}", run_id)):
            raise ParameterError(f"run_id={run_id!r:.80}: that of a run has 32 hexadecimal digits")
        self.storage = storage
        self.authority = authority or Authority(Access())
        self.run_id = run_id
        self.names: list[str] = []
        """The folders that may be checkpoints, when they were listed last."""
        self._known: dict[str, tuple[str, Record]] = {}  # what was found, and which mark the folder had then
        self.saves = SaveNotes(storage, self.authority)
        self._linked: dict[str, str] = {}
        self._unread: dict[str, Exception] = {}
        self._data: dict[str, str] = {}  # `data_in` folders without a checkpoint
        self.ids: dict[str, str] = {}
        """Of each series the run that its newest checkpoint names, when they were listed last."""

    @classmethod
    def at(
        cls,
        run: Location,
        storage_options: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        *,
        unverified: bool = False,
        **keys: Any,
    ) -> Run:
        """The run in a folder or at a URL, with the `keys`, `trust` and `allow_unsigned` of a reader, if any."""
        authority = Authority(Access.of(keys.pop("keys", None), **keys), unverified=unverified)
        return cls(open_storage(run, storage_options).past_caches(), authority, run_id)

    @collector_paused()
    def read(self, *, series: str | None = None) -> RunState:
        """What is there now, of one series or of all; nothing if there is no folder. A folder that has the same mark as
        when this process looked at it is not read again.
        """
        try:
            links = self._list()
        except FileNotFoundError:
            return RunState()
        names = [name for name in (*self.names, *links) if is_numbered(name)]
        names = names if series is None else [name for name in names if series_of(name) == series]
        self._data, self._unread = {}, {}  # neither holds of what is known
        self.saves.reload()
        known = {name: self._known[name] for name in names if name in self._known and name not in links}
        found = {name: record for name, (mark, record) in known.items() if mark.startswith(self._mark(name) or "-")}
        self._look_at([name for name in names if name not in found], found)
        others = {each: run for each, run in self.ids.items() if series not in (None, each)}
        self.ids = others | runs_named(found.values(), self.run_id)
        state = RunState.read_from(
            found.values(), self._data, self.saves.get, lambda series: self.run_id or self.ids.get(series)
        )
        return replace(state, names=names, linked=self._linked, unread=self._unread, unread_notes={**self.saves.unread})

    def record(self, name: str, folder: Folder | None = None) -> Record | None:
        """One checkpoint as its folder is now, or was listed; None if it holds nothing of one."""
        record = self._look(name, folder)
        if name in self._unread:
            raise self._unread[name]
        return record and seen_from(record, self.run_id or self.ids.get(record.series), self.saves.get)

    def settle_id(self, records: Iterable[Record]) -> str | None:
        """Which run this is, by its checkpoints; None if none says so. Raises ParameterError if they are of several,
        and why they cannot be read if that is why none says it.
        """
        if self.run_id is None:
            found: dict[str, str] = {}
            for record in records:
                ours = record.complete and record.verified and not record.copy_of and record.version is None
                if ours and record.run:
                    found[record.run] = record.name
            if len(found) > 1:
                shown = "; ".join(f"{run}, as {name}" for run, name in list(found.items())[:5])
                raise ParameterError(
                    f"checkpoints of {len(found)} runs lie in one folder ({shown}), so it is not clear which run this "
                    "is: pass run_id= with the one that is meant, or move the others away",
                    file=self.storage.label(),
                )
            self.run_id = next(iter(found), None)
            unread = [each.name for each in records if each.name in self._unread and each.name not in named_to_skip()]
            if unread and not found:
                raise self._unread[unread[-1]]
        return self.run_id

    def side_by_side(self, call: Callable[[Any], Any], each: Iterable[Any]) -> Iterator[Any]:
        """What `call` returns for each, in their order: in an object store some at a time."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from (map if self.storage.near else pool.map)(call, each)

    def folder(self, name: str, files: Entries | None = None) -> Folder:
        """A folder as it is now, or with these `files`, where they have just been listed."""
        if self.storage.is_link(name):
            where, base = run_of(self.storage.child(name))
            return Folder(name, where.child(base), where.files_below(base), self.authority, True)
        listed = self.storage.files_below(name) if files is None else files
        return Folder(name, self.storage.child(name), listed, self.authority)

    def is_still(self, record: Record, folder: Folder) -> bool:
        """Whether a folder holds what a record says; looked at again unless its metadata is the same file as then."""
        near = self.storage.near
        mark = self.storage.fingerprints(record.name, _MARKED)[1] if near else listing_mark(folder.files)
        if mark and not record.link and not any(map(SUPPLEMENT.fullmatch, folder.top)):
            known = self._known.get(record.name)
            if known is not None and known[0].endswith(f"/{mark}") and known[1].save_id == record.save_id:
                return True
        now = self.record(record.name, folder)
        return now is not None and now.state == record.state

    def _list(self) -> list[str]:
        """Find the folders that may be checkpoints; returns the links to folders."""
        folders, base = self.storage.folders(), self.storage.real()
        self.names = [name for name, target in folders.items() if target is None and is_numbered(name)]
        links = {name: os.path.split(target) for name, target in folders.items() if target is not None}
        self._linked = {name: link for link, (folder, name) in links.items() if folder == base}
        return [*links]

    def _look_at(self, names: Collection[str], found: dict[str, Record]) -> None:
        """What these folders say themselves."""
        files = files_of_many(self.storage, names)

        def look_at(name: str) -> tuple[str, Record | None]:
            listed = not self.storage.near and is_literal(self.storage, name)
            return name, self._look(name, self.folder(name, files(name)) if listed else None)

        for name, record in self.side_by_side(look_at, names):
            found.pop(name, None)
            if record is not None:
                found[name] = record

    def _look(self, name: str, folder: Folder | None = None) -> Record | None:
        self._unread.pop(name, None)
        self._data.pop(name, None)
        try:
            self.storage.check_literal(name)
        except ParameterError as error:  # it cannot be listed, and nobody is to take its run for an empty one
            return Record(name, verified=False, note=error.message)
        mark = self._mark(name)  # first: a change during the look has another one
        try:
            folder = folder or self.folder(name)
            record = folder.record()
            if not folder.files and not folder.is_link:
                self.check_there(name)
        except (OSError, errors.ForeignError, errors.ReplacedError, UnsupportedError) as error:
            if isinstance(error, OSError):
                error.filename = error.filename or self.storage.label(name)
            self._unread[name] = error
            return Record(name, verified=False, note=f"{type(error).__name__}: {error}", unread=True)
        if folder.is_link and not folder.files:
            note = f"a link to {folder.place.label()}, which is empty or not there: mount it, or remove the link"
            return Record(name, kind="foreign", newer=True, link=folder.place.label(), note=note)
        self._known.pop(name, None)
        lasts = record is not None and record.complete and record.verified and not (record.note or record.other_notes)
        # a save that is under way may be killed once it has published, before its note has another tag
        if record is not None and lasts and mark is not None and SAVING not in folder.top:
            self._known[name] = mark if self.storage.near else mark + listing_mark(folder.files), record
        if record is None or record.kind == "unfinished":
            data = data_in(folder, saved=self.may_be_lost(folder))
            self._data |= {name: data} if data is not None else {}
        if record is None or not folder.is_link:
            return record
        record, base = replace(record, link=folder.place.label()), self.storage.real()
        trusted = self.authority.strict or os.path.commonpath([base, os.path.dirname(record.link)]) == base
        return record if trusted or not record.verified else replace(record, verified=False, note=record.note or _OUT)

    def check_there(self, name: str) -> None:
        """Raise UnsupportedError if a checkpoint was there, and nothing is; to be asked before anything changes."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if self.storage.near and not any(self.storage.entries(name)):
                self.saves.reload()
                if self.has_published(name):
                    raise UnsupportedError(_AWAY, file=self.storage.label(name))

    def may_be_lost(self, folder: Folder) -> bool:
        """Whether a checkpoint was there, by what is noted of it, and is not what a framework's save has replaced."""
        return not (folder.saving is not None and folder.saving.framework) and self.has_published(folder.name)

    def has_published(self, name: str) -> bool:
        """Whether a checkpoint was there, by what is noted of it."""
        noted = self.saves.get(name)
        return noted is not None and bool(noted.lines)

    def _mark(self, name: str) -> str | None:
        """What changes with a folder: locally with its names, and its metadata or commit record, and in an object store
        with what is noted of its save, before a slash. None if that is not known.
        """
        if self.storage.near:
            folder, file = self.storage.fingerprints(name, _MARKED)
            return None if folder is None or file is None else f"{folder}/{file}"
        mark = self.saves.names.get(name)
        return None if mark is None else f"{mark}/"


def written(run: Run, name: str) -> float:
    """When the data of a checkpoint was last written to; what damaged its metadata may have written to that."""
    try:
        files = run.folder(name).files.items()
    except OSError:  # a folder that cannot be listed may be the newest
        return math.inf
    data = [file.written or 0.0 for path, file in files if not is_metadata_name(path) and path[0] != "."]
    return max(data, default=0.0)


def listing_mark(files: Entries) -> str:
    """What changes with the metadata or commit record in a folder of an object store; "" if that has no tags."""
    tags = [checksum_of(files[name]) for name in (GLOBAL, COMMIT) if name in files]
    return "" if None in tags else "+".join(map(str, tags))


def list_checkpoints(
    run: Location, *, run_id: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> list[Record]:
    """The checkpoints in a run's folder, complete or not, the oldest first.

    No key is needed, and nothing is verified: records are the checkpoints' own claims. Hidden folders are
    left out, and those whose names have no number or are not UTF-8. Folders of other formats, such as Hugging Face's,
    are listed if there are no complete DCP checkpoints, and none committed to a `CheckpointManager`.

    Parameters
    ----------
    run : path, str or Storage
        The folder that holds the checkpoints' folders, or its URL.
    run_id : str, optional
        Which run this is, if the folder holds checkpoints of several. By default that of the newest checkpoint, for
        each series of names separately.
    storage_options : mapping, optional
        fsspec's, for the URL.

    Raises
    ------
    NoCheckpointError, UnsupportedError
        If there is no such folder; if it is a file, or a checkpoint.
    OSError, ForeignError
        If the storage cannot be reached.
    """
    named = Run.at(run, storage_options, run_id)
    records = read_named(named).records
    others = [] if any(each.complete for each in records) else of_other_formats(named, records)
    return sorted([*records, *others], key=lambda record: record.order)


def read_named(run: Run) -> RunState:
    """What is in a run that somebody has named, as `Run.read`; raises as `list_checkpoints`."""
    storage = run.storage
    check_folder(storage)
    state = run.read()
    if any(record.kind == "own" for record in state.records):  # what else there is need not be listed
        return state
    parts = parts_of(storage, 0)
    of_framework = not _OF_CHECKPOINTS.isdisjoint(storage.names(()))
    if not of_framework and (not parts or any(map(is_numbered, storage.folders()))):
        return state
    what = "this is a checkpoint, and not a run;"
    if not of_framework and "" not in parts:
        what = f"there are no folders of checkpoints here, only files ({some(parts)}); if they are a checkpoint,"
    raise UnsupportedError(
        f"{what} the run is the folder that it lies in: `streamxf list {shlex.quote(run_of(storage)[0].label())}` "
        "shows what is there",
        file=storage.label(),
    )


def of_other_formats(run: Run, records: Collection[Record]) -> Iterator[Record]:
    """The whole checkpoints of other formats, which say nothing of themselves, besides `records`; the newest first."""
    names = {name for name in run.storage.folders() if is_numbered(name)} - {each.name for each in records}
    for record in sorted(map(Record, names), key=lambda each: each.order, reverse=True):
        with suppress(*errors.DAMAGE, FileNotFoundError):
            folder = run.folder(record.name)
            if not folder.files:  # a name that is not literal has none
                continue
            with open_source(folder.place, listing=True) as source:
                found = contents_of(source)
            if not found.incomplete:
                yield replace(record, bytes=sum(found.files.values()), note=str(found.format))


def run_of(checkpoint: Storage) -> tuple[Storage, str]:
    """The folder that a checkpoint's folder lies in, and its name there."""
    return checkpoint.resolved().parent()


def check_folder(storage: Storage) -> None:
    """Raise NoCheckpointError if there is no such folder, UnsupportedError if it is a file."""
    try:
        if not storage.is_folder():
            raise UnsupportedError("this is a file, and not a folder of checkpoints", file=storage.label())
    except FileNotFoundError:
        raise NoCheckpointError("there is no such folder", file=storage.label()) from None
