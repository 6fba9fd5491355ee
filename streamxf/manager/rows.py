"""What looks into the folders of a run have found, remembered in ``.streamxf/rows-*``. A row counts only while its
folder has the same mark, and where there are keys only if they vouch for its file; to lose them all costs time alone.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from streamxf.checkpoint.notes import parse_note
from streamxf.checkpoint.removal import remove_entry
from streamxf.checkpoint.small import put_small, small_files
from streamxf.checkpoint.storage import Storage
from streamxf.errors import MetadataError, StreamxfError
from streamxf.format.run import RunFacts, metrics_json, metrics_of
from streamxf.manager.authority import Authority

FOLDER = ".streamxf"

_PREFIX = "rows-"
_EACH = 2000  # rows of a file, which has less than a mebibyte then
_FILES = 16  # from so many on they become one

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What a folder says: `written` is when its metadata was, in ms; `doubt` is why it does not count with keys,
    `problem` what is wrong with it in any case, and `link` where one leads that stands in its place.
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

    @property
    def lasts(self) -> bool:
        """Whether it stays true while the folder has the same mark, whoever looks."""
        return self.state == "complete" and not self.doubt and not self.problem

    def to_json(self) -> list[Any]:
        metrics = None if self.metrics is None else metrics_json(self.metrics)
        return [self.save_id, self.facts and self.facts.to_json(), self.written, self.bytes, metrics]

    @classmethod
    def of_json(cls, row: Any) -> Look:
        save_id, facts, written, size, metrics = row
        known = metrics_of(metrics) if metrics is not None else None
        return cls("complete", save_id, facts and RunFacts.of_json(facts), written, size, known)


class RowCache:
    """The rows of a run, loaded when they are first asked for."""

    def __init__(self, storage: Storage, authority: Authority) -> None:
        self._storage = storage
        self._authority = authority
        self._stored: dict[str, dict[str, list[Any]]] | None = None  # by file
        self._known: dict[str, tuple[str, Look]] = {}
        self._new: set[str] = set()

    def get(self, name: str, mark: str | None) -> Look | None:
        """What was found when the folder had this mark."""
        if mark is None:
            return None
        if (known := self._known.get(name)) is not None and known[0] == mark:
            return known[1]
        for rows in self._loaded().values():
            if (row := rows.get(name)) is not None and row[0] == mark:
                try:
                    look = Look.of_json(row[1])
                except (MetadataError, TypeError, ValueError):
                    continue
                self._known[name] = mark, look
                return look
        return None

    def note(self, name: str, mark: str | None, look: Look | None) -> None:
        """Remember it, if it lasts."""
        if mark is None or look is None or not look.lasts:
            self._known.pop(name, None)
        elif self._known.get(name) != (mark, look):
            self._known[name] = mark, look
            self._new.add(name)

    def save(self, names: Collection[str]) -> None:
        """Store what is new; of all rows those of `names`, the folders that are there, stay. Raises OSError."""
        new, self._new = self._new & self._known.keys(), set()
        if not new or not self._authority.vouches:
            return
        stored = self._loaded()
        merges = len(stored) >= _FILES
        wanted = sorted(self._known.keys() & set(names) if merges else new)
        made = {}
        for at in range(0, len(wanted), _EACH):
            rows = {name: [self._known[name][0], self._known[name][1].to_json()] for name in wanted[at : at + _EACH]}
            made[f"{_PREFIX}{secrets.token_hex(8)}"] = rows
        for file, rows in made.items():
            put_small(self._storage, f"{FOLDER}/{file}", self._authority.seal({"rows": rows}), sync=False)
        if merges:
            remove_entry(self._storage, *(f"{FOLDER}/{file}" for file in stored))
            stored.clear()
        stored |= made

    def _loaded(self) -> dict[str, dict[str, list[Any]]]:
        if self._stored is None:
            self._stored = {}
            found = small_files(self._storage, FOLDER, lambda name: name.startswith(_PREFIX))
            for file, data in found.items():
                try:
                    note = parse_note(data)
                    rows = {str(name): [*row] for name, row in note.content["rows"].items()}
                    doubt = self._authority.doubt_of(note)
                except (StreamxfError, AttributeError, KeyError, TypeError) as error:
                    _log.debug("%s is ignored: %s", self._storage.full(f"{FOLDER}/{file}"), error)
                    rows, doubt = {}, ""
                self._stored[file] = {} if doubt else rows
        return self._stored
