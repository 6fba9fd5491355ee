"""Pins: an increment whose files cannot be linked into its folder names those in its base's, and a *pin* keeps them.

A pin is an empty file in the base's folder, whose name says which save needs something there, and its folder. Who saves
puts it, and then looks at the base once more; who removes looks at pins last, so that one of the two sees the other.
It counts as long as that save is in that folder, and for a day, since that may be under way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import read_metadata
from streamxf.errors import ParameterError, StreamxfError
from streamxf.format.index import Index
from streamxf.format.names import GLOBAL, PIN, pin_name
from streamxf.storage.storage import BESIDE, Storage

Pin = Callable[[Storage, str, str], str]
"""What puts a pin into a base's folder, for the save with an id, to a folder of that name beside it; why it may not,
or "". Whoever gives it to a writer sees to it that nobody removes what is pinned.
"""


@dataclass(frozen=True)
class Pins:
    """The saves beside a `folder` that need files there, each by the name of its folder with its index; None while
    nothing is there that can be read, so that it may need anything.
    """

    folder: Storage
    by: Mapping[str, Index | None]

    @classmethod
    def of(cls, folder: Storage, names: Iterable[str] | None = None) -> Self:
        """Who knows the `names` in the folder need not have it listed."""
        folder, found = folder.resolved(), dict[str, Index | None]()  # indexes have its own name, and no link's
        pins = [match for name in (folder.names(()) if names is None else names) if (match := PIN.fullmatch(name))]
        for match in pins:
            index, unread = _index_of(folder, match["folder"])
            if index is not None and index.save_id == match["save"]:
                if folder.name in index.beside:
                    found.setdefault(match["folder"], index)  # but not over that of a save that is to replace it
            elif unread or not folder.older_than([match[0]], folder.DAY):
                found[match["folder"]] = None
        return cls(folder, found)

    @staticmethod
    def name(save_id: str, folder: str) -> str:
        """That of a pin of the save with this id, in the folder of that name."""
        return pin_name(save_id, folder)

    def needed(self, names: Collection[str]) -> set[str]:
        """Those among the `names` in the folder that must stay there, the pins among them."""
        if None in self.by.values():
            return {name for name in names if name.endswith(".distcp") or PIN.fullmatch(name)}
        paths = {path for index in self.by.values() if index is not None for path in index.files}
        beside = {name for name in names if f"{BESIDE}{self.folder.name}/{name}" in paths}
        return beside | {name for name in names if (pin := PIN.fullmatch(name)) and pin["folder"] in self.by}


def not_needed(folder: Storage, names: Collection[str]) -> list[str]:
    """Those among the `names` in a folder that no save beside it needs."""
    kept = Pins.of(folder).needed(names)
    return [name for name in names if name not in kept]


def _index_of(folder: Storage, name: str) -> tuple[Index | None, bool]:
    """The index in a folder beside; whether there is metadata that cannot be read."""
    run = folder.beside("")[0]
    try:
        run.check_literal(name)
    except ParameterError:  # nothing was ever saved there
        return None, False
    try:
        return read_metadata(run.child(name), GLOBAL, Access(), listing="root").index, False
    except (FileNotFoundError, NotADirectoryError):
        return None, False
    except (StreamxfError, OSError):
        return None, True
