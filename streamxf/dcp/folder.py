"""A checkpoint's metadata files, for work on these alone: found, read whole, and replaced in one step."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from streamxf.dcp.load.advice import unfinished
from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.metadata.limits import MAX_METADATA_FILES
from streamxf.dcp.places import is_cached, local_path
from streamxf.dcp.publish.commit import publish
from streamxf.dcp.publish.lock import locked
from streamxf.dcp.reader import FileSystemReader
from streamxf.errors import MetadataError, NoCheckpointError, UnsupportedError

_NAME = re.compile(r"\.metadata|__(?:0|[1-9][0-9]{0,9})\.metadata", re.ASCII)


class Folder:
    """Where a checkpoint is.

    Parameters
    ----------
    path : path or str
        A local folder, or a URL that fsspec knows.
    storage_options : mapping, optional
        fsspec's, for the URL.

    Attributes
    ----------
    filesystem : torch FileSystemBase
    path : path or str
        As `filesystem` takes it.
    """

    def __init__(self, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        text = os.fspath(path)
        reader: Any
        if "://" in text or "::" in text or storage_options:
            from streamxf.dcp.fsspec import FsspecReader

            reader = FsspecReader(text, **(storage_options or {}))
        else:
            reader = FileSystemReader(text)
        self.filesystem: Any = reader.fs
        self.path: Any = reader.path
        self._inner: Any = getattr(reader.fs, "fs", None)  # fsspec's

    def names(self, *, beside: bool = False) -> list[str]:
        """The metadata files that are there: the global one, or those of ranks in their order.

        Parameters
        ----------
        beside : bool
            Whether metadata of ranks may lie beside the global one. It is then left out, as by any reader.

        Raises
        ------
        NoCheckpointError
            If there is none.
        MetadataError
            If there are more than any save has made, or metadata of single ranks beside the global one.
        UnsupportedError
            If this is a file.
        """
        if self._is_file():
            raise UnsupportedError(
                "this is a file, and not a checkpoint's folder. streamxf.pack makes a checkpoint of a .safetensors or "
                "torch.save file; what streamxf.open wrote can be changed where it is a local file",
                file=str(self.path),
            )
        listed = set(self._listed())
        found = [name for name in listed if _NAME.fullmatch(name)]
        if not found:
            text = unfinished(listed) or "there is no checkpoint: the folder has no .metadata"
            raise NoCheckpointError(text, file=str(self.path))
        if len(found) > MAX_METADATA_FILES:
            raise MetadataError(
                f"the folder has {len(found)} metadata files, {MAX_METADATA_FILES} are allowed", file=str(self.path)
            )
        if beside and ".metadata" in found:
            return [".metadata"]
        if len(found) > 1 and ".metadata" in found:
            one = next(name for name in found if name != ".metadata")
            raise MetadataError(
                f"the folder has a .metadata and, beside it, metadata of single ranks such as {one}, which no reader "
                "looks at: it is left from another save, or somebody put another checkpoint's there. Move it away, and "
                "try again",
                file=str(self.path),
            )
        return sorted(found, key=lambda name: -1 if (rank := rank_of(name)) is None else rank)

    def check_uncached(self) -> None:
        """Refuse to change by what a cache remembers of a file, which may have been replaced since.

        Raises
        ------
        UnsupportedError
        """
        if is_cached(self.filesystem):
            raise UnsupportedError(
                "this URL leads through a cache, which may remember the metadata of an older save; use that of the "
                "storage itself. Nothing was changed",
                file=str(self.path),
            )

    def full(self, name: str) -> str:
        """A file's whole path, for errors."""
        path: str = os.fspath(self.filesystem.concat_path(self.path, name))
        return path

    def read(self, name: str) -> bytes:
        """A metadata file's bytes.

        Raises
        ------
        MetadataError
            If it is gone, is no file, or is larger than any metadata.
        """
        path = self.full(name)
        try:
            if (local := local_path(self.filesystem, path)) is not None and not stat.S_ISREG(os.lstat(local).st_mode):
                raise MetadataError("this is a link, or no regular file at all; no writer made it", file=path)
            self._forget_listings()
            with self.filesystem.create_stream(path, "rb") as file:
                return metadata_file.read_file(file)
        except FileNotFoundError as error:
            raise MetadataError("the metadata has gone: is somebody saving to this folder?", file=path) from error

    def replace(self, name: str, old: bytes, new: bytes) -> None:
        """Put `new` in the place of what has the `digest` `old`.

        Raises
        ------
        MetadataError
            If something else stands there by now.
        UnsupportedError
            If files are read through a cache.
        OSError
            If it cannot be written. What was there is then still there.
        """
        self.check_uncached()

        def check() -> None:
            if digest(self.read(name)) != old:
                raise self.replaced(name)

        with locked(self.filesystem, self.path):
            publish(self.filesystem, self.path, name, new, True, check=check)

    def replaced(self, name: str) -> MetadataError:
        """The error for a file that is not what was read before."""
        return MetadataError(
            "the metadata was replaced meanwhile: somebody saves to this folder, or changes its recipients. It was "
            "left as it is; try again when that is over",
            file=self.full(name),
        )

    def _is_file(self) -> bool:
        return bool(self._inner.isfile(self.path)) if self._inner is not None else self.path.is_file()

    def _listed(self) -> list[str]:
        self._forget_listings()
        with suppress(FileNotFoundError):
            if self._inner is None:
                return os.listdir(self.path)
            return [os.path.basename(path) for path in self._inner.ls(self.path, detail=False)]
        return []

    def _forget_listings(self) -> None:
        """A file system of fsspec may remember sizes and names from before somebody else has changed them."""
        if self._inner is not None:
            self._inner.invalidate_cache()


def digest(data: bytes) -> bytes:
    """By which a file is known again that is too large to be kept."""
    return hashlib.sha256(data).digest()


def rank_of(name: str) -> int | None:
    """Whose rank-local metadata a file is by its name; None for the global one."""
    return None if name == ".metadata" else int(name.removeprefix("__").removesuffix(".metadata"))
