"""What has to reach the disk besides the bytes of files: the names in their folder, and the folder's own name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

# Network file systems among them cannot sync a folder, and some let nobody open it: then its names are as durable as
# the file system makes them by itself. Anything else, EIO above all, is an error.
_CANNOT = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS})
_MAY_NOT = frozenset({errno.EACCES, errno.EPERM})


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Bring the names in a folder to the disk, where its file system can do that.

    Raises
    ------
    OSError
        If the disk did not take them.
    """
    if os.name == "nt":  # Windows cannot open a folder to sync it
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _MAY_NOT:
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(descriptor)


def missing_folders(folder: str | os.PathLike[str]) -> list[Path]:
    """Those of `folder` and the folders above it that are not there yet, the uppermost last."""
    path = Path(os.path.abspath(folder))
    return [place for place in (path, *path.parents) if not place.exists()]


def sync_names_of(folders: Iterable[Path]) -> None:
    """Bring the names of folders themselves to the disk; raises as `sync_folder`."""
    for parent in dict.fromkeys(folder.parent for folder in folders):
        sync_folder(parent)
