"""`note_damage`: a note in a run's folder that a reader has met damage, so that whoever resumes next looks closer."""

from __future__ import annotations

import os
import re
import stat

from streamxf.checkpoint.inside import opened
from streamxf.checkpoint.storage import Storage
from streamxf.errors import DAMAGE, IdentityError, escaped

NOTES = ".streamxf"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def note_damage(error: BaseException, storage: Storage, save_id: str | None) -> None:
    """`suspect` the checkpoint if an error says that its data is damaged. Where no note can be left, the error says how
    to do without.
    """
    if not isinstance(error, DAMAGE) or isinstance(error, IdentityError):
        return
    if suspect(storage, save_id) is False:
        name = os.path.basename(os.path.abspath(storage.local)) if storage.local is not None else storage.name
        text = f"next: set STREAMXF_SKIP={name} to resume from another checkpoint; the run's folder takes no note of it"
        error.add_note(escaped(text))


def suspect(storage: Storage, save_id: str | None) -> bool | None:
    """Leave the note, an empty file, if the checkpoint's folder lies in a run. Best effort: nothing is raised, and no
    link followed.

    Returns whether the note lies there; None if the folder is not in a run.
    """
    name = f"damage-{save_id}" if save_id is not None and _ID.fullmatch(save_id) else None
    try:
        if storage.local is not None:
            return _put_local(os.path.dirname(os.path.abspath(storage.local)), name)
        folder = f"{storage.path.rstrip('/').rpartition('/')[0]}/{NOTES}"
        storage.forget_listings()
        if not storage.filesystem.isdir(folder):
            return None
        if name is None:
            return False
        storage.filesystem.pipe_file(f"{folder}/{name}", b"")
    except Exception:  # whatever a storage's package raises: the damage stays the news
        return False
    return True


def _put_local(run: str, name: str | None) -> bool | None:
    try:
        with opened(run, [NOTES]) as folder:
            if name is None:
                return False
            try:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder))
            except FileExistsError:  # another rank's, or something else that must not be opened
                return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            return True
    except FileNotFoundError:
        return None
