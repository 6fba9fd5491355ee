"""The advisory lock of a folder: one process publishes, writes or cleans up there at a time."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO
from weakref import ref

from streamxf.errors import AbortedError
from streamxf.format.names import LOCK
from streamxf.storage.files import NO_LINK, open_folder
from streamxf.storage.storage import Storage

PATIENCE = 300.0  # seconds: what removes a hundred thousand files over a network may take minutes

_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
_NO_LOCK = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ELOOP, errno.EISDIR, errno.ENXIO}
)
_LONGEST_PAUSE = 0.25
_NEW = 2.0  # seconds: for as long as this, a lock's file may have yet to get the mode that opens it to a group
_holders: dict[tuple[int, int], tuple[int, int]] = {}  # by the lock's file: the process and the thread
_open: dict[int, ref[IO[bytes]]] = {}
"""Files, by descriptor, whose locks a forked child would keep for as long as it lives, if it kept them open."""


@contextmanager
def locked(storage: Storage, patience: float | None = None, *, links: bool = True) -> Iterator[bool]:
    """Hold the folder's advisory lock, once it is free; yields whether no other process can publish to it meanwhile,
    by its `Abilities`: on a network file system the lock may keep apart the processes of one machine only. Raises
    AbortedError if another process keeps it for longer than `patience` seconds, by default `PATIENCE`, at once if this
    thread does, and if the folder is a link, unless `links` are followed: somebody may have put it there just now, and
    would choose where a file is made.

    It is the lock of a file that only those can open who may write to the folder: anybody who may read the folder could
    hold that of the folder itself. The lock ends with the process that holds it, however that ends; the file goes with
    it, unless the process is killed. Object stores have none, nor has a folder that cannot be written to.
    """
    release = storage.acquire(PATIENCE if patience is None else patience, links=links)
    try:
        yield release is not None and storage.abilities.locks == "hosts"
    finally:
        if release is not None:
            release()


def acquire(path: str, place: str | int, patience: float, links: bool) -> Callable[[], None] | None:
    """Take the lock of a local folder, as `locked`; what releases it, or None where there are no locks."""
    end = time.monotonic() + patience
    pause = 0.001
    while True:
        try:
            folder = open_folder(place, links=links)
        except OSError as error:
            if not links and error.errno in (errno.ELOOP, errno.ENOTDIR):
                text = "this folder was replaced by a link or a file: find out by whom"
                raise AbortedError(text, file=path) from error
            if isinstance(error, PermissionError | FileNotFoundError | NotADirectoryError):
                return None  # a writable folder need not be readable; if there is none, others say so
            raise
        file, free, kept, identity = None, None, False, None
        try:
            if (file := _lock_file(folder)) is not None:
                free = _try_lock(file)
            if file is None or free is None:
                return None
            facts = os.fstat(file.fileno())
            identity = facts.st_dev, facts.st_ino
            if free:
                _holders[identity] = this_thread()
            elif _holders.get(identity) == this_thread():
                raise AbortedError(
                    f"this thread is itself publishing to {path}, or writing or cleaning up there, and would wait for "
                    "itself: a handler of signals or logs that it runs also saves there. That save was not made; let "
                    "the handler save into another folder, or request a later save"
                )
            still = free and is_still(file.fileno(), LOCK, folder)
            if kept := still and (place != path or is_still(folder, path, links=links)):
                return partial(_release, folder, file, identity, unlock=True)
        finally:
            if not kept:
                _release(folder, file, identity, unlock=free is not False)
        if not free and time.monotonic() > end:
            raise AbortedError(
                f"another process is publishing to {path}, or writing or cleaning up there"
                f"{f', and has been for {patience:.0f} seconds' if patience else ''}; nothing was changed. Wait until "
                "it is done, or stop it, and try again"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


class _LockFile(io.FileIO):
    def close(self) -> None:
        """Without an error, as some mounts give (EPERM): what was done while it was held stands."""
        with suppress(OSError):
            super().close()


def _opened(name: str, flags: int, mode: int, folder: int) -> IO[bytes]:
    how = "r+" if flags & os.O_RDWR else "r"
    file = _LockFile(name, how, opener=lambda path, _: os.open(path, flags, mode, dir_fd=folder))
    _open[file.fileno()] = ref(file)
    return file


def _close_all() -> None:
    for each in _open.values():
        if (file := each()) is not None:
            file.close()


os.register_at_fork(after_in_child=_close_all)


def this_thread() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()  # a forked child has the thread's number, too


def _lock_file(folder: int) -> IO[bytes] | None:
    """Open the lock's file, which is made if there is none; None where that cannot be, or it is no regular file."""
    flags = os.O_RDWR | NO_LINK | os.O_NONBLOCK
    try:
        try:
            file = _opened(LOCK, flags | os.O_CREAT | os.O_EXCL, 0o600, folder)
        except FileExistsError:
            return _present_lock(folder, flags)
    except FileNotFoundError:  # its holder was done, or the folder is gone
        return _lock_file(folder) if os.fstat(folder).st_nlink else None
    except OSError as error:
        if error.errno in _NO_LOCK:
            return None
        raise
    facts = os.fstat(folder)
    if facts.st_mode & stat.S_IWGRP:
        with suppress(OSError):  # in a group of which this user is no member, it stays this user's
            os.fchown(file.fileno(), -1, facts.st_gid)
            os.fchmod(file.fileno(), 0o660)
    return file


