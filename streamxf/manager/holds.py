"""Holds: who reads a checkpoint keeps it from being removed meanwhile.

A hold is an empty file whose name says all. Its owner puts it, and then waits while somebody removes the checkpoint;
who removes says so first, and then looks for holds. So at least one of the two sees the other. Neither file decides
anything alone: a hold that nobody takes back counts for a day, one of a save only as long as its session, and a removal
that does not come to its end is waited for no longer than a minute.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from streamxf.engine import finalize_apart
from streamxf.errors import NoCheckpointError, ParameterError
from streamxf.manager.listing import Run, run_of
from streamxf.manager.notes import FOLDER, notes_in, put_note, remove_notes
from streamxf.manager.removal import is_literal, remove_entry
from streamxf.manager.sessions import is_held
from streamxf.places import Location, Storage, open_storage, put_small, small_names

_HOLDS = f"{FOLDER}/holds"
_HOLD = re.compile(
    r"(?P<name>.{1,255})@(?P<time>[0-9]{1,15})@(?P<who>[^@]{1,255}?)(-(?P<session>[0-9a-f]{32}))?-[0-9a-f]{8}",
    re.DOTALL,
)
_NO_PLACE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
DAY = 86_400.0  # seconds: no clocks differ so much
MAX_NAME_BYTES = 170  # of a checkpoint's folder, so that its holds have names, too
_REMOVALS = "going-[0-9]{1,15}-[0-9a-f]{16}"
_PATIENCE = 60.0  # seconds
_PAUSE = 0.05
_log = logging.getLogger(__name__)


def has_no_place(error: OSError) -> bool:
    """Whether nothing can be put there for good, so that a job has to do without."""
    without_number = PermissionError | FileExistsError | NotADirectoryError  # of an object store
    return error.errno in _NO_PLACE or isinstance(error, without_number)


@contextmanager
def hold(path: Location, *, storage_options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Keep a checkpoint of a run from being removed by a `CheckpointManager` or `forget` while it is read::

        with streamxf.hold("run/step-1000"):
            dcp.load(state, storage_reader=streamxf.FileSystemReader("run/step-1000"))

    `CheckpointManager.resume` does the same. A hold whose process was killed counts for a day.

    Parameters
    ----------
    path : path, str or Storage
        The checkpoint's folder in its run's folder, or its URL.
    storage_options : mapping, optional
        fsspec's, for the URL.

    Raises
    ------
    NoCheckpointError
        If there is no complete checkpoint, or its removal has begun.
    OSError, ForeignError
        If the run's folder cannot be written to.
    """
    place = open_storage(path, storage_options)
    if place.near and not (place.exists() and place.is_folder()):
        raise NoCheckpointError("there is no such folder", file=place.label())
    run, name = run_of(place)
    if not name:
        raise ParameterError(f"{place.label()!r:.80} is not the folder of a checkpoint in a run's folder")
    with hold_checkpoint(Run.at(run), name):
        yield


@contextmanager
def hold_checkpoint(run: Run, name: str) -> Iterator[None]:
    """The same, of a checkpoint by its name in a run."""
    storage = run.storage
    with put_hold(storage, name):
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and (file := announced_removals(run).get(name)) is not None and not is_over(file):
            time.sleep(_PAUSE)
        record = run.record(name)
        if record is None or not record.complete:
            state = "there is none" if record is None else f"it is {record.kind}"
            raise NoCheckpointError(f"no complete checkpoint: {state}", file=storage.label(name))
        yield


@contextmanager
def put_hold(storage: Storage, name: str, session: str = "") -> Iterator[None]:
    """A hold, whatever lies there; of a `session` only while that runs."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII) or "-"
    before, after = f"{name}@{int(time.time())}@", f"-{os.getpid()}-{session}".rstrip("-") + f"-{secrets.token_hex(4)}"
    room = storage.longest_name - len((before + after).encode("utf-8", "surrogateescape"))
    file = f"{before}{host[: max(room, 1)]}{after}"
    storage.check_literal(file)  # or it could not be taken back
    put_small(storage, f"{_HOLDS}/{file}", b"", sync=False)
    try:
        yield
    finally:
        if storage.near or not sys.is_finalizing():  # else it counts for a day
            finalize_apart(remove_entry, storage, f"{_HOLDS}/{file}")


def active_holds(storage: Storage, *, tidies: bool = False) -> dict[str, str]:
    """The checkpoints of a run that someone reads, each with who. Who `tidies` removes the holds of killed readers."""
    now = time.time()
    found: dict[str, str] = {}
    over = []
    for file in small_names(storage, _HOLDS):
        match = _HOLD.fullmatch(file)
        if match is None or not is_literal(storage, file):
            continue  # by such a name nothing is removed, so it keeps nothing
        begun = int(match["time"])
        if abs(now - begun) < storage.DAY and not (match["session"] and is_held(storage, match["session"]) is False):
            when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun))
            found[match["name"]] = f"{match['who']} {'saves' if match['session'] else 'reads'} it, since {when} UTC"
        else:  # its owner was killed
            over.append(f"{_HOLDS}/{file}")
    if tidies:
        try:
            remove_entry(storage, *over)
        except Exception as error:  # of whatever class: they count for nothing, and must not stop a removal
            _log.debug("%s: %s", storage.label(_HOLDS), error)
    return found


@contextmanager
def announce_removal(run: Run, names: Collection[str]) -> Iterator[None]:
    """Say that these are about to be removed."""
    file = f"going-{int(time.time())}-{secrets.token_hex(8)}"
    put_note(run.storage, run.authority, file, {"names": [*names]}, _names_of)
    yield
    remove_notes(run.storage, [file])  # not after a kill: whoever comes next finishes it


def is_over(file: str) -> bool:
    """Whether nobody waits any longer for the removal that this file announces."""
    return abs(time.time() - int(file.split("-")[1])) > _PATIENCE


def announced_removals(run: Run) -> dict[str, str]:
    """What somebody has said to be removing, and has not finished, each with the file that says so."""
    files = notes_in(run.storage, run.authority, _REMOVALS, _names_of)
    return {name: file for file, names in files.items() for name in names}


def _names_of(content: Any) -> list[str]:
    return [str(name) for name in content["names"]]
