"""One at a time: publishing a save, and removing files that no save names, exclude each other in a folder."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from streamxf.checkpoint.mounts import Mount
from streamxf.checkpoint.storage import Storage
from streamxf.errors import AbortedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PATIENCE = 300.0
"""Seconds: what removes a hundred thousand files over a network may take minutes."""

_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
_LONGEST_PAUSE = 0.25


@contextmanager
def locked(storage: Storage, patience: float | None = None) -> Iterator[bool]:
    """Hold the folder's advisory lock, once it is free; yields whether there is one.

    The lock ends with the process that holds it, however that ends. Object stores have none, nor has Windows, and that
    of a folder on a network file system keeps apart the processes of one machine only: it is held, and given as none.
    There two saves that publish into one folder at the same moment are not kept apart.

    Raises
    ------
    AbortedError
        If another process keeps it for longer than `patience` seconds, by default `PATIENCE`.
    """
    local = storage.local
    seconds = PATIENCE if patience is None else patience
    descriptor = _acquire(local, seconds) if local is not None and fcntl is not None else None
    if descriptor is None or local is None:
        yield False
        return
    try:
        yield Mount.of(local).of_one_machine
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may still have the descriptor
        os.close(descriptor)


def _open(folder: str) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (PermissionError, FileNotFoundError, NotADirectoryError):
        return None  # a writable folder need not be readable; if there is none, others say so


def _acquire(folder: str, patience: float) -> int | None:
    """The folder, open and locked; None if there are no locks there."""
    end = time.monotonic() + patience
    pause = 0.001
    while (descriptor := _open(folder)) is not None:
        held = False
        try:
            state = _lock(descriptor)
            if state is None:
                return None
            held = state and _is_still(descriptor, folder)
        finally:
            if not held:
                os.close(descriptor)
        if held:
            return descriptor
        if not state and time.monotonic() > end:
            raise AbortedError(
                f"another process is publishing to {folder}, or writing or cleaning up there"
                f"{f', and has been for {patience:.0f} seconds' if patience else ''}; nothing was changed. Wait until "
                "it is done, or stop it, and try again"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return None


def _lock(descriptor: int) -> bool | None:
    """Whether a folder is locked now; None if there are no locks on its file system."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD else None
    return True


def _is_still(descriptor: int, folder: str) -> bool:
    """Whether an open folder still has its name: who waited may hold the lock of one that was moved away meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False
