"""`Storage`: a folder or a file, in the local file system or wherever fsspec reads; all that touches storage goes
through it.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO, Any

from streamxf.errors import (
    ContainerError,
    ForeignError,
    MetadataError,
    ParameterError,
    StreamxfError,
    UnsupportedError,
    redacted,
)
from streamxf.storage.calls import is_asynchronous
from streamxf.storage.disk import ONE_PUT, RENAMES, Check, put_local, put_renamed
from streamxf.storage.fetch import FetchedFile
from streamxf.storage.files import create, held_at, open_regular
from streamxf.storage.inside import FOLDER, components, opened
from streamxf.storage.multipart import PendingUpload, abort_upload, pending_uploads, put_over, stamp_of
from streamxf.storage.source import FileSlice, PositionalFile, access_to
from streamxf.storage.upload import creating

LOCK = ".streamxf.lock"
"""Held while something is published into a folder. No part of what lies there: `Storage.names` leaves it out."""

ENTER = getattr(os, "O_PATH", 0) | FOLDER  # which need not be readable
_SPECIAL = frozenset({errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EINVAL})
"""Of links, and of what is no regular file."""

_CACHES = frozenset({"blockcache", "cached", "filecache", "simplecache"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://", re.ASCII)


def is_url(path: object) -> bool:
    return isinstance(path, str) and (_SCHEME.match(path) is not None or "::" in path)


def check_local(path: str | os.PathLike[str] | None, instead: str) -> None:
    """Refuse a URL, of which torch would make a folder with a name such as ``s3:``; `instead` is the class for URLs."""
    if isinstance(path, str) and _SCHEME.match(path):
        raise ParameterError(f"{path!r:.200} is a URL, and this class takes a folder: use streamxf.{instead} for it")


@contextmanager
def storage_errors(file: str) -> Iterator[None]:
    """Replace what a storage's package raises, such as botocore's ``ClientError``, by a `ForeignError`."""
    try:
        yield
    except (StreamxfError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ForeignError(f"the storage failed: {type(error).__name__}: {error}", file=file) from error


@dataclass
class StoredFile:
    """A file that is open for reading.

    - `name`: for errors.
    - `access`: to the file, by position; may be replaced by one that counts or measures.
    - `fetched`: the file in an object store, below `access`; None of any other file.
    """

    name: str
    size: int
    raw: IO[bytes]
    access: PositionalFile
    fetched: FetchedFile | None = None
    _ahead: tuple[int, bytes] = (0, b"")

    def slice(self, at: int, size: int) -> FileSlice:
        if at + size > self.size:
            raise ContainerError(
                f"{size} bytes at {at} reach beyond the end of the file, which has {self.size}: it was cut",
                file=self.name,
            )
        start, ahead = self._ahead
        if start <= at and at + size <= start + len(ahead):
            return FileSlice(self.access, at, size, ahead[at - start : at - start + size])
        return FileSlice(self.access, at, size)

    def read_ahead(self, at: int, size: int) -> None:
        """Read `size` bytes at once, so that slices of them need not be read one by one."""
        self._ahead = at, FileSlice(self.access, at, size).read_at(0, size)

    def read(self, at: int = 0, size: int | None = None) -> bytes:
        size = self.size - at if size is None else size
        return self.slice(at, size).read_at(0, size)


@dataclass(frozen=True)
class Storage:
    """Where a checkpoint is: as the caller gave it, as the file system takes it, fsspec's file system, None for the
    local one, and an open `folder`: while it is held, files are written, listed and removed in that one alone.
    """

    given: str
    path: str
    filesystem: Any = None
    folder: int | None = None

    @classmethod
    def of(cls, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Storage:
        """Nothing is read yet. A URL is for fsspec, and so is anything with `storage_options`."""
        text = os.fspath(path)
        if is_url(text) or storage_options:
            try:
                from fsspec.core import url_to_fs

                filesystem, inner = url_to_fs(text, **(storage_options or {}))
            except ImportError as error:
                raise UnsupportedError(f"this URL needs a package that is not installed: {error}", file=text) from None
            except ValueError as error:
                raise ParameterError(f"this URL cannot be used: {error}", file=text) from None
            return cls(text, inner, filesystem)
        return cls(text, text)

    @property
    def local(self) -> str | None:
        if self.filesystem is None:
            return self.path
        for layer, path, names in self._layers():
            if "file" in names:
                return str(layer._strip_protocol(path))
        return None

    @property
    def place(self) -> str | int:
        """Of what is local, the descriptor while it is open, or else the path."""
        return str(self.local) if self.folder is None else self.folder

    @property
    def protocol(self) -> str:
        """The protocol of the storage below all layers of fsspec's: ``file``, ``s3``, ..."""
        return ["file", *(names[0] for _, _, names in self._layers())][-1]

    @property
    def is_cached(self) -> bool:
        """Whether files are read through a cache of fsspec's, which may remember what has been replaced since."""
        return any(_CACHES.intersection(names) for _, _, names in self._layers())

    @property
    def replaces_in_one_step(self) -> bool:
        return self.protocol in ONE_PUT | RENAMES | {"file"}

    @property
    def name(self) -> str:
        return os.path.basename(self.path.rstrip("/"))

    def full(self, name: str) -> str:
        return f"{self.given.rstrip('/')}/{name}" if name else self.given

    def child(self, name: str) -> Storage:
        """A file of this folder, as a place of its own. A link is followed then, wherever it leads."""
        return Storage(self.full(name), self.inner(name), self.filesystem)

    def is_folder(self) -> bool:
        """Whether it is a folder and not a file. Raises FileNotFoundError if it is neither, UnsupportedError if it is a
        device, a pipe or the like.
        """
        if self.filesystem is not None:
            self.forget_listings()
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

    def names(self, known: Collection[str] | None = None) -> dict[str, int | None]:
        """The names directly in the folder, without those of folders, each with its size in bytes: None for what is not
        a regular file, such as a link, and where the file system reports none. A folder that is not there has no
        files.

        - `known`: the only names whose sizes matter. In a local folder each size takes a call, over a network perhaps,
          and every rank may ask in a folder that holds the files of all; the sizes of others are None there. They are
          looked for one by one if they are not listed: this process may write to the folder and not list it, or its
          listing is older than they are.
        """
        found: dict[str, int | None] = {}
        if self.local is not None:
            unlisted = (FileNotFoundError, PermissionError) if known else (FileNotFoundError,)
            with suppress(*unlisted), opened(self.place, ["."]) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name == LOCK or entry.is_dir(follow_symlinks=False):
                        continue
                    with suppress(FileNotFoundError):  # removed meanwhile
                        wanted = (known is None or entry.name in known) and entry.is_file(follow_symlinks=False)
                        found[entry.name] = entry.stat(follow_symlinks=False).st_size if wanted else None
            for name in (name for name in known or () if name not in found):
                with suppress(FileNotFoundError), _missing_files():
                    facts = self.facts(name)
                    found[name] = facts.st_size if stat.S_ISREG(facts.st_mode) else None
            return found
        with suppress(FileNotFoundError):
            found |= {name: entry.get("size") for name, entry in self.listed() if entry.get("type") != "directory"}
            found.pop(LOCK, None)
        return found

    def listed(self) -> list[tuple[str, dict[str, Any]]]:
        self.forget_listings()
        entries = self.filesystem.ls(self.path, detail=True)
        return [(os.path.basename(each["name"].rstrip("/")), each) for each in entries]

    def forget_listings(self) -> None:
        """Have fsspec ask again, which may remember names and sizes from before another process changed them."""
        if self.filesystem is not None:
            self.filesystem.invalidate_cache()

    def folders(self) -> list[str]:
        """The names of the folders directly in the folder, links to folders among them; raises FileNotFoundError."""
        local = self.local
        if local is not None:
            with os.scandir(local) as entries:
                return [entry.name for entry in entries if entry.is_dir()]
        return [name for name, entry in self.listed() if entry.get("type") == "directory"]

    @contextmanager
    def entered(self) -> Iterator[Storage]:
        """The same place with a local folder held open, so that no file of it is looked for along its whole path."""
        descriptor = None
        if self.folder is None and (local := self.local) is not None:
            with suppress(OSError):  # whoever opens a file is told
                descriptor = os.open(local, ENTER)
        try:
            yield self if descriptor is None else replace(self, folder=descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def facts(self, name: str) -> os.stat_result:
        """What the system says of a local file of this folder, or of a link; raises OSError."""
        return os.stat(self._target(name), dir_fd=self.folder, follow_symlinks=False)

    @contextmanager
    def open(self, name: str = "", *, random: bool = False, step: int | None = None) -> Iterator[StoredFile]:
        """Open a file of this folder, or this file itself, for reading. With `random` little is read, here and there,
        so that fetching what lies ahead would not pay; `step` is the bytes that fsspec fetches at a time.

        Raises FileNotFoundError; MetadataError if it is not a regular file, or a link that leads out of the folder: it
        was not read then; UnsupportedError if it does not tell its size.
        """
        with self._opened(name, random, step) as raw:
            try:
                size = raw.seek(0, os.SEEK_END)
                raw.seek(0)
            except OSError as error:
                if error.errno == errno.EINVAL:  # as those that Linux makes up in /proc
                    raise UnsupportedError("the file has no known size", file=self.full(name)) from error
                raise
            if self.local_path(name) is not None or not is_asynchronous(self.filesystem):
                yield StoredFile(self.full(name), size, raw, access_to(raw))
                return
            with closing(FetchedFile(self.filesystem, self.inner(name), size)) as fetched:
                yield StoredFile(self.full(name), size, raw, fetched, fetched)

    @contextmanager
    def create(self, name: str = "") -> Iterator[IO[bytes]]:
        """Open a file of this folder, or this file itself, for writing, once and in order. After an error nothing of it
        is left where fsspec stores it; locally it is the caller's to remove.
        """
        if (path := self.local_path(name)) is not None:
            try:
                raw = create(self._target(name), folder=self.folder, anew=False)
            except OSError as error:
                error.filename = path
                raise
            with io.BufferedWriter(raw) as file:
                yield file
            return
        with creating(self.filesystem, self.inner(name)) as stream:
            yield stream

    def put(
        self, name: str, data: bytes, *, sync: bool = True, check: Check | None = None, over: str | None = None
    ) -> None:
        """Put `data` at `name`, replacing what is there in one step where the storage has such a step. Raises OSError;
        what was there before is then still there, unless the error came after the step: when the folder could not be
        synced, or when the answer of a server was lost.

        - `sync`: whether the disk must have it when this returns.
        - `check`: called last before that step, and may raise. With it, `data` is a new version of what is there: local
          files keep their owner and permissions, as far as this process may give them away.
        - `over`: the `stamp` of what may be replaced; raises ReplacedMeanwhile if something else is there by now.
        """
        if self.local is not None:
            put_local(self._target(name), data, sync, check, self.folder)
        elif self.protocol in RENAMES:
            put_renamed(self.filesystem, self.inner(name), data, check)
        else:
            if check is not None:
                check()
            if over is None:
                self.filesystem.pipe_file(self.inner(name), data)
            else:
                put_over(self.filesystem, self.inner(name), data, over)
            self.forget_listings()  # adlfs keeps those that lack what it has put

    def stamp(self, name: str) -> str | None:
        """What identifies the file that is there now, for `put`; None where the storage cannot put on a condition."""
        return stamp_of(self.filesystem, self.inner(name)) if self.local is None else None

    def uploads(self) -> list[PendingUpload]:
        """Uploads to files of this folder that were begun, and neither completed nor aborted."""
        return pending_uploads(self.filesystem, self.path) if self.local is None else []

    def abort(self, upload: PendingUpload) -> None:
        abort_upload(self.filesystem, upload)

    def remove(self, names: Iterable[str]) -> dict[str, Exception]:
        failed: dict[str, Exception] = {}
        for name in names:
            try:
                if self.local is not None:
                    os.unlink(self._target(name), dir_fd=self.folder)
                else:
                    self.filesystem.rm_file(self.inner(name))
            except FileNotFoundError:
                pass
            except Exception as error:  # the others are removed all the same
                failed[name] = error
        return failed

    def held(self, name: str, size: int | None) -> int:
        """Bytes that the storage holds of a file of this folder, holes left out; `size` is what it says where it cannot
        be asked. What cannot be asked at all counts for nothing.
        """
        path = self.local_path(name)
        return held_at(path) if path is not None else size or 0

    def held_by(self, names: Iterable[str], listed: Mapping[str, int | None] | None = None) -> int:
        """The same of several files; `listed` is what `names` returned, where the caller has it already."""
        if listed is None:
            listed = self.names(()) if self.local is None else {}
        return sum(self.held(name, listed.get(name)) for name in names)

    def inner(self, name: str) -> str:
        return f"{self.path.rstrip('/') or '/'}/{name}" if name else self.path

    def local_path(self, name: str) -> str | None:
        local = self.local
        return os.path.join(local, name) if local is not None and name else local

    def version(self, name: str = "") -> object:
        """A value that changes when a file of this folder, or this file itself, is written to or replaced.

        Times of writing alone would not do: programs that copy files set them back. None where there is no file.
        """
        if (path := self.local_path(name)) is None:
            self.forget_listings()
            return self.filesystem.ukey(self.inner(name))
        try:
            with _missing_files():
                facts = os.stat(path)
        except FileNotFoundError:
            return None
        return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]

    def _target(self, name: str) -> str:
        """What a call is given beside ``dir_fd=self.folder``."""
        return str(self.local_path(name)) if self.folder is None else name

    def _missing(self) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, "there is no such file or folder", redacted(self.given))

    def _opened(self, name: str, random: bool, step: int | None) -> IO[bytes]:
        if (path := self.local_path(name)) is None:
            options: dict[str, Any] = {"cache_type": "none"} if random else {}
            if step is not None:
                options["block_size"] = step
            remote: IO[bytes] = self.filesystem.open(self.inner(name), "rb", **options)
            return remote
        with _missing_files():
            if not name:
                self._check_regular(path, name)
                return open_regular(path)  # again: it may have been replaced meanwhile
            try:
                return self._open_inside(components(name))
            except OSError as error:
                if error.errno not in _SPECIAL:
                    raise
            return self._open_inside(self._check_regular(path, name))

    def _open_inside(self, parts: list[str]) -> IO[bytes]:
        """Open what the parts lead to, through no link."""
        with self.entered() as here, opened(here.place, parts[:-1]) as folder:
            return open_regular(parts[-1], folder)

    def _check_regular(self, path: str, name: str) -> list[str]:
        """Refuse what is not a file of this folder, before it is opened: a link that leads out of it, or a pipe or a
        device in place of a file, which might never end. Returns where it is in the folder, links resolved.
        """
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise MetadataError(
                "this is not a regular file, so no writer made it; it was not read", file=self.full(name)
            )
        base, real = os.path.realpath(self.local or ""), os.path.realpath(path)
        if name and os.path.commonpath([base, real]) != base:
            raise MetadataError(
                f"this is a link to {real}, outside the checkpoint's folder; it was not followed. Put the file itself "
                "there if you trust it",
                file=self.full(name),
            )
        return os.path.relpath(real, base).split(os.sep)

    def _layers(self) -> Iterator[tuple[Any, Any, tuple[str, ...]]]:
        """Fsspec's file systems, the outermost first: caches, and folders that pose as a root."""
        layer, path = self.filesystem, self.path
        while hasattr(layer, "_strip_protocol"):
            path = layer._strip_protocol(path)
            names = (layer.protocol,) if isinstance(layer.protocol, str) else tuple(layer.protocol)
            yield layer, path, names
            if "dir" in names:
                path = layer._join(path)
            layer = getattr(layer, "fs", None)


