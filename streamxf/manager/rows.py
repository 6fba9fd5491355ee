"""What looks into the folders of a run have found, remembered in ``.streamxf/rows-*``. A row counts only while its
folder has the same mark, and where there are keys only if they vouch for its file; to lose them all costs time alone.
Object stores list folders without marks, so there it counts as long as the folder is there. In any case what is to be
removed or resumed from is looked at itself.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from streamxf.manager.notes import Authority, notes_in, put_note, remove_notes
from streamxf.manager.record import Record
from streamxf.storage.small import MOST_BYTES
from streamxf.storage.storage import Storage

ANY = "*"
"""A folder's mark where its storage tells none at a glance."""

_GONE = ["", ""]  # the row of a folder of which nothing is known any longer
_ROOM = MOST_BYTES - 2**10  # of a file, for its rows
_FILES = 16  # from so many on they become one


class RowCache:
    """The rows of a run, loaded when they are first asked for."""

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
        return known[1] if known is not None and mark in (known[0], ANY) else None

    def known(self, name: str, *, looked: bool) -> tuple[str, Record] | None:
        """What was found last, and which mark the folder had; if need be only what this process has `looked` at."""
        return self._known.get(name) if name in self._seen or not looked else None

    def note(self, name: str, mark: str | None, record: Record | None) -> None:
        """Remember what stays true while the folder has this mark, whoever looks; what was known before does not."""
        lasts = record is not None and record.complete and record.verified and not (record.note or record.other_notes)
        if mark is None or record is None or not lasts or (record.kind == "unclaimed" and record.run):
            if self._known.pop(name, None) or self._stored.get(name, _GONE) != _GONE:
                self._stored[name] = _GONE
                self._new.add(name)
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
        old, wanted = set(self._load()), dict.fromkeys(new, _GONE)
        for name in new & self._known.keys():
            mark, record = self._known[name]
            wanted[name] = [mark, _packed(record)]
        self._stored |= wanted
        merges = len(old) >= _FILES
        if merges:
            there = set(names)
            wanted = self._stored = {name: row for name, row in self._stored.items() if name in there and row != _GONE}
        self._put(wanted)
        if merges:
            remove_notes(self._storage, old)
            self._load().difference_update(old)

    def drop(self, names: Collection[str], *, known: bool) -> None:
        """Have everybody look again, before what the rows say changes; this process, too, unless it is to remember what
        is `known`. Raises OSError.
        """
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
        """The files of all rows that count, which are read the first time; of one name, those that were stored later
        do.
        """
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
