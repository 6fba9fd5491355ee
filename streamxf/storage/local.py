"""`LocalStorage`: the local file system, and what is mounted into it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from streamxf.buffers import write_all
from streamxf.errors import AbortedError, MetadataError
from streamxf.format.names import LOCK
from streamxf.storage import abilities, files
from streamxf.storage.abilities import MOUNTS, UNKNOWN_FUSE, UNKNOWN_MOUNT, Abilities, Mount, Volume
from streamxf.storage.lock import acquire, is_still, try_lock_file
from streamxf.storage.reading import StoredFile, size_of
from streamxf.storage.storage import BESIDE, NOT_REGULAR, Storage, StorageEntry

_SPECIAL = frozenset({errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EINVAL})
"""Of links, and of what is no regular file."""

_SETTLED = 2 * 10**9  # ns after which a change of a folder shows in its times


class LocalStorage(Storage, raises_only_known=True):
    """A local folder or file. While its `folder` is held open, files are written, listed and removed in that one alone,
    whatever is put in its place. The path of the place itself may have links; below it none is followed, but by `open`
    within the folder.
    """

    near = True

    def __init__(self, path: str | os.PathLike[str], location: str | None = None, folder: int | None = None) -> None:
        super().__init__(os.fspath(path), os.fspath(path) if location is None else location)
        self.folder = folder
        self._close: Callable[[], Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process may have another working directory, and does not hold the folder."""
        return _told, (str(Path(self.path).absolute()), self._location, self._said)

    @property
    def own_abilities(self) -> Abilities:  # type: ignore[override]
        """By the mount that has the folder, or will have it: that of the nearest one above which is there."""
        place = self.place
        while isinstance(place, str) and not os.path.isdir(place) and place != os.path.dirname(os.path.realpath(place)):
            place = os.path.dirname(os.path.realpath(place))
        kind, _ = abilities.mounted(place)
        return MOUNTS.get(kind, UNKNOWN_FUSE if kind.startswith("fuse") else UNKNOWN_MOUNT)

    @property
    def place(self) -> str | int:
        """The descriptor while it is held, or else the path."""
        return self.path if self.folder is None else self.folder

    def path_of(self, name: str) -> str:
        return os.path.join(self.path, name) if name else self.path

    def parent(self) -> tuple[Storage, str]:
        whole = Path(self.path).absolute()
        folder, name = os.path.split(whole.resolve() if whole.name == ".." else whole)
        return self._at(folder, folder), name

    def real(self, name: str = "") -> str:
        return os.path.realpath(self.path_of(name))

    def resolved(self, *, to_replace: bool = False) -> Storage:
        path = str(files.resolve_target(self.path)) if to_replace else self.real()
        return self._at(path, path)

    def _at(self, location: str, path: str, folder: int | None = None) -> LocalStorage:
        made = LocalStorage(path, location, folder)
        made._said = self._said
        return made

    def is_link(self, name: str) -> bool:
        return os.path.islink(self.path_of(name))

    def info(self, path: str = "") -> StorageEntry:
        if not path:
            return _entry(self.name, os.stat(self.path))
        with _missing_files(), self._below(path) as (folder, name):
            return _entry(name, os.stat(name, dir_fd=folder, follow_symlinks=False))

    def entries(self, path: str = "") -> Iterator[StorageEntry]:
        with (
            files.opened(self.place, files.components(path) if path else ["."]) as folder,
            files.scan(folder) as entries,
        ):
            for entry in entries:
                with suppress(FileNotFoundError):  # removed meanwhile
                    yield _entry(entry.name, entry.stat(follow_symlinks=False))

    def names(self, known: Collection[str] | None = None) -> dict[str, int | None]:
        """Each size takes a call, over a network perhaps, and every rank may ask in a folder that holds the files of
        all: so those of others than the `known` are None. These are looked for one by one if they are not listed: this
        process may write to the folder and not list it, or its listing is older than they are.
        """
        found: dict[str, int | None] = {}
        unlisted = (FileNotFoundError, PermissionError) if known else (FileNotFoundError,)
        with suppress(*unlisted), files.opened(self.place, ["."]) as folder, files.scan(folder) as entries:
            for entry in entries:
                if entry.name == LOCK or entry.is_dir(follow_symlinks=False):
                    continue
                with suppress(FileNotFoundError):  # removed meanwhile
                    wanted = (known is None or entry.name in known) and entry.is_file(follow_symlinks=False)
                    found[entry.name] = entry.stat(follow_symlinks=False).st_size if wanted else None
        for name in (name for name in known or () if name not in found):
            with suppress(FileNotFoundError), _missing_files():
                found[name] = _entry(name, self._facts(name)).size
        return found

    def folders(self) -> dict[str, str | None]:
        with os.scandir(self.path) as entries:
            found = {each.name: os.path.realpath(each.path) if each.is_symlink() else None for each in entries}
        return {
            name: link for name, link in found.items() if _may_be_folder(link or self.path_of(name), link is not None)
        }

    def below(self, path: str = "", *, folders: bool = False) -> Iterator[StorageEntry]:
        with files.opened(self.place, files.components(path) if path else ["."]) as top:
            for folder, name, inner, is_folder in files.walk(top):
                with suppress(FileNotFoundError):
                    if is_folder is not False:
                        if folders or is_folder is None:  # who knows a name in that may read it all the same
                            yield StorageEntry(inner, "folder" if folders else "other")
                    elif inner != LOCK:
                        yield _entry(inner, os.stat(name, dir_fd=folder, follow_symlinks=False))

    def written(self, names: Collection[str]) -> dict[str, float | None]:
        found: dict[str, float | None] = dict.fromkeys(names)
        for name in names:
            with suppress(OSError):
                found[name] = self._facts(name).st_mtime
        return found

    def forget_listings(self) -> None:
        """Mounts that remember a listing (sshfs for 20 s, NFS for up to 60) list anew what has changed from here."""
        if os.path.isdir(self.place) and self.abilities.locks != "hosts":
            with suppress(OSError):  # who may only read waits
                os.utime(self.place)

    def held(self, name: str, size: int | None) -> int:
        return files.held_at(self.path_of(name))

    def version(self, name: str = "") -> object:
        """Times of writing alone would not do: programs that copy files set them back."""
        try:
            with _missing_files():
                facts = os.stat(self.path_of(name))
        except FileNotFoundError:
            return None
        return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]

    def fingerprints(self, folder: str, names: Iterable[str]) -> tuple[str | None, str | None]:
        """The first is None, too, while the folder's times may not show the next change."""
        of_folder = None
        with suppress(OSError):
            facts = os.lstat(self.path_of(folder))
            if stat.S_ISDIR(facts.st_mode) and facts.st_mtime_ns + _SETTLED <= time.time_ns():
                of_folder = f"{facts.st_ino:x}.{facts.st_mtime_ns:x}"
        for name in names:
            with suppress(OSError):
                facts = os.lstat(self.path_of(f"{folder}/{name}"))
                marks = facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
                return of_folder, ".".join(f"{mark:x}" for mark in marks)
        return of_folder, None

    def _facts(self, name: str) -> os.stat_result:
        return os.stat(self._target(name), dir_fd=self.folder, follow_symlinks=False)

    def _target(self, name: str) -> str:
        """What a call is given beside ``dir_fd=self.folder``."""
        return self.path_of(name) if self.folder is None else name

    @contextmanager
    def _below(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The folder that a path leads to through no link, open for what needs no listing, and the name in it."""
        *parts, name = files.components(path)
        with files.opened(self.place, parts, make=make, how=files.ENTER) as folder:
            yield folder, name

    @contextmanager
    def open(self, name: str = "", *, random: bool = False, step: int | None = None) -> Iterator[StoredFile]:
        with self._opened(name) as raw:
            if (size := size_of(raw)) is None:
                raise self._no_size(name)
            yield StoredFile(self.label(name), size, raw)

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Looked at first, since to open a device may do something; and again, since it may be another one by then."""
        with self._below(path) as (folder, name):
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise files.NotRegular(errno.EINVAL, "this is not a regular file; it was not read", self.label(path))
            with files.open_regular(name, folder) as file:
                file.seek(start)
                data = bytearray()
                while len(data) < stop - start and (piece := file.read(stop - start - len(data))):
                    data += piece
                return bytes(data)

    def _opened(self, name: str) -> IO[bytes]:
        if name.startswith(BESIDE):
            place, name = self.beside(name)
            return cast("LocalStorage", place)._opened(name)
        path = self.path_of(name)
        with _missing_files():
            if not name:
                self._check_regular(path, name)
                return files.open_regular(path)  # again: it may have been replaced meanwhile
            try:
                return self._open_inside(files.components(name))
            except OSError as error:
                if error.errno not in _SPECIAL:
                    raise
            return self._open_inside(self._check_regular(path, name))

    def _open_inside(self, parts: list[str]) -> IO[bytes]:
        """Open what the parts lead to, through no link."""
        with files.opened(self.place, parts[:-1], how=files.ENTER) as folder:
            return files.open_regular(parts[-1], folder)

    def _check_regular(self, path: str, name: str) -> list[str]:
        """Refuse what is not a file of this folder, before it is opened: a link that leads out of it, or a pipe or a
        device in place of a file, which might never end. Returns where it is in the folder, links resolved.
        """
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise MetadataError(NOT_REGULAR, file=self.label(name))
        base, real = self.real(), os.path.realpath(path)
        if name and os.path.commonpath([base, real]) != base:
            raise MetadataError(
                f"this is a link to {real}, outside the checkpoint's folder; it was not followed. Put the file itself "
                "there if you trust it",
                file=self.label(name),
            )
        return os.path.relpath(real, base).split(os.sep)

    def put(self, path: str, data: bytes, *, make: bool = False, over: str | None = None, **how: Any) -> None:
        try:
            if make:
                os.makedirs(self.path, exist_ok=True)
            like = how.get("check") is not None
            with self._below(path, make=make) as (folder, name), files.Draft(folder, name, like=like, **how) as file:
                write_all(file, data)
        except OSError as error:
            if error.errno is not None:  # its name is one in the folder, that of the draft, or none
                error.filename = self.path_of(path)
                del error.filename2
            raise
        if make and how.get("sync", True):
            for above in Path(path).parent.parents:  # the names of folders that may be new
                files.sync_folder(self.path_of(str(above)))

    def write(self, path: str, data: bytes, *, over: str | None = None) -> None:
        self.put(path, data)

    @contextmanager
    def create(self, path: str = "") -> Iterator[IO[bytes]]:
        """After an error the file is the caller's to remove."""
        try:
            raw = files.create(self._target(path), folder=self.folder, anew=False)
        except OSError as error:
            error.filename = self.path_of(path)
            raise
        with raw:
            file = files.GatheringFile(raw)
            yield cast("IO[bytes]", file)
            file.flush()

    def link(self, name: str, folder: Storage) -> None:
        if not (folder.near and self.abilities.links):
            super().link(name, folder)
        os.link(folder.path_of(name), self._target(name), dst_dir_fd=self.folder, follow_symlinks=False)

    def replacing(self) -> AbstractContextManager[IO[bytes]]:
        return cast("AbstractContextManager[IO[bytes]]", files.replacing(self.path))

    def remove(self, paths: Iterable[str]) -> dict[str, Exception]:
        """Folders stay: they are not what was asked for."""
        return _unlink_each(self.place, paths)

    def make_folder(self, path: str = "", *, durable: bool = True) -> list[Path]:
        folder = self.path_of(path)
        whole = Path(os.path.realpath(folder))
        made = [place for place in (whole, *whole.parents) if not place.exists()]
        os.makedirs(folder, exist_ok=True)
        if durable:
            for parent in dict.fromkeys(place.parent for place in (whole, *made)):
                files.sync_folder(parent)
        return made

    def sync(self) -> None:
        files.sync_folder(self.place)

    def remove_folder(self, name: str, turns: Sequence[Collection[str]]) -> list[str]:
        with files.opened(self.path) as run:
            try:
                if stat.S_ISLNK(os.stat(name, dir_fd=run, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=run)
                    return []
                with files.opened(run, [name]) as folder:
                    failed = next(filter(None, (_unlink_each(folder, paths) for paths in turns)), {})
                    left = _prune(folder)
                    for reason in failed.values():
                        raise reason
                    if left:
                        return left
                    _unlink(folder, LOCK)
                os.rmdir(name, dir_fd=run)
            except FileNotFoundError:
                return []  # someone else removed it, too
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return [LOCK]  # who waited for it
        return []

    def remove_all(self) -> None:
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            shutil.rmtree(self.path)
        else:
            with suppress(FileNotFoundError):
                os.unlink(self.path)

    def hold(self, *, links: bool = True) -> LocalStorage:
        if self.folder is not None:
            return self
        try:
            descriptor = os.open(self.path, files.ENTER if links else files.ENTER | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            text = "this folder was replaced by a link or a file, and nothing was saved: find out by whom"
            raise AbortedError(text, file=self.label()) from error
        held = self._at(self._location, self.path, descriptor)
        held._close = close = weakref.finalize(held, os.close, descriptor)
        close.atexit = False  # threads may still be writing there
        return held

    def let_go(self) -> LocalStorage:
        if self._close is not None:
            self._close()
        return self._at(self._location, self.path)

    def was_swapped(self) -> bool:
        return self.folder is not None and not is_still(self.folder, self.path)

    @property
    def _locks(self) -> bool:
        return self.abilities.locks in ("machine", "hosts")

    def acquire(self, patience: float, *, links: bool = True) -> Callable[[], None] | None:
        return acquire(self.path, self.place, patience, links) if self._locks else None

    def lock_file(self, path: str, *, make: bool = False) -> IO[bytes] | None:
        if not self._locks:
            return None
        try:
            with self._below(path) as (folder, name):
                return try_lock_file(folder, name, make)
        except BlockingIOError:
            raise
        except OSError:
            return None

    def mount(self) -> Mount | None:
        return Mount.of(self.place) if os.path.isdir(self.place) else None

    def volume(self) -> Volume | None:
        return Volume.of(self.path)


def _told(path: str, location: str, said: Abilities) -> Storage:
    return LocalStorage(path, location).told(said)


def _entry(name: str, facts: os.stat_result) -> StorageEntry:
    if stat.S_ISREG(facts.st_mode):
        mark = facts.st_ino, facts.st_mtime_ns
        return StorageEntry(name, "file", facts.st_size, facts.st_mtime, None, facts.st_nlink, mark)
    is_folder, is_link = stat.S_ISDIR(facts.st_mode), stat.S_ISLNK(facts.st_mode)
    return StorageEntry(name, "folder" if is_folder else "link" if is_link else "other")


@contextmanager
def _missing_files() -> Iterator[None]:
    """Raise FileNotFoundError where a path leads through another file or in circles, or has a part that is too long."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
            raise
        raise FileNotFoundError(errno.ENOENT, error.strerror, error.filename) from None


def _unlink_each(folder: str | int, paths: Iterable[str]) -> dict[str, Exception]:
    failed: dict[str, Exception] = {}
    for path in paths:
        try:
            _unlink(folder, path)
        except Exception as error:  # the others are removed all the same
            failed[path] = error
    return failed


def _unlink(folder: str | int, path: str) -> None:
    *parts, name = files.components(path)
    try:
        with files.opened(folder, parts, how=files.ENTER) as below:
            os.unlink(name, dir_fd=below)
    except OSError as error:
        if error.errno not in (*files.NOT_THERE, errno.EISDIR):  # a folder is not what was asked for, so it stays
            raise


def _prune(top: int) -> list[str]:
    """Remove the folders below that are empty; what is there besides."""
    left: list[str] = []
    for folder, name, path, is_folder in files.walk(top):
        if is_folder is False:
            left += [path] if path != LOCK else []
        elif not left or not left[-1].startswith(f"{path}/"):
            try:
                os.rmdir(name, dir_fd=folder)
            except FileNotFoundError:
                pass
            except OSError:
                left.append(path)  # not empty, or swapped for a link, or not ours
        if len(left) == files.MOST:
            break
    return left


def _may_be_folder(path: str, is_link: bool) -> bool:
    """Also what cannot be looked at for now: a disk or a mount that fails or is away makes no folder vanish."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return is_link
    except OSError:
        return True
