"""Making a finished save visible: ``.metadata`` appears whole and in one step, after all data files; then what it
replaced is removed.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

LOCAL_PROTOCOLS = frozenset({"file", "local"})


def publish(
    filesystem: Any,
    folder: str | os.PathLike[str],
    name: str,
    data: bytes,
    sync: bool,
    *,
    check: Callable[[], None] | None = None,
) -> None:
    """Put `data` at `name`, replacing what is there in one step.

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
        If it cannot be written; what was there before is then still there.
    """
    inner = getattr(filesystem, "fs", None)
    target = os.fspath(filesystem.concat_path(folder, name))
    if inner is None:
        _replace_local(Path(target), data, sync, check)
    elif LOCAL_PROTOCOLS.intersection(protocols(inner)):
        _replace_local(Path(inner._strip_protocol(target)), data, sync, check)
    else:
        if check is not None:
            check()
        inner.pipe_file(target, data)  # object stores have no rename, but a put replaces an object in one step


def remove(filesystem: Any, folder: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Remove data files that no metadata names any more.

    What cannot be removed is only warned about: the new checkpoint is published already.
    """
    for name in names:
        path = filesystem.concat_path(folder, name)
        try:
            if filesystem.exists(path):
                filesystem.rm_file(path)
        except Exception as error:  # whatever a file system raises here, the save stands
            warnings.warn(
                f"the checkpoint is saved, but {path} of the one before it could not be removed: {error}", stacklevel=2
            )


def _replace_local(path: Path, data: bytes, sync: bool, check: Callable[[], None] | None) -> None:
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("xb") if check is None else open(draft, "xb", opener=_open_private) as file:
            if check is not None:
                _share_like(path, file.fileno())
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if sync:
            _sync_folder(path.parent)  # the data files' names, before anything refers to them
        if check is not None:
            check()
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if sync:
        _sync_folder(path.parent)


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


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder to sync it
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def protocols(inner: Any) -> tuple[str, ...]:
    protocol = inner.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