def _present_lock(folder: int, flags: int) -> IO[bytes] | None:
    """That which another process has made; who may write to the folder waits until its group may open it, too."""
    while True:
        try:
            file = _opened(LOCK, flags, 0, folder)
            break
        except PermissionError:
            age = abs(time.time() - os.stat(LOCK, dir_fd=folder, follow_symlinks=False).st_ctime)
            of_group = os.fstat(folder).st_mode & stat.S_IWGRP and os.access(".", os.W_OK, dir_fd=folder)
            if not of_group or age > _NEW:
                raise
            time.sleep(0.01)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    return None


def _try_lock(file: IO[bytes]) -> bool | None:
    """Whether it was free; None if there are no locks on its file system."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD else None
    return True


def _release(folder: int, file: IO[bytes] | None, identity: tuple[int, int] | None, unlock: bool) -> None:
    try:
        if file is not None and not file.closed:  # as it is in a forked child, whose parent goes on
            # not if the folder was removed, or cannot be written to by now: whoever comes next takes the file
            with file, suppress(OSError):
                if unlock and identity is not None:
                    _holders.pop(identity, None)
                if unlock and is_still(file.fileno(), LOCK, folder):
                    os.unlink(LOCK, dir_fd=folder)
    finally:
        os.close(folder)


def is_still(descriptor: int, name: str, folder: int | None = None, *, links: bool = True) -> bool:
    """Whether what is open still has its name, that of no link in an open `folder`: it may be gone after a wait."""
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=links and folder is None)
        return os.path.samestat(os.fstat(descriptor), now)
    except FileNotFoundError:
        return False


def try_lock_file(folder: int, name: str, make: bool) -> IO[bytes] | None:
    """A file in an open folder, held; None if there are no locks. Raises BlockingIOError if another process has it that
    made it: those that only look share it, or two that look at once would take each other for that one. They need only
    be allowed to read it.

    The lock is POSIX's, which file systems over a network have, too; on Linux that of the open file, since the other
    ends when its process closes the file wherever it has opened it: in a backup, say.
    """
    flags = (os.O_RDWR | os.O_CREAT if make else os.O_RDONLY) | NO_LINK | os.O_NONBLOCK
    kind, posix = (fcntl.F_WRLCK, fcntl.LOCK_EX) if make else (fcntl.F_RDLCK, fcntl.LOCK_SH)
    file = _opened(name, flags, 0o666, folder)
    try:
        _set_lock(file, kind, posix)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError | PermissionError):
            raise BlockingIOError(*error.args) from None
        return None
    if make and not is_still(file.fileno(), name, folder):  # it was removed before it was locked
        file.close()
        return try_lock_file(folder, name, make)
    return file


def _set_lock(file: IO[bytes], kind: int, posix: int) -> None:
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, *[0] * 4))  # all of the file
    except (BlockingIOError, PermissionError):
        raise
    except (AttributeError, OSError):
        fcntl.lockf(file, posix | fcntl.LOCK_NB)
