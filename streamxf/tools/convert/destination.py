"""`Destination`: where a checkpoint is to be published; and whether that is not where it comes from."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from streamxf.chain import Chain
from streamxf.checkpoint.metadata import is_metadata_name
from streamxf.checkpoint.publish.commit import missing_folders, sync_names_of
from streamxf.checkpoint.storage import Storage, is_url
from streamxf.dcp.extensions import Extensions
from streamxf.dcp.save.publishing import warn_unless_in_one_step
from streamxf.errors import ContainerError, ParameterError
from streamxf.stream.plain import block_log2_of


@dataclass(frozen=True)
class Destination:
    """A folder, and how a checkpoint is written to it.

    Attributes
    ----------
    storage : Storage
    extensions : Extensions
    block_log2 : int
    overwrite : bool
        Whether a checkpoint that is there may be replaced, one among them that is published after `check`.
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
        """What public functions are told."""
        storage = Storage.of(path, storage_options)
        warn_unless_in_one_step(storage, stacklevel=4)
        return cls(storage, Extensions.of(chain), block_log2_of(block_size), overwrite)

    def check(self, cure: str = "name another target, or replace it (overwrite)") -> None:
        """Refuse to write where there is something that may not be replaced: raises NotADirectoryError for a file, and
        FileExistsError for a checkpoint, of which `cure` says what to do.
        """
        local = self.storage.local
        if local is not None and os.path.lexists(local) and not os.path.isdir(local):
            text = "this is a file, and a checkpoint is a folder: name another target"
            raise NotADirectoryError(errno.ENOTDIR, text, local)
        if not self.overwrite and any(map(is_metadata_name, self.storage.names())):
            raise FileExistsError(errno.EEXIST, f"there is a checkpoint already; {cure}", self.storage.given)

    def make(self) -> list[Path]:
        """Make the folder, durably; gives the local folders that were not there."""
        local = self.storage.local
        if local is None:
            self.storage.filesystem.makedirs(self.storage.path, exist_ok=True)
            return []
        made = missing_folders(local)
        os.makedirs(local, exist_ok=True)
        sync_names_of([Path(os.path.abspath(local)), *made])
        return made


def is_same(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    """Whether two paths or URLs lead to the same place, as far as can be told."""
    try:
        return os.path.samefile(source, target)
    except OSError:  # one of them is not there, or a URL
        return os.fspath(source).rstrip("/") == os.fspath(target).rstrip("/")


def refuse_inside(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Refuse to write into the folder that is read; raises ParameterError."""
    if is_same(source, target):
        raise ParameterError("source and target are the same, and the files of one would lie among those of the other")
    outer, inner = os.fspath(source).rstrip("/"), os.fspath(target)
    if not is_url(outer) and not is_url(inner):
        outer, inner = os.path.realpath(outer), os.path.realpath(inner)
    if inner.startswith(f"{outer}/"):
        raise ParameterError("the target lies in the folder that is to be packed: name one outside of it")


def check_same(source: Storage, before: object, now: object) -> None:
    """Refuse to publish a copy of a source that is not what it was before: some of what was read may be of the one, and
    some of the other. Raises ContainerError.
    """
    if now != before:
        raise ContainerError(
            "the source was changed while it was read, so the copy was not published; call again when nobody writes to "
            "it any more",
            file=source.given,
        )
