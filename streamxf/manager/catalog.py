"""What ``.streamxf`` remembers of a run: `SaveNotes`, for when a folder cannot be read, and `RowCache`, to be quick."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from streamxf.errors import ForeignError, KeyServiceError, MetadataError, escaped
from streamxf.format.run import RunFacts
from streamxf.manager.notes import FOLDER, Authority, notes_in, put_note, read, remove_notes
from streamxf.manager.record import Line, Record
from streamxf.places import Storage, small_names
from streamxf.storage.small import MOST_BYTES

_SAVES = f"{FOLDER}/saves"
_ROOM = MOST_BYTES - 2**10  # of a file, for its rows
_FILES = 16  # from so many on they become one
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SaveNote:
    """What is noted of the saves of one name.

    - `lines`: that of the checkpoint which is there; of several it is one. None if nothing was published there.
    - `coming`: that of a save that was begun, and is not known to have been published or to have failed.
    - `given_up`: the line that has given up what is there, since nobody could read that.
    """

    run: str
    lines: tuple[Line, ...] = ()
    coming: Line | None = None
    given_up: Line | None = None

    def to_json(self, name: str) -> dict[str, Any]:
        # the nonce gives each note a tag of its own in an object store
        one = {key: None if (line := getattr(self, key)) is None else [*line] for key in ("coming", "given_up")}
        lines = [[*line] for line in self.lines]
        return {"run": self.run, "name": name, "lines": lines, **one, "nonce": secrets.token_hex(4)}

    @classmethod
    def of_json(cls, name: str, content: Any) -> SaveNote:
        if content["name"] != name:  # somebody has put it there
            raise MetadataError("it is a note of another checkpoint")
        coming, given_up = (None if content[key] is None else tuple(content[key]) for key in ("coming", "given_up"))
        note = cls(content["run"], tuple(map(tuple, content["lines"])), coming, given_up)
        for line in (*note.lines, note.coming or (), note.given_up or ()):
            RunFacts(note.run, "-", 0, 0.0, line=line).to_json()  # raises where it could be none
        return note


class SaveNotes:
    """What is noted of each save before it begins, and after it, in ``.streamxf/saves``, in a file for each name.

    A folder that cannot be read still has a line then, and one that is empty once held a checkpoint. In an object store
    the tag of the note is the mark of the folder: it changes with each save, and goes before the checkpoint does.
    """

    def __init__(self, storage: Storage, authority: Authority) -> None:
        self._storage, self._authority = storage, authority
        self.unread: dict[str, Exception] = {}
        """Those that could not be read, each with the error; under "" why their folder could not be."""
        self._names: dict[str, str | None] | None = None
        self._found: dict[str, SaveNote | None] = {}

    @property
    def names(self) -> dict[str, str | None]:
        """The checkpoints of which something is noted, each with the tag of the note, if that is known."""
        if self._names is None:
            self._names = {}
            try:
                self._names = {name: each.tag for name, each in small_names(self._storage, _SAVES).items()}
            except OSError as error:
                self.unread[""] = error
        return self._names

    def get(self, name: str) -> SaveNote | None:
        """What is noted of a checkpoint; None if nothing is, or it cannot be read."""
        if name in self.names and name not in self._found:
            self._found[name] = None
            try:
                noted, doubt = read(self._storage, f"{_SAVES}/{name}", partial(SaveNote.of_json, name), self._authority)
                self._found[name] = None if doubt else noted
            except (OSError, ForeignError, KeyServiceError) as error:
                if isinstance(error, OSError):
                    error.filename = self._storage.label(f"{_SAVES}/{name}")
                if not isinstance(error, FileNotFoundError):
                    self.unread[name] = error
            except Exception as error:  # whatever somebody has put there
                _log.debug("%s", escaped(f"{self._storage.label(_SAVES)}: {type(error).__name__}: {error}"))
        return self._found.get(name)

    def begin(self, name: str, run: str, before: tuple[Line, ...] | None, line: Line) -> None:
        """A save begins, over a checkpoint of one of the lines `before`; if None, as noted. Raises OSError."""
        noted = self.get(name) or SaveNote(run)
        known = noted.lines if before is None else before
        if noted.coming is not None and before is None and known:
            known = tuple(dict.fromkeys((*known, noted.coming)))
        self._put(name, SaveNote(run, known, line, noted.given_up if known else None))

    def publish(self, name: str, run: str, line: Line) -> None:
        """The save was published. Raises OSError."""
        self._put(name, SaveNote(run, (line,)))

    def fail(self, name: str) -> None:
        """The save has failed, and what was there before is still there. Raises OSError."""
        noted = self.get(name)
        if noted is not None and (noted.lines or noted.given_up is not None):
            self._put(name, replace(noted, coming=None))
        else:
            self.drop([name])

    def give_up(self, names: Iterable[str], run: str, line: Line) -> None:
        """These are no part of a line, whatever they are. Raises OSError."""
        for name in names:
            self._put(name, replace(self.get(name) or SaveNote(run), given_up=line))

    def touch(self, name: str) -> None:
        """What is in the folder changes, by no save. Raises OSError."""
        if not self._storage.near and (noted := self.get(name)) is not None:
            self._put(name, noted)

    def drop(self, names: Iterable[str]) -> None:
        """Remove what is noted of these, if anything is. Raises OSError."""
        if noted := [name for name in names if name in self.names]:
            remove_notes(self._storage, [f"saves/{name}" for name in noted])
            for name in noted:
                self.names.pop(name), self._found.pop(name, None)

    def reload(self) -> None:
        """Look again at what others may have noted since."""
        self._names, self._found, self.unread = None, {}, {}

    def _put(self, name: str, noted: SaveNote) -> None:
        if not self._authority.vouches:
            return
        self.names[name] = self._found[name] = None
        try:
            make = partial(SaveNote.of_json, name)
            put_note(self._storage, self._authority, f"saves/{name}", noted.to_json(name), make)
        except BaseException:
            with suppress(Exception):  # or what was noted of an earlier save would count for this one
                self.drop([name])
            raise
        self._found[name] = noted


class RowCache:
    """What looks into the folders of a run have found, remembered in ``.streamxf/rows-*``, loaded when first asked for.

    A row counts only while its folder has the same mark, and where there are keys only if they vouch for its file; to
    lose them costs time alone. In any case what is to be removed or resumed from is looked at itself.
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
        """What was found when the folder had a mark that begins so; if need be only if this process has `looked`."""
        if mark is None or (looked and name not in self._seen):
            return None
        self._load()
        if (known := self._known.get(name)) is None and name in self._stored:
            with suppress(Exception):  # whatever somebody has put there
                row = self._stored[name]
                known = self._known[name] = str(row[0]), _unpacked(name, row[1])
        return known[1] if known is not None and known[0].startswith(mark) else None

    def known(self, name: str, *, looked: bool) -> tuple[str, Record] | None:
        """What was found last, and which mark the folder had; if need be only what this process has `looked` at."""
        return self._known.get(name) if name in self._seen or not looked else None

    def note(self, name: str, mark: str | None, record: Record | None) -> None:
        """Remember what stays true while the folder has this mark, whoever looks; what was known before does not."""
        lasts = record is not None and record.complete and record.verified and not (record.note or record.other_notes)
        if record is None or not lasts or mark is None or (record.kind == "unclaimed" and record.run):
            self._load()
            for known in (self._known, self._stored):
                known.pop(name, None)
            self._new.discard(name)
            return
        self._seen.add(name)
        if self._known.get(name) != (mark, record):
            self._known[name] = mark, record
            self._new.add(name)

    def save(self, names: Collection[str]) -> None:
        """Store what is new; of all rows those of `names`, the folders that are there, stay. Raises OSError."""
        new, self._new = self._new, set()
        if not new or not self._authority.vouches:
            return
        wanted = {name: [self._known[name][0], _packed(self._known[name][1])] for name in new}
        if merges := len(self._load()) >= _FILES:
            self._files, self._stored = None, {}
        old = set(self._load())
        self._stored |= wanted
        if merges:
            wanted = self._stored = {name: row for name, row in self._stored.items() if name in {*names}}
        self._put(wanted)
        if merges:
            remove_notes(self._storage, old)
            self._load().difference_update(old)

    def reload(self) -> None:
        """Read again what others may have noted since."""
        self._files, self._stored = None, {}

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
