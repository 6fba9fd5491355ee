"""Local files of names that others may have put there: `open_regular` to read one, `create` and `aim` to write one."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

from streamxf.budget import allocated_bytes, held_bytes

_NOT_WAITING = os.O_NOCTTY | os.O_NONBLOCK


class NotRegular(OSError):
    """It is a device or a pipe, which might never end; nothing was read of it."""


def open_regular(path: str | os.PathLike[str], folder: int | None = None) -> io.FileIO:
    """Open a file to read it, unbuffered; links are followed, but not by the last name of one in an open `folder`.
    Raises OSError, of the class NotRegular for what is not a regular file, which is not waited for.
    """
    more = _NOT_WAITING if folder is None else _NOT_WAITING | os.O_NOFOLLOW
    file = open(  # noqa: SIM115 - returned
        path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | more, dir_fd=folder)
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotRegular(errno.EINVAL, "this is not a regular file; it was not read", os.fspath(path))
    return file


def create(
    path: str | Path, like: str | Path | None = None, folder: int | None = None, *, anew: bool = True
) -> io.FileIO:
    """Open a file, or a name in an open `folder`, to write it unbuffered, never through a link; `anew` if it must not
    exist. From its first byte on nobody may read it who may not read the file `like`, which it replaces and which is in
    the same folder; or OSError.
    """
    mode = 0o666 if like is None else 0o600
    file = open(  # noqa: SIM115 - returned
        path, "xb" if anew else "wb", 0, opener=lambda at, how: os.open(at, how | os.O_NOFOLLOW, mode, dir_fd=folder)
    )
    if like is not None:
        try:
            _share_like(os.stat(like, dir_fd=folder), file.fileno())
        except BaseException:
            file.close()
            raise
    return file


def held_at(path: str) -> int:
    """`held_bytes` of a local file; 0 if it is not a regular file, or cannot be read."""
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):
            return 0
        allocated = allocated_bytes(facts)
        if allocated is None or allocated >= facts.st_size:
            return facts.st_size
        with open_regular(path) as file:
            return held_bytes(file, facts.st_size)
    except (OSError, ValueError):
        return 0


def aim(path: str | os.PathLike[str]) -> Path:
    """Where something at `path` is replaced: what a link leads to. Raises FileExistsError if that is not there, since
    whoever made the link would choose where a new file comes to be.
    """
    if os.path.islink(path) and not os.path.exists(path):
        text = "this is a link to something that is not there; remove it, or name another target"
        raise FileExistsError(errno.EEXIST, text, os.fspath(path))
    return Path(os.path.realpath(path))  # absolute, so that the folder may change meanwhile


def _share_like(wanted: os.stat_result, descriptor: int) -> None:
    own = os.fstat(descriptor)
    mode = wanted.st_mode & 0o777
    if (wanted.st_uid, wanted.st_gid) != (own.st_uid, own.st_gid):
        try:
            os.fchown(descriptor, wanted.st_uid, wanted.st_gid)
        except OSError:  # only root gives files away, and their owner only to groups of his
            try:
                os.fchown(descriptor, -1, wanted.st_gid)
            except OSError:
                mode = mode & ~0o070 | (mode & 0o007) << 3  # another group: it may do what strangers may
    os.fchmod(descriptor, mode)
