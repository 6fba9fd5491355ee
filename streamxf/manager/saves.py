"""`SaveNotes`: what is noted of the saves of a run beside their folders, for when one cannot be read."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from streamxf.errors import MetadataError, escaped
from streamxf.manager.notes import ELSEWHERE, Authority, put_note, read, remove_notes
from streamxf.manager.record import Line
from streamxf.notes import SAVES
from streamxf.places import Storage, small_names
from streamxf.writing import RunFacts

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SaveNote:
    """What is noted of the saves of one name.

    - `lines`: that of the checkpoint which is there; of several it is one. Empty if nothing was published there.
    - `coming`: that of a save that was begun, and is not known to have been published or to have failed.
    - `given_up`: the line that has given up what is there, since nobody could read that.
    """

    run: str
    lines: tuple[Line, ...] = ()
    coming: Line | None = None
    given_up: Line | None = None

    def to_json(self, name: str) -> dict[str, Any]:
        # the nonce gives each note a tag of its own in an object store
        coming, given_up = (None if line is None else [*line] for line in (self.coming, self.given_up))
        known = {"lines": [[*line] for line in self.lines], "coming": coming, "given_up": given_up}
        return {"run": self.run, "name": name, **known, "nonce": secrets.token_hex(4)}

    @classmethod
    def of_json(cls, name: str, content: Any) -> SaveNote:
        if content["name"] != name:  # somebody has put it there
            raise MetadataError("it is a note of another checkpoint")
        coming, given_up = (None if content[key] is None else tuple(content[key]) for key in ("coming", "given_up"))
        note = cls(content["run"], tuple(map(tuple, content["lines"])), coming, given_up)
        for line in (*note.lines, note.coming or (), note.given_up or ()):
            RunFacts(note.run, "-", 0, 0.0, line=line).to_json()  # raises where it could be none
        return note

    def begin(self, before: tuple[Line, ...] | None, line: Line) -> SaveNote:
        """A save begins, over a checkpoint of one of the lines `before`; if None, as noted."""
        known = self.lines if before is None else before
        if self.coming is not None and before is None and known:
            known = tuple(dict.fromkeys((*known, self.coming)))
        return replace(self, lines=known, coming=line, given_up=self.given_up if known else None)

    def publish(self, line: Line) -> SaveNote:
        """The save was published."""
        return SaveNote(self.run, (line,))

    def fail(self) -> SaveNote | None:
        """The save has failed, and what was there before is still there, if anything was."""
        return replace(self, coming=None) if self.lines or self.given_up is not None else None

    def give_up(self, line: Line) -> SaveNote:
        """It is no part of a line, whatever it is."""
        return replace(self, given_up=line)


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
                self._names = {name: each.tag for name, each in small_names(self._storage, SAVES).items()}
            except OSError as error:
                self.unread[""] = error
        return self._names

    def get(self, name: str) -> SaveNote | None:
        """What is noted of a checkpoint; None if nothing is, or it cannot be read."""
        if name in self.names and name not in self._found:
            self._found[name] = None
            try:
                noted, doubt = read(self._storage, f"{SAVES}/{name}", partial(SaveNote.of_json, name), self._authority)
                self._found[name] = None if doubt else noted
            except (OSError, *ELSEWHERE) as error:
                if isinstance(error, OSError):
                    error.filename = self._storage.label(f"{SAVES}/{name}")
                if not isinstance(error, FileNotFoundError):
                    self.unread[name] = error
            except Exception as error:  # whatever somebody has put there
                _log.debug("%s", escaped(f"{self._storage.label(SAVES)}: {type(error).__name__}: {error}"))
        return self._found.get(name)

    def change(self, name: str, run: str, change: Callable[[SaveNote], SaveNote | None]) -> None:
        """Note what becomes of what is noted; None is nothing. Raises OSError."""
        if (noted := change(replace(self.get(name) or SaveNote(run), run=run))) is None:
            self.drop([name])
        else:
            self._put(name, noted)

    def touch(self, name: str) -> None:
        """What is in the folder changes, by no save. Raises OSError."""
        self.reload()  # or a note that another job has put since would go
        if not self._storage.near and (noted := self.get(name)) is not None:
            self._put(name, noted)

    def drop(self, names: Iterable[str]) -> None:
        """Remove what is noted of these, if anything is. Raises OSError."""
        if noted := [name for name in names if name in self.names]:
            remove_notes(self._storage, [f"saves/{name}" for name in noted])
            for name in noted:
                for known in (self.names, self._found):
                    known.pop(name, None)

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
