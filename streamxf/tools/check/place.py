"""`check_place`: what a place for checkpoints can do, as it is known and as it is seen, with what follows."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from streamxf.errors import ParameterError, UnsupportedError
from streamxf.places import Abilities, Mount, Storage
from streamxf.tools.check.conformance import ConformanceError
from streamxf.tools.check.observed import observe_abilities, weaker_than
from streamxf.tools.check.storage import check_needs

_LATER = "no save over a checkpoint; rules keep all that was saved within ten minutes, and two complete ones older"
_RACE = "of two saves to one folder at the same moment, one may be lost"


@dataclass(frozen=True)
class PlaceReport:
    """What a place can do.

    - `path`: its path or URL; `mount`: where a local one comes from.
    - `known`, `seen`: its abilities before anything was tried, and those seen, by name: None if a second cannot tell.
    - `problem`: what streamxf needs and the place lacks; None if nothing is missing, or nothing was tried.
    """

    path: str
    mount: Mount | None
    known: Abilities
    seen: dict[str, Any]
    problem: str | None = None

    @property
    def weaker(self) -> list[str]:
        """The names of what was seen to be less than it is known for: that would do harm."""
        return weaker_than(self.seen, self.known)

    @property
    def stronger(self) -> list[str]:
        """The names of what is not known, and was seen; but for what the first save sees itself."""
        names = (name for name, value in self.seen.items() if value and name not in ("creates", "replaces"))
        return [name for name in names if getattr(self.known, name) is None]

    @property
    def ok(self) -> bool:
        return self.problem is None and not self.weaker

    @property
    def abilities(self) -> Abilities:
        """Those that count: what was seen to be less is less, and on conditions a first put shows the same."""
        counts = {*self.weaker, "creates", "replaces"} & self.seen.keys()
        return Abilities(**{**asdict(self.known), **{name: self.seen[name] for name in counts}})

    @property
    def consequences(self) -> dict[str, str]:
        """What streamxf does for want of an ability, by its name."""
        can = self.abilities
        of_locks = {
            None: "no file is locked here, so a job's signs of life alone tell of it, each minute",
            "none": "a job's signs of life alone tell of it, each minute",
            "machine": "a free lock says nothing of another machine's job, whose signs of life tell of it",
        }
        found = {
            "locks": of_locks.get(can.locks, ""),
            "stored": "" if can.stored else _LATER,
            "in_order": "" if can.in_order else _LATER,
            "fresh": "writers and the manager refuse it" if can.fresh is False else "",
            "copies": "" if can.copies else "each write gets bytes of its own",
            "threads": "" if can.threads else "one request at a time",
            "replaces": "" if can.replaces or can.locks == "hosts" else _RACE,
            "in_one_step": "" if can.in_one_step else "a reader may meet half a file; a save over a checkpoint warns",
        }
        return {name: text for name, text in found.items() if text}


def check_place(storage: Storage, second: Storage | None = None, *, look: bool = False) -> PlaceReport:
    """Try what a place can do, in a new folder there, which is removed in the end. Raises ParameterError if it is not
    there, or a file; so of the second, and if both are one mount.

    Parameters
    ----------
    storage : Storage
        The place; what is there already is not touched.
    second : Storage, optional
        The same place, reached in another way, as for `observe_abilities`.
    look : bool
        Whether nothing is tried, and nothing written.
    """
    for each in filter(None, (storage, second)):
        _check_there(each)
    if second is not None and _is_one_view(storage, second):
        raise ParameterError(
            f"{storage.label()} and {second.label()} are one mount, which shows what it has yet to store as if it were "
            "stored: give the URL of what is mounted, or another mount of it"
        )
    known, mount = storage.abilities, storage.mount()
    if look:
        return PlaceReport(storage.label(), mount, known, {})
    name = f"streamxf-check-{uuid4().hex}"
    place, problem, seen = storage.child(name), None, {}
    try:
        storage.check_fresh()
        check_needs(place)
        seen = observe_abilities(place, second and second.child(name))
    except (ConformanceError, UnsupportedError) as error:
        problem = str(error)
    finally:
        place.remove_all()  # an interrupt may have come while it was removed
        for each in [] if second is None or seen.get("stored") else [second.child(name)] * 5:
            time.sleep(1)  # a cache may yet send what the first has removed
            each.remove_all()
    return PlaceReport(storage.label(), mount, known, seen, problem)


def _check_there(storage: Storage) -> None:
    """Whoever makes what is missing leaves it. Object stores have no empty folders, but their buckets are there."""
    place = storage
    with suppress(PermissionError):  # who writes is told
        while place.path.strip("/") and not place.exists():
            if not place.abilities.flat or "/" not in place.path.strip("/"):
                raise ParameterError(f"{place.label()} is not there: make it first, or correct its name")
            place, _ = place.parent()
    if storage.exists() and not storage.is_folder():
        raise ParameterError(f"{storage.label()} is a file: give the folder, or the URL, where checkpoints are kept")


def _is_one_view(storage: Storage, second: Storage) -> bool:
    if storage.near and second.near:
        return os.stat(storage.path).st_dev == os.stat(second.path).st_dev
    return storage.location().rstrip("/") == second.location().rstrip("/")
