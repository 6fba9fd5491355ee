"""What looks into the folders of a run have found, remembered in ``.streamxf/rows-*``. A row counts only while its
folder has the same mark, and where there are keys only if they vouch for its file; to lose them all costs time alone.
Object stores list folders without marks, so there it counts as long as the folder is there. In any case what is to be
removed or resumed from is looked at itself.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from streamxf.checkpoint.notes import parse_note
from streamxf.errors import StreamxfError
from streamxf.format.run import RunFacts
from streamxf.manager.authority import Authority
from streamxf.storage.removal import remove_entry
from streamxf.storage.small import MOST_BYTES, put_small, small_files
from streamxf.storage.storage import Storage

FOLDER = ".streamxf"

ANY = "*"
"""A folder's mark where its storage tells none at a glance."""

_GONE = ["", ""]  # the row of a folder of which nothing is known any longer
_PREFIX = "rows-"
_ROOM = MOST_BYTES - 2**10  # of a file, for its rows
_FILES = 16  # from so many on they become one

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What a folder says: `written` is when its metadata was, in ms; `doubt` is why it does not count with keys,
    `problem` what is wrong with it in any case, `link` where one leads that stands in its place, and `begun` the run in
    which a framework's save was begun there that has not been committed.
    """

    state: Literal["complete", "unfinished", "removing"] = "complete"
    save_id: str | None = None
    facts: RunFacts | None = None
    written: int | None = None
    bytes: int | None = None
    metrics: Mapping[str, float] | None = None
    doubt: str = ""
    problem: str = ""
    link: str = ""
    begun: str = ""

    @property
    def lasts(self) -> bool:
        """Whether it stays true while the folder has the same mark, whoever looks."""
        return self.state == "complete" and not (self.doubt or self.problem or self.begun)

    def pack(self) -> str:
        """In one string, which is read ten times as fast as an object."""
        facts, metrics = self.facts, None if self.metrics is None else dict(self.metrics)
        told = [facts.run, facts.step, facts.time, facts.name] if facts is not None else None
        return json.dumps([self.save_id, self.written, self.bytes, metrics, told], separators=(",", ":"))

    @classmethod
    def parse(cls, row: str) -> Look:
        """Raises ValueError, TypeError or MetadataError if it is malformed."""
        save_id, written, size, metrics, told = json.loads(row)
        facts = None
        if told is not None:
            run, step, time, name = told
            facts = RunFacts(str(run), str(name), int(step), float(time))
        known = {name: float(value) for name, value in metrics.items()} if metrics is not None else None
        return cls("complete", save_id and str(save_id), facts, written and int(written), size and int(size), known)


class RowCache:
    """The rows of a run, loaded when they are first asked for."""

    def __init__(self, storage: Storage, authority: Authority) -> None:
        self._storage = storage
        self._authority = authority
        self._files: set[str] | None = None
        self._stored: dict[str, list[Any]] = {}
        self._known: dict[str, tuple[str, Look]] = {}
        self._new: set[str] = set()
        self._seen: set[str] = set()

    def get(self, name: str, mark: str | None) -> Look | None:
        """What was found when the folder had this mark."""
        if mark is None:
            return None
        if self._files is None:
            self._load()
        if (known := self._known.get(name)) is None and (row := self._stored.get(name, _GONE)) != _GONE:
            with suppress(Exception):  # whatever somebody has put there
                known = self._known[name] = str(row[0]), Look.parse(row[1])
        return known[1] if known is not None and mark in (known[0], ANY) else None

    def known(self, name: str, *, looked: bool = False) -> tuple[str, Look] | None:
        """What was found last, and which mark the folder had; if need be only what this process has `looked` at."""
        return self._known.get(name) if name in self._seen or not looked else None

    def note(self, name: str, mark: str | None, look: Look | None) -> None:
        """Remember it, if it lasts; what was known before does not."""
        if mark is None or look is None or not look.lasts:
            if self._known.pop(name, None) or self._stored.get(name, _GONE) != _GONE:
                self._stored[name] = _GONE
                self._new.add(name)
            return
        self._seen.add(name)
        if self._known.get(name) != (mark, look):
            self._known[name] = mark, look
            self._new.add(name)

    def save(self, names: Collection[str]) -> None:
        """Store what is new; of all rows those of `names`, the folders that are there, stay. Raises OSError."""
        new, self._new = self._new, set()
        if not new or not self._authority.vouches:
            return
        if self._files is None:
            self._load()
        assert self._files is not None
        old, wanted = set(self._files), dict.fromkeys(new, _GONE)
        for name in new & self._known.keys():
            mark, look = self._known[name]
            wanted[name] = [mark, look.pack()]
        self._stored |= wanted
        merges = len(old) >= _FILES
        if merges:
            there = set(names)
            wanted = self._stored = {name: row for name, row in self._stored.items() if name in there and row != _GONE}
        self._put(wanted)
        if merges:
            remove_entry(self._storage, *(f"{FOLDER}/{file}" for file in old))
            self._files -= old

    def drop(self, names: Collection[str], *, known: bool) -> None:
        """Have everybody look again, before what the rows say changes; this process, too, unless it is to remember what
        is `known`. Raises OSError.
        """
        if self._files is None:
            self._load()
        assert self._files is not None
        if stored := {name: _GONE for name in names if self._stored.get(name, _GONE) != _GONE}:
            self._put(stored)
            self._stored |= stored
        for name in names if not known else ():
            self._known.pop(name, None)

    def _put(self, rows: Mapping[str, list[Any]]) -> None:
        assert self._files is not None
        part: dict[str, list[Any]] = {}
        left = _ROOM
        for name, row in [*rows.items(), ("", [])]:
            left -= (size := len(json.dumps([name, row])))
            if part and (left < 0 or not name):
                file = f"{_PREFIX}{secrets.token_hex(8)}"
                content = {"time": time.time_ns() // 1000, "rows": part}
                put_small(self._storage, f"{FOLDER}/{file}", self._authority.seal(content), sync=False)
                self._files.add(file)
                part, left = {}, _ROOM - size
            part[name] = row

    def _load(self) -> None:
        """All rows that count; of one name, those that were stored later."""
        files = small_files(self._storage, FOLDER, lambda name: name.startswith(_PREFIX))
        self._files, found = set(files), []
        for file, data in files.items():
            try:
                note = parse_note(data, MOST_BYTES)
                if not self._authority.doubt_of(note):
                    rows = {name: row for name, row in note.content["rows"].items() if len(row) == 2}
                    found.append((int(note.content["time"]), rows))
            except (StreamxfError, AttributeError, KeyError, TypeError, ValueError) as error:
                _log.debug("%s is ignored: %s", self._storage.full(f"{FOLDER}/{file}"), error)
        for _, rows in sorted(found, key=lambda each: each[0]):
            self._stored |= rows
