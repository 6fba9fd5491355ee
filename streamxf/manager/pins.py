"""How the manager pins what increments need of a base, where files cannot be linked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from streamxf.errors import StreamxfError, escaped
from streamxf.manager.folder import Folder
from streamxf.manager.holds import announced_removals
from streamxf.manager.listing import Run
from streamxf.manager.record import Record
from streamxf.manager.removal import remove_entry
from streamxf.places import Storage
from streamxf.writing import Pins

_log = logging.getLogger(__name__)
_UNSURE = "its file cannot be linked, and this place may store later what was written, or show what was replaced"


def may_pin(place: Storage) -> bool:
    """Whether a place shows at once who needs what."""
    return bool(place.abilities.keeps_older and place.abilities.fresh)


def pin_base(base: Storage, save_id: str, name: str) -> str:
    """Keep what is in a base's folder for the save with that id, to the folder `name` beside it: a writer's `pin`.
    Returns why it cannot be kept, or "".
    """
    if not may_pin(base):
        return _UNSURE
    run, file = base.beside("")[0], Pins.name(save_id, name)
    try:
        run.check_literal(file)
        base.put(file, b"", sync=False)
        if base.name in announced_removals(Run(run)):
            remove_entry(base, file)
            return "the base is being removed"
    except (OSError, StreamxfError) as error:
        return f"its file cannot be linked, and the base cannot be pinned: {type(error).__name__}: {error}"
    return ""


def who_needs(run: Run, folder: Folder) -> list[str]:
    """The checkpoints that need files in a folder, by its pins, as it was listed; those that nobody vouches for are
    none, once they are there.
    """
    needing: list[str] = []
    for name, index in Pins.of(folder.place, folder.top).by.items():
        found = None if index is None else run.record(name)
        if index is None or (found is not None and found.verified):
            needing.append(name)
        else:
            text = f"{run.storage.label(folder.name)}: a pin of {name} keeps nothing, since that is not verified"
            _log.warning("%s", escaped(text))
    return sorted(needing)


def unpin(run: Run, record: Record) -> None:
    """Take back the pins of a checkpoint that was removed."""
    for base in record.needs:
        try:
            remove_entry(run.storage, f"{base}/{Pins.name(str(record.save_id), record.name)}")
        except (OSError, StreamxfError) as error:  # then they count for a day
            _log.debug("%s: %s", escaped(run.storage.label(base)), error)


def in_turn(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Those that no other of these needs, and then what they needed, so that a kill leaves nothing without its base."""
    left = [*records]
    while left:
        needed = {base for each in left for base in each.needs}
        now = [each for each in left if each.name not in needed] or left
        yield now
        left = [each for each in left if each not in now]
