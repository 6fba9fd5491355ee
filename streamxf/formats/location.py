"""`Location`: a file or a folder, in the local file system or wherever fsspec reads."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from streamxf.errors import UnsupportedError


@dataclass(frozen=True)
class Location:
    """Where a checkpoint is.

    Attributes
    ----------
    given : str
        As the caller gave it.
    path : str
        As the file system takes it.
    filesystem : Any
        fsspec's; None for the local one.
    storage_options : mapping
        With which the former was made.
    """

    given: str
    path: str
    filesystem: Any
    storage_options: Mapping[str, Any]

    @classmethod
    def of(cls, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Location:
        """Look at nothing yet; a URL is one for fsspec, and so is anything with `storage_options`."""
        text = os.fspath(path)
        options = dict(storage_options or {})
        if "://" in text or "::" in text or options:
            from fsspec.core import url_to_fs

            filesystem, inner = url_to_fs(text, **options)
            return cls(text, inner, filesystem, options)
        return cls(text, text, None, options)

    def is_folder(self) -> bool:
        """Whether it is a folder and not a file.

        Raises
        ------
        FileNotFoundError
            If it is neither.
        UnsupportedError
            If it is a device, a pipe or the like.
        """
        if self.filesystem is not None:
            self.filesystem.invalidate_cache()  # which may remember what has changed since
            try:
                return bool(self.filesystem.info(self.path)["type"] == "directory")
            except FileNotFoundError as error:
                cause = error.__cause__
                if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                    raise cause from None  # fsspec says the same of a server that does not answer
                raise self._missing() from None
        try:
            mode = os.stat(self.path).st_mode
        except FileNotFoundError:
            raise self._missing() from None
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise UnsupportedError("this is neither a file nor a folder, so it holds no checkpoint", file=self.given)
        return stat.S_ISDIR(mode)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return os.path.basename(self.path.rstrip("/"))

    def inside(self, name: str) -> Location:
        """That of a folder in this folder."""
        return Location(self.full(name), self._inner(name), self.filesystem, self.storage_options)

    def full(self, name: str) -> str:
        """The path of a file of this folder, for errors."""
        return f"{self.given.rstrip('/')}/{name}" if name else self.given

    def names(self) -> list[str]:
        """Of all that is directly in this folder, sorted."""
        if self.filesystem is None:
            return sorted(os.listdir(self.path))
        return sorted(os.path.basename(path.rstrip("/")) for path in self.filesystem.ls(self.path, detail=False))

    def size(self, name: str = "") -> int | None:
        """Bytes of a file of this folder, or of this file itself; None for what is no file.

        Raises
        ------
        FileNotFoundError
            If it is not there.
        """
        path = self._inner(name)
        if self.filesystem is None:
            facts = os.stat(path)
            return facts.st_size if stat.S_ISREG(facts.st_mode) else None
        info = self.filesystem.info(path)
        return int(info["size"]) if info["type"] == "file" else None

    def open(self, name: str = "", *, random: bool = False) -> IO[bytes]:
        """A file of this folder, or this file itself, for reading; local ones have nothing between them and the
        descriptor.

        Parameters
        ----------
        random : bool
            Whether little is read, here and there, so that fetching what lies ahead would not pay.
        """
        path = self._inner(name)
        if self.filesystem is not None:
            options = {"cache_type": "none"} if random else {}
            opened: IO[bytes] = self.filesystem.open(path, "rb", **options)
            return opened
        return open(path, "rb", buffering=0, opener=_open_regular)

    @property
    def local_path(self) -> str | None:
        """The path in the local file system, which a URL may name, too; None if it is elsewhere."""
        if self.filesystem is None:
            return self.path
        protocol = self.filesystem.protocol
        return self.path if "file" in ((protocol,) if isinstance(protocol, str) else protocol) else None

    def _inner(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}" if name else self.path

    def _missing(self) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, "there is no such file or folder", self.given)


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file. A pipe would be waited for, and a device may have no end."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsupportedError("this is not a regular file", file=path)
    return descriptor
