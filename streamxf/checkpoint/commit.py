"""One file replaced in one step, so that readers see the old one or the new one; and what has to reach the disk besides
its bytes: the names in its folder, and the folder's own name.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ONE_PUT = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss", "obs", "memory"})
"""Storage where a put replaces an object in one step."""

RENAMES = frozenset({"sftp", "ssh"})  # where a rename does, by the extension posix-rename@openssh.com

Check = Callable[[], object]

# Some network file systems cannot sync a folder, or do not let it be opened: then its names are as durable as
# the file system makes them by itself. Anything else, EIO above all, is an error.
_CANNOT = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS})
_MAY_NOT = frozenset({errno.EACCES, errno.EPERM})


def put_local(target: str, data: bytes, sync: bool, check: Check | None) -> None:
    """In a local folder: a draft, synced, is renamed over the target; as `Storage.put`."""
    path = Path(target)
    draft = _draft_of(path.name)
    draft_path = path.with_name(draft)
    try:
        with draft_path.open("xb") if check is None else open(draft_path, "xb", opener=_open_private) as file:
            if check is not None:
                _share_like(path, file.fileno())
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if sync:
            sync_folder(path.parent)  # the data files' names, before anything refers to them
        if check is not None:
            check()
        draft_path.replace(path)
    except BaseException as error:
        with _noted(error, draft_path):
            draft_path.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def put_renamed(inner: Any, target: str, data: bytes, check: Check | None) -> None:
    """Where a file system of fsspec renames in one step; as `Storage.put`."""
    folder, _, name = target.rpartition("/")
    draft = f"{folder}/{_draft_of(name)}"
    try:
        inner.pipe_file(draft, data)
        if check is not None:
            check()
        inner.mv(draft, target)
    except BaseException as error:
        with _noted(error, draft):
            if inner.exists(draft):
                inner.rm_file(draft)
        raise


@contextmanager
def _noted(error: BaseException, draft: str | os.PathLike[str]) -> Iterator[None]:
    """Remove a draft after `error`, which is what people need first; that this fails, too, is a note."""
    try:
        yield
    except Exception as reason:
        error.add_note(f"{os.fspath(draft)} could not be removed: {type(reason).__name__}: {reason}")


def _draft_of(name: str) -> str:
    return f"{name}.{secrets.token_hex(4)}.tmp"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _share_like(path: Path, descriptor: int) -> None:
    if os.name == "nt":  # where files take these from their folder
        return
    wanted, own = path.stat(), os.fstat(descriptor)
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


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Bring the names in a folder to the disk, where its file system can do that. Raises OSError if the disk did not
    take them.
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
    for parent in dict.fromkeys(folder.parent for folder in folders):
        sync_folder(parent)
