"""What lies inside a folder, reached by literal names: below it no link is followed, whatever is swapped meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

from streamxf.errors import ParameterError

MOST = 1_000_000  # names; no checkpoint has as many files
_DEEPEST = 64  # folders in folders, each of which takes a descriptor while it is walked

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
ENTER = getattr(os, "O_PATH", 0) | FOLDER  # which need not be readable
NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC

NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Of a path that leads nowhere, or through a link or a file."""


def check_component(name: str) -> str:
    """Return `name` if it names something directly in a folder; raises ParameterError."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ParameterError(f"{ascii(name)[:80]} is not a name in a folder")
    return name


def components(path: str) -> list[str]:
    return [check_component(part) for part in path.split("/")]


def open_folder(folder: str | os.PathLike[str] | int) -> int:
    """Open a folder to list, sync or lock it; that of a descriptor anew, since one may be for its path alone."""
    return os.open(".", FOLDER, dir_fd=folder) if isinstance(folder, int) else os.open(folder, FOLDER)


@contextmanager
def opened(folder: str | int, parts: Sequence[str] = (), *, make: bool = False, how: int = FOLDER) -> Iterator[int]:
    """Open a folder below `folder`, which is a path that may contain links, or a descriptor. Raises OSError with a
    number of `NOT_THERE` where a part is a link, or no folder. `make` creates those that are not there. What is opened
    by `ENTER` cannot be listed.
    """
    descriptor = os.dup(folder) if isinstance(folder, int) else os.open(folder, how)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            below = os.open(part, how | NO_LINK, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def walk(folder: int, prefix: str = "", depth: int = _DEEPEST) -> Iterator[tuple[int, str, str, bool | None]]:
    """Everything below an open folder, each after what is in it: the descriptor of its folder, its name, its path, and
    whether it is a folder; None of one that cannot be listed, or lies too deep, and was not entered.
    """
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, MOST)]
    for name, is_folder in found:
        entered: bool | None = is_folder
        if is_folder:
            entered = None
            try:
                if depth:
                    with opened(folder, [name]) as below:
                        yield from walk(below, f"{prefix}{name}/", depth - 1)
                    entered = True
            except OSError as error:
                if error.errno not in NOT_THERE | {errno.EACCES, errno.EPERM}:
                    raise
        yield folder, name, prefix + name, entered
