"""How the manager pins what increments need of a base, where files cannot be linked."""

from __future__ import annotations

from streamxf.errors import StreamxfError
from streamxf.manager.holds import announced_removals
from streamxf.manager.listing import Run
from streamxf.manager.removal import remove_entry
from streamxf.places import Storage
from streamxf.writing import Pins


def pin_base(base: Storage, save_id: str, name: str) -> str:
    """Keep what is in a base's folder for the save with that id, to the folder `name` beside it: a writer's `pin`.
    Returns why it cannot be kept, or "".
    """
    if not (base.abilities.keeps_older and base.abilities.fresh):
        return "its file cannot be linked, and this place may store later what was written, or show what was replaced"
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
