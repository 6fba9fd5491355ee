"""Notes of a run, and `Authority`: what shows that one of them, or a checkpoint, is this job's own.

In a checkpoint's folder, beside its files, those of `streamxf.checkpoint.notes`. In ``.streamxf`` what may be lost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from streamxf.checkpoint.notes import parse_note, seal_note
from streamxf.checkpoint.publish import RUN_FILE
from streamxf.codecs.encrypt import Encrypt
from streamxf.errors import (
    ForeignError,
    KeyMissingError,
    KeyServiceError,
    MetadataError,
    ParameterError,
    StreamxfError,
    UnsupportedError,
    escaped,
)
from streamxf.format.limits import MAX_NOTE
from streamxf.format.run import RunFacts
from streamxf.keys import VerifyKey
from streamxf.manager.record import Line, Record
from streamxf.manager.removal import remove_entry
from streamxf.places import Entries, Storage, StorageEntry, put_small, read_small, small_files, small_names
from streamxf.reading import Access
from streamxf.storage.small import MOST_BYTES
from streamxf.wording import some

BLIND = "no key here can verify it"
ANY = "*"  # a folder's mark where its storage tells none at a glance
_CHANGED = "-"  # that of one which has just been changed, and has no mark yet
_GONE = ["", ""]  # the row of a folder of which nothing is known any longer
_ROOM = MOST_BYTES - 2**10  # of a file, for its rows
_FILES = 16  # from so many on they become one


class Authority:
    """Without keys everything counts. With keys, or `Encrypt` in the chain, only what they authenticate does: as a
    reader would, with the job's keys; by its signature, where the job can only write and sign; and where it can only
    write, only what this process has published itself. If it is `unverified`, everything counts all the same.

    - `access`: of the job's readers; `encryption`, of its writers, vouches for notes.
    - `strict`: whether what is not authenticated does not count.
    - `published`: the saves that this process has published: of each id, which stands in clear there, the folder.
    """

    def __init__(self, access: Access, encryption: Encrypt | None = None, *, unverified: bool = False) -> None:
        self.access = access
        self.strict = (len(access.keys) > 0 or access.refuses_plaintext) and not unverified
        self.published: dict[str, str] = {}
        self.reads = any(key.unwraps for key in access.keys)
        self._trust: Iterable[VerifyKey] = access.keys.trust
        if encryption is not None and encryption.signer is not None and not self.reads:
            self._trust = (encryption.signer.verify_key,)
        if encryption is not None and self.reads:
            _check_resumes(encryption, access)
        if encryption is None and (vouching := [key for key in access.keys if key.vouches]):
            encryption = Encrypt(vouching)
        self._encryption = encryption
        self._session: tuple[int, Encrypt] | None = None
        self.sealed: set[bytes] = set()  # digests

    @property
    def vouches(self) -> bool:
        """Whether what it seals would count for itself later."""
        return not self.strict or (self._encryption is not None and (self.reads or bool(self._trust)))

    @property
    def blind(self) -> bool:
        """Whether nothing that others published can be verified here."""
        return self.strict and not self.reads and not self._trust

    def has_published(self, save_id: str | None, name: str) -> bool:
        """Whether a checkpoint counts since this process saved it, which nothing else shows."""
        return self.blind and save_id is not None and self.published.get(save_id) == name

    def check_reads(self, what: str) -> None:
        """Raise KeyMissingError if the job encrypts to keys that it does not hold, so that it cannot load."""
        if self.strict and not self.reads:
            raise KeyMissingError(
                f"{what} is there, and this job holds no key that reads it: it only encrypts. Give the key by keys=, "
                "or begin in an empty folder; resume(state, plaintext=True) loads an unencrypted checkpoint"
            )

    def doubt(self, check: Callable[[Access], object], signed_by: Callable[[Iterable[VerifyKey]], bool]) -> str:
        """Why something does not count; "" if it does. Raises KeyServiceError if a service that knows is silent."""
        if not self.strict:
            return ""
        try:
            if self.reads:
                check(self.access)
            elif not self._trust:
                return BLIND
            elif not signed_by(self._trust):
                return "it is not signed by this job's signer"
        except (KeyServiceError, ForeignError):  # of a service or a server, which says nothing of what is stored
            raise
        except StreamxfError as error:
            return error.message
        return ""

    def seal(self, content: Any, make: Callable[[Any], object], most: int = MAX_NOTE) -> bytes:
        """A note of at most so many bytes, vouched for as checkpoints are; MetadataError if `make` refuses it."""
        encryption = self._encryption if self.strict else None
        if encryption is not None and (self._session is None or self._session[0] != os.getpid()):
            self._session = os.getpid(), encryption.renew()
        data = seal_note(content, self._session[1] if encryption is not None and self._session is not None else None)
        parse_note(data, most).said(make)
        if self.blind:
            self.sealed.add(hashlib.sha256(data).digest())
        return data


def _check_resumes(encryption: Encrypt, access: Access) -> None:
    """Raise ParameterError if the job, started again, could not read what it saved, and would go on from before it."""
    given = [key for key in access.keys if key.unwraps]
    if {(key.kind, key.id) for key in given}.isdisjoint((key.kind, key.id) for key in encryption.recipients):
        raise ParameterError(
            f"the chain encrypts to {some(key.id for key in encryption.recipients)}, and keys= reads "
            f"{some(key.id for key in given)} alone: a second start could not resume from what this one saves. Give "
            "both keys, as in keys=[new, old]"
        )


FOLDER = ".streamxf"
_LINES = f"{FOLDER}/lines"

_NONE: frozenset[str] = frozenset()
_log = logging.getLogger(__name__)

T = TypeVar("T")


def put_note(storage: Storage, authority: Authority, file: str, content: Any, make: Callable[[Any], object]) -> None:
    """Put a note into ``.streamxf``, or replace it. Raises OSError, and as `Authority.seal`."""
    put_small(storage, f"{FOLDER}/{file}", authority.seal(content, make, MOST_BYTES), sync=False)


def remove_notes(storage: Storage, files: Iterable[str]) -> None:
    remove_entry(storage, *(f"{FOLDER}/{file}" for file in files))


def notes_in(storage: Storage, authority: Authority, names: str, make: Callable[[Any], T]) -> dict[str, T]:
    """The notes in ``.streamxf`` with names that match a pattern, by name, without malformed and unvouched ones."""
    found = {}
    for file, data in small_files(
        storage, FOLDER, lambda name: re.fullmatch(names, name, re.ASCII) is not None
    ).items():
        try:
            note = parse_note(data, MOST_BYTES)
            if not authority.doubt(note.check, note.signed_by):
                found[file] = note.said(make)
        except (MetadataError, UnsupportedError) as error:
            _log.debug("%s", escaped(f"{storage.label(file)} is ignored: {error.message}"))
    return found


def read(child: Storage, file: str, make: Callable[[Any], T], authority: Authority) -> tuple[T | None, str]:
    """A note in a checkpoint's folder, None if there is none, and why it does not count, if it does not. What the job's
    keys do not verify is None, too, unless there are none that could. Raises MetadataError if it is damaged.
    """
    data = read_small(child, file, MAX_NOTE)
    if data is None:
        return None, ""
    note = parse_note(data)
    if authority.blind and hashlib.sha256(data).digest() in authority.sealed:  # this process made it
        return note.said(make), ""
    doubt = authority.doubt(note.check, note.signed_by)
    return (None if doubt and not authority.blind else note.said(make)), doubt


def mark_of(entry: StorageEntry) -> str:
    """What changes when a listed file is written to."""
    return f"{entry.size} {entry.tag or entry.written or ''}"


def is_framework_file(path: str) -> bool:
    """Whether a file below a checkpoint's folder is none of the manager's own."""
    return not RUN_FILE.fullmatch(path.rpartition("/")[2])


def written_since(files: Entries, before: Mapping[str, str], known: Iterable[str] = ()) -> dict[str, StorageEntry]:
    """The files that a save wrote: those that were not there before, have changed since, or are `known` to be its."""
    also = set(known)
    return {
        path: entry
        for path, entry in files.items()
        if is_framework_file(path) and (path in also or before.get(path) != mark_of(entry))
    }


class LineNote(NamedTuple):
    """Of which run a checkpoint is by a note, and of which line: of one of several while a save may replace another."""

    run: str
    lines: tuple[Line, ...]


class LineNotes:
    """Of which line each checkpoint of a later line than the first is, in ``.streamxf/lines``, in a file for each name:
    for when its metadata cannot be read.
    """

    def __init__(self, storage: Storage, authority: Authority) -> None:
        self._storage, self._authority = storage, authority
        self.unread: Exception | None = None
        """Why some could not be read, if so."""
        self._names: set[str] | None = None
        self._found: dict[str, LineNote | None] = {}

    @property
    def names(self) -> set[str]:
        """The checkpoints of which something is noted."""
        if self._names is None:
            self._names = set()
            try:
                self._names = set(small_names(self._storage, _LINES))
            except OSError as error:
                self.unread = error
        return self._names

    def get(self, name: str) -> LineNote | None:
        """What is noted of a checkpoint; None if nothing is, or it cannot be read."""
        if name in self.names and name not in self._found:
            self._found[name] = None
            try:
                noted, doubt = read(self._storage, f"{_LINES}/{name}", partial(_line_of, name), self._authority)
                self._found[name] = None if doubt else noted
            except (OSError, ForeignError, KeyServiceError) as error:
                if isinstance(error, OSError):
                    error.filename = self._storage.label(f"{_LINES}/{name}")
                if not isinstance(error, FileNotFoundError):
                    self.unread = error
            except Exception as error:  # whatever somebody has put there
                _log.debug("%s", escaped(f"{self._storage.label(_LINES)}: {type(error).__name__}: {error}"))
        return self._found.get(name)

    def put(self, run: str, lines: Mapping[str, tuple[Line, ...]]) -> None:
        """Note lines, by names; the first alone only where another was noted. Raises OSError."""
        for name, possible in lines.items():
            if self._authority.vouches and (any(possible) or name in self.names):
                content = {"run": run, "name": name, "lines": [[*line] for line in possible]}
                try:
                    put_note(self._storage, self._authority, f"lines/{name}", content, partial(_line_of, name))
                except BaseException:
                    with suppress(Exception):  # or what was noted of an earlier save would count for this one
                        self.drop([name])
                    raise
                self.names.add(name)
                self._found[name] = LineNote(run, possible)

    def drop(self, names: Collection[str]) -> None:
        """Remove what is noted of these. Raises OSError."""
        if names:
            remove_notes(self._storage, [f"lines/{name}" for name in names])
            self.reload()

    def reload(self) -> None:
        """Read again what others may have noted since."""
        self.unread, self._names, self._found = None, None, {}


def _line_of(name: str, content: Any) -> LineNote:
    if content["name"] != name:  # somebody has put it there
        raise MetadataError("it is a note of another checkpoint")
    noted = LineNote(content["run"], tuple(map(tuple, content["lines"])))
    for line in noted.lines:
        RunFacts(noted.run, "-", 0, 0.0, line=line).to_json()  # raises where it could be none
    if not noted.lines:
        raise MetadataError("it names no line")
    return noted


class RowCache:
    """What looks into the folders of a run have found, remembered in ``.streamxf/rows-*``, loaded when first asked for.

    A row counts only while its folder has the same mark, and where there are keys only if they vouch for its file; to
    lose them all costs time alone. Object stores list folders without marks, so there it counts as long as the folder
    is there, unless a mount of it was seen. In any case what is to be removed or resumed from is looked at itself.
    """

    def __init__(self, storage: Storage, authority: Authority) -> None:
        self._storage = storage
        self._authority = authority
        self._files: set[str] | None = None
        self._stored: dict[str, list[Any]] = {}
        self._known: dict[str, tuple[str, Record]] = {}
        self._seen: set[str] = set()  # of those, what this process has looked at
        self._new: set[str] = set()

    def get(self, name: str, mark: str | None, *, looked: bool) -> Record | None:
        """What was found when the folder had this mark; if need be only if this process has `looked` at it."""
        if mark is None or (looked and name not in self._seen):
            return None
        self._load()
        if (known := self._known.get(name)) is None and (row := self._stored.get(name, _GONE)) != _GONE:
            with suppress(Exception):  # whatever somebody has put there
                known = self._known[name] = str(row[0]), _unpacked(name, row[1])
        return known[1] if known is not None and (known[0] == mark or (mark == ANY and known[0][:1] == "/")) else None

    def has(self, name: str) -> bool:
        """Whether a checkpoint was there when the folder was looked at last, whatever is there now."""
        self._load()
        return name in self._known or self._stored.get(name, _GONE) != _GONE

    def known(self, name: str, *, looked: bool) -> tuple[str, Record] | None:
        """What was found last, and which mark the folder had; if need be only what this process has `looked` at."""
        return self._known.get(name) if name in self._seen or not looked else None

    def note(self, name: str, mark: str | None, record: Record | None) -> None:
        """Remember what stays true while the folder has this mark, whoever looks; what was known before does not."""
        lasts = record is not None and record.complete and record.verified and not (record.note or record.other_notes)
        if record is None or not lasts or (record.kind == "unclaimed" and record.run):
            if self._known.pop(name, None) or self._stored.get(name, _GONE) != _GONE:
                self._stored[name] = _GONE
                self._new.add(name)
            return
        self._seen.add(name)
        row = mark or _CHANGED, record
        if self._known.get(name) != row:
            self._known[name] = row
            self._new.add(name)

    def save(self, names: Collection[str] | None) -> None:
        """Store what is new; of all rows those of `names`, the folders that are there, stay, or all. Raises OSError."""
        new, self._new = self._new, set()
        if not new or not self._authority.vouches:
            return
        wanted = dict.fromkeys(new, _GONE)
        for name in new & self._known.keys():
            mark, record = self._known[name]
            wanted[name] = [mark, _packed(record)]
        if merges := len(self._load()) >= _FILES:
            self._files, self._stored = None, {}
        old = set(self._load())
        self._stored |= wanted
        if merges:
            there = {*(self._stored if names is None else names)}
            kept = {name: row for name, row in self._stored.items() if name in there}
            wanted = self._stored = {name: row for name, row in kept.items() if row != _GONE}
        self._put(wanted)
        if merges:
            remove_notes(self._storage, old)
            self._load().difference_update(old)

    def reload(self) -> None:
        """Read again what others may have noted since. Where folders have no marks, what was found may be old, too."""
        self._files, self._stored = None, {}
        if not self._storage.near:
            self._known, self._seen, self._new = {}, set(), set()

    def drop(self, names: Collection[str], *, known: bool) -> None:
        """Have everybody look again before the rows change, this process but for what is `known`. Raises OSError."""
        self._load()
        if stored := {name: _GONE for name in names if self._stored.get(name, _GONE) != _GONE}:
            self._put(stored)
            self._stored |= stored
        for name in names if not known else ():
            self._known.pop(name, None)

    def _put(self, rows: Mapping[str, list[Any]]) -> None:
        part: dict[str, list[Any]] = {}
        left = _ROOM
        for name, row in [*rows.items(), ("", [])]:
            left -= (size := len(json.dumps([name, row])))
            if part and (left < 0 or not name):
                file = f"rows-{secrets.token_hex(8)}"
                put_note(self._storage, self._authority, file, {"time": time.time_ns() // 1000, "rows": part}, _rows_of)
                self._load().add(file)
                part, left = {}, _ROOM - size
            part[name] = row

    def _load(self) -> set[str]:
        """The files of all rows that count, read the first time; of one name, the rows stored later hold."""
        if self._files is None:
            found = notes_in(self._storage, self._authority, r"rows-[\w-]+", _rows_of)
            self._files = set(found)
            for _, rows in sorted(found.values(), key=lambda each: each[0]):
                self._stored |= rows
        return self._files


def _rows_of(content: Any) -> tuple[int, dict[str, list[Any]]]:
    return int(content["time"]), {name: row for name, row in content["rows"].items() if len(row) == 2}


def _packed(record: Record) -> str:
    """In one string, which is read ten times as fast as an object."""
    told: list[Any] | None = None
    if record.kind == "own":
        told = [record.run, record.copy_of, record.rules, *([record.line] if record.line else [])]
    return json.dumps([record.save_id, record.time, record.bytes, record.metrics, told], separators=(",", ":"))


def _unpacked(name: str, row: str) -> Record:
    save_id, when, size, metrics, told = json.loads(row)
    run, copy_of, rules, *line = told or (None, "", {})
    return Record(
        name,
        None if when is None else float(when),
        None if size is None else int(size),
        None if metrics is None else {metric: float(value) for metric, value in metrics.items()},
        "unclaimed" if told is None else "own",
        save_id and str(save_id),
        None if told is None else str(run),
        copy_of=str(copy_of),
        rules=dict(rules),
        line=tuple(map(int, *line)) if line else (),
    )
