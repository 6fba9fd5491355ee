"""`note_damage`: a note in a run's folder that a reader has met damage, so that whoever resumes next looks closer."""

from __future__ import annotations

import re
from contextlib import suppress

from streamxf.errors import DAMAGE, IdentityError, escaped
from streamxf.storage.small import put_small, small_names
from streamxf.storage.storage import Storage

NOTES = ".streamxf"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def note_damage(error: BaseException, storage: Storage, save_id: str | None) -> None:
    """`suspect` the checkpoint if an error says that its data is damaged. Where no note can be left, the error says how
    to do without.
    """
    if not isinstance(error, DAMAGE) or isinstance(error, IdentityError):
        return
    if suspect(storage, save_id) is False:
        name = storage.parent()[1]
        text = f"next: set STREAMXF_SKIP={name} to resume from another checkpoint; the run's folder takes no note of it"
        error.add_note(escaped(text))


def suspect(storage: Storage, save_id: str | None) -> bool | None:
    """Leave the note, an empty file, if the checkpoint's folder lies in a run. Best effort: nothing is raised, and no
    link followed.

    Returns whether the note lies there; None if the folder is not in a run.
    """
    name = f"damage-{save_id}" if save_id is not None and _ID.fullmatch(save_id) else None
    try:
        run, _ = storage.parent()
        there = run.exists(NOTES)
        if name is None or not there:
            return False if there else None
        with suppress(FileExistsError):  # another rank's, or something else that must not be opened
            put_small(run, f"{NOTES}/{name}", b"", once=True, sync=False)
        return name in small_names(run, NOTES)
    except Exception:  # whatever a storage's package raises: the damage stays the news
        return False
