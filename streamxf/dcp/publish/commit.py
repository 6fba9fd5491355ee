"""Making a finished save visible: ``.metadata`` appears whole and in one step, after all data files."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamxf.dcp.places import local_path, protocol_of
from streamxf.dcp.publish.durable import sync_folder

ONE_PUT = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss", "obs", "memory"})
"""Storage where a put replaces an object in one step: who reads sees the old one or the new one, whole."""

_RENAMES = frozenset({"sftp", "ssh"})  # by the extension posix-rename@openssh.com, which replaces in one step


def publish(
    filesystem: Any,
    folder: str | os.PathLike[str],
    name: str,
    data: bytes,
    sync: bool,
    *,
    check: Callable[[], None] | None = None,
) -> None:
    """Put `data` at `name`, replacing what is there in one step, where the storage has such a step.

    Parameters
    ----------
    filesystem : torch FileSystemBase
        Torch's own, or its wrapper around fsspec.
    folder : path
        The checkpoint.
    name : str
        ``.metadata`` or ``__<rank>.metadata``.
    sync : bool
        Whether the disk must have it when this returns.
    check : callable, optional
        Called last before that step, and may raise. With it, `data` is a new version of what is there: local files
        keep their owner and permissions, as far as this process may give them away.

    Raises
    ------
    OSError
        If it cannot be written. What was there before is then still there, unless the error came after the step: when
        the folder could not be synced, or when the answer of a server was lost.
    """
    target = os.fspath(filesystem.concat_path(folder, name))
    local = local_path(filesystem, target)
    if local is not None:
        _replace_local(Path(local), data, sync, check)
    elif protocol_of(filesystem) in _RENAMES:
        _replace_by_rename(filesystem.fs, target, data, check)
    else:
        if check is not None:
            check()
        filesystem.fs.pipe_file(target, data)


def one_step(filesystem: Any) -> bool:
    """Whether `publish` replaces in one step there."""
    return protocol_of(filesystem) in ONE_PUT | _RENAMES | {"file"}


def _replace_local(path: Path, data: bytes, sync: bool, check: Callable[[], None] | None) -> None:
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


def _replace_by_rename(inner: Any, target: str, data: bytes, check: Callable[[], None] | None) -> None:
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
    """Remove a draft after `error`: what went wrong first is what people need, and that this does, too, is a note."""
    try:
        yield
    except Exception as reason:
        error.add_note(f"{os.fspath(draft)} could not be removed: {type(reason).__name__}: {reason}")


def _draft_of(name: str) -> str:
    return f"{name}.{secrets.token_hex(4)}.tmp"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _share_like(path: Path, descriptor: int) -> None:
    """Give an open file the owner, group and permissions of another one."""
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
