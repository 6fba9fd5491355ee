"""`Destination`: where a checkpoint is published, which must not be where it comes from."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from streamxf.chain import Chain
from streamxf.checkpoint.disk import missing_folders, sync_names_of
from streamxf.checkpoint.metadata import is_metadata_name
from streamxf.checkpoint.storage import Storage, is_url
from streamxf.dcp.extensions import Extensions
from streamxf.dcp.save.publishing import warn_unless_in_one_step
from streamxf.errors import ContainerError, ParameterError
from streamxf.stream.encoder import block_log2_of


@dataclass(frozen=True)
class Destination:
    """A folder, and how a checkpoint is written to it.

    Attributes
    ----------
    storage : Storage
    extensions : Extensions
    block_log2 : int
    overwrite : bool
        Whether a checkpoint that is there may be replaced, even one that is published after `check`.
    """

    storage: Storage
    extensions: Extensions
    block_log2: int
    overwrite: bool

    @classmethod
    def of(
        cls,
        path: str | os.PathLike[str],
        chain: Chain,
        block_size: int,
        storage_options: Mapping[str, Any] | None,
        *,
        overwrite: bool,
    ) -> Self:
        """Make one of the arguments of public functions."""
        storage = Storage.of(path, storage_options)
        warn_unless_in_one_step(storage, stacklevel=4)
        return cls(storage, Extensions.of(chain), block_log2_of(block_size), overwrite)

    def check(self, cure: str = "name another target, or replace it (overwrite)") -> None:
        """Raise NotADirectoryError for a file, and FileExistsError for a checkpoint that may not be replaced; `cure` is
        the advice for that.
        """
        local = self.storage.local
        if local is not None and os.path.lexists(local) and not os.path.isdir(local):
            text = "this is a file, and a checkpoint is a folder: name another target"
            raise NotADirectoryError(errno.ENOTDIR, text, local)
        if not self.overwrite and any(map(is_metadata_name, self.storage.names())):
            raise FileExistsError(errno.EEXIST, f"there is a checkpoint already; {cure}", self.storage.given)

    def make(self) -> list[Path]:
        """Make the folder, durably; returns the local folders that did not exist."""
        local = self.storage.local
        if local is None:
            self.storage.filesystem.makedirs(self.storage.path, exist_ok=True)
            return []
        made = missing_folders(local)
        os.makedirs(local, exist_ok=True)
        sync_names_of([Path(os.path.abspath(local)), *made])
        return made


def is_same(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    """Whether two paths or URLs are known to lead to the same place."""
    try:
        return os.path.samefile(source, target)
    except OSError:  # one of them is not there, or a URL
        return os.fspath(source).rstrip("/") == os.fspath(target).rstrip("/")


def refuse_inside(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Raise ParameterError if the target is the source, or in it."""
    if is_same(source, target):
        raise ParameterError("source and target are the same: name another target")
    outer, inner = os.fspath(source).rstrip("/"), os.fspath(target)
    if not is_url(outer) and not is_url(inner):
        outer, inner = os.path.realpath(outer), os.path.realpath(inner)
    if inner.startswith(f"{outer}/"):
        raise ParameterError("the target is in the folder that is to be packed: name one outside of it")


def check_same(source: Storage, before: object, now: object) -> None:
    """Raise ContainerError if the source was changed: the copy may be of both versions, in part."""
    if now != before:
        raise ContainerError(
            "the source was changed while it was read, so the copy was not published; call again when no other process "
            "writes to it",
            file=source.given,
        )
