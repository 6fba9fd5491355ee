"""`Bases`: which checkpoint of a run an incremental save builds on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from streamxf.checkpoint.memory import SaveMemory
from streamxf.errors import ForeignError
from streamxf.manager.pins import may_pin
from streamxf.places import GLOBAL, Storage


class Bases:
    """What incremental saves of one line share: the last one that stores all, and what this process knows of it. Rank 0
    chooses.

    - `every`: every how many saves all is stored; 1 means each.
    - `memory`: None if nothing has to be known.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.memory = SaveMemory(increments=False) if every > 1 else None
        self._names: list[str] = []  # the last whole one, and the newest, which has links to its files
        self._begun = 0  # increments, since then

    def choose(self, run: Storage, name: str, under_way: Sequence[str | None]) -> str | None:
        """The checkpoint whose files the save of `name` may share; None if it has to store all. `under_way` are the
        bases of saves in the background.
        """
        if not (run.abilities.links or may_pin(run)):
            return None
        found = [each for each in self._names if each != name and _is_there(run, each)]
        if not found or (self._begun + 1 >= self.every and None not in under_way):
            return None
        self._begun += 1
        return found[0]

    def published(self, name: str, base: str | None) -> None:
        """Take note of a save."""
        if base is None:
            self._names, self._begun = [name], 0
        else:
            self._names = [*self._names[:1], name]


def _is_there(run: Storage, name: str) -> bool:
    with suppress(OSError, ForeignError):
        return run.exists(f"{name}/{GLOBAL}")
    return False