@contextmanager
def _missing_files() -> Iterator[None]:
    """Raise FileNotFoundError where a path leads through another file or in circles, or has a part that is too long."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
            raise
        raise FileNotFoundError(errno.ENOENT, error.strerror, error.filename) from None


# Tensors of many ranks lie in the files of all of them; what fsspec opens may hold much of a file ahead.
_LOCAL, _REMOTE = 256, 8


class OpenFiles:
    """Opens files by name, and closes the one that was used least recently when there are too many; not while blocks of
    it are under way.
    """

    def __init__(self, open_file: Callable[[str], AbstractContextManager[StoredFile]], *, local: bool) -> None:
        self._open = open_file
        self._most = _LOCAL if local else _REMOTE
        self._files: OrderedDict[str, tuple[StoredFile, ExitStack]] = OrderedDict()

    def __getitem__(self, name: str) -> StoredFile:
        if (known := self._files.get(name)) is not None:
            self._files.move_to_end(name)
            return known[0]
        while len(self._files) >= self._most:
            _, (_, stack) = self._files.popitem(last=False)
            stack.close()
        stack = ExitStack()
        opened = stack.enter_context(self._open(name))
        self._files[name] = opened, stack
        return opened

    def close(self) -> None:
        while self._files:
            _, (_, stack) = self._files.popitem()
            stack.close()
