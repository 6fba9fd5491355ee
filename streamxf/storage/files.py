"""Local files and folders of names that others may have put there. Below a folder that is open, they are reached by
literal names, and no link is followed, whatever is swapped meanwhile: `open_regular` reads a file, `create` writes one,
`Draft` replaces one in one step, so that readers see the old one or the new one.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from typing_extensions import Buffer

from streamxf.budget import allocated_bytes, held_bytes
from streamxf.buffers import flat_view, write_all
from streamxf.engine import in_thread
from streamxf.errors import ParameterError, add_note

MOST = 1_000_000  # names; no checkpoint has as many files
DEEPEST = 64  # folders in folders, each of which takes a descriptor while it is walked

TO_NOTHING = "dangling symbolic link: remove it, or choose another target"

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
ENTER = getattr(os, "O_PATH", 0) | FOLDER  # which need not be readable
NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC

NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Of a path that leads nowhere, or through a link or a file."""

_NOT_WAITING = os.O_NOCTTY | os.O_NONBLOCK

_GATHERED = 64 * 1024  # bytes of small pieces that are written at once
_SYNC_STEP = 4 * 2**20  # bytes after which the disk is given work; from 1 to 16 MiB saves take as long
_FLUSH_STEP = 32 * 2**20  # bytes after which the disk is to empty its own cache, if it is not doing so already
_LONG = 0.01  # seconds that such a flush takes where it is worth a thread: a disk would empty 3 GB in a second
_LONG_AT_THE_END = 0.1  # seconds of a sync, which waits for the last writes as well
_slow_disks: dict[int, bool] = {}  # by number; where a flush costs next to nothing, all of them cost 5 to 10% of a save
_WRITE, _AND_WAIT = 2, 7  # flags of SYNC_FILE_RANGE: begin to write, and wait for nothing; until all has been written

_begin: Any = None
with suppress(AttributeError, OSError, TypeError):  # it is Linux's own
    _begin = ctypes.CDLL(None).sync_file_range
    _begin.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

# Some network file systems cannot sync a folder, or do not let it be opened: then its names are as durable as
# the file system makes them by itself. Anything else, EIO above all, is an error.
_CANNOT = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS})
_MAY_NOT = frozenset({errno.EACCES, errno.EPERM})


MAX_COMPONENT = 255  # bytes of a name in a folder, by Linux's file systems


def check_component(name: str) -> str:
    """Return `name` if it names something directly in a folder; raises ParameterError."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ParameterError(f"{ascii(name)[:80]} is not a name in a folder")
    return name


def components(path: str) -> list[str]:
    return [check_component(part) for part in path.split("/")]


def open_folder(folder: str | os.PathLike[str] | int, *, links: bool = True) -> int:
    """Open a folder to list, sync or lock it; that of a descriptor anew, since one may be for its path alone."""
    if isinstance(folder, int):
        return os.open(".", FOLDER, dir_fd=folder)
    return os.open(folder, FOLDER if links else FOLDER | NO_LINK)


@contextmanager
def opened(folder: str | int, parts: Sequence[str] = (), *, make: bool = False, how: int = FOLDER) -> Iterator[int]:
    """Open a folder below `folder`, which is a path that may contain links, or a descriptor. Raises OSError with a
    number of `NOT_THERE` where a part is a link, or no folder. `make` creates those that are not there. What is opened
    by `ENTER` cannot be listed.
    """
    descriptor = os.dup(folder) if isinstance(folder, int) else os.open(folder, how)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            below = os.open(part, how | NO_LINK, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def scan(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    """The entries of an open folder. An error in the block names the folder, and not its descriptor."""
    try:
        with os.scandir(folder) as entries:
            yield entries
    except OSError as error:
        if isinstance(error.filename, int):
            with suppress(OSError):
                error.filename = os.readlink(f"/proc/self/fd/{folder}")
        raise


def walk(folder: int, prefix: str = "", depth: int = DEEPEST) -> Iterator[tuple[int, str, str, bool | None]]:
    """Everything below an open folder, each after what is in it: the descriptor of its folder, its name, its path, and
    whether it is a folder; None of one that cannot be listed, or lies too deep, and was not entered.
    """
    with scan(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, MOST)]
    for name, is_folder in found:
        entered: bool | None = is_folder
        if is_folder:
            entered = None
            try:
                if depth:
                    with opened(folder, [name]) as below:
                        yield from walk(below, f"{prefix}{name}/", depth - 1)
                    entered = True
            except OSError as error:
                if error.errno not in NOT_THERE | {errno.EACCES, errno.EPERM}:
                    raise
        yield folder, name, prefix + name, entered


class NotRegular(OSError):
    """It is a device or a pipe, which might never end; nothing was read of it."""


def open_regular(path: str | os.PathLike[str], folder: int | None = None) -> io.FileIO:
    """Open a file to read it, unbuffered; links are followed, but not by the last name of one in an open `folder`.
    Raises OSError, of the class NotRegular for what is not a regular file, which is not waited for.
    """
    more = _NOT_WAITING if folder is None else _NOT_WAITING | os.O_NOFOLLOW
    file = open(  # noqa: SIM115 - returned
        path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | more, dir_fd=folder)
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotRegular(errno.EINVAL, "this is not a regular file; it was not read", os.fspath(path))
    return file


def create(
    path: str | Path, like: str | Path | None = None, folder: int | None = None, *, anew: bool = True
) -> io.FileIO:
    """Open a file, or a name in an open `folder`, to write it unbuffered, never through a link; `anew` if it must not
    exist, and one that has another name, too, is not changed. From its first byte on nobody may read it who may not
    read the file `like`, which it replaces and which is in the same folder; or OSError.
    """
    mode = 0o666 if like is None else 0o600
    file = open(  # noqa: SIM115 - returned
        path, "xb" if anew else "wb", 0, opener=partial(_open_new, mode, folder)
    )
    if like is not None:
        try:
            _share_like(os.stat(like, dir_fd=folder), file.fileno())
        except BaseException:
            file.close()
            raise
    return file


def _open_new(mode: int, folder: int | None, path: str, flags: int) -> int:
    """Increments share files with other checkpoints, by names of their own: none is emptied in place."""
    descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW, mode, dir_fd=folder)
    facts = os.fstat(descriptor)
    if facts.st_size and facts.st_nlink > 1:
        os.close(descriptor)
        raise FileExistsError(errno.EEXIST, "this file has another name, too, under which it would change", path)
    if flags & os.O_TRUNC and facts.st_size:
        os.ftruncate(descriptor, 0)
    return descriptor


def held_at(path: str) -> int:
    """`held_bytes` of a local file; 0 if it is not a regular file, or cannot be read."""
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):
            return 0
        allocated = allocated_bytes(facts)
        if allocated is None or allocated >= facts.st_size:
            return facts.st_size
        with open_regular(path) as file:
            return held_bytes(file, facts.st_size)
    except (OSError, ValueError):
        return 0


def resolve_target(path: str | os.PathLike[str]) -> Path:
    """Where what is at `path` is replaced: whoever made a link to nothing would choose where a new file comes to be."""
    if os.path.islink(path) and not os.path.exists(path):
        raise FileExistsError(errno.EEXIST, TO_NOTHING, os.fspath(path))
    return Path(os.path.realpath(path))  # absolute, so that the folder may change meanwhile


def _share_like(wanted: os.stat_result, descriptor: int) -> None:
    own = os.fstat(descriptor)
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


class GatheringFile:
    """Writes small pieces to `raw` at once. What is still gathered is written by `flush` alone. Python's own buffers,
    of which a forked child has a copy, would write it into the parent's file when they are dropped there, or wait for
    a lock that a thread of the parent's held.
    """

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._pieces = bytearray()

    def write(self, data: Buffer, /) -> int:
        view = flat_view(data)
        if len(self._pieces) + len(view) > _GATHERED:
            try:
                self.flush()
            except OSError as error:
                add_note(error, "several small items were being written, up to the named one")
                raise
        if len(view) < _GATHERED:
            self._pieces += view
            return len(view)
        return self._raw.write(view)

    def flush(self) -> None:
        pieces, self._pieces = self._pieces, bytearray()
        write_all(self._raw, pieces)

    def fileno(self) -> int:
        return self._raw.fileno()


class SyncedFile:
    """Writes to `raw` from its start to its end, and syncs it: it is to be on the disk when it is done, and goes there
    while it is being written. Left to itself, the kernel keeps in memory what was written until the sync at the end,
    which then waits for all of it: a third of a save, for which the disk had done nothing.

    - `raw` may be a file without a descriptor, such as an object store's, whose closing stores it.
    - `flushes`: whether a disk of this machine has it. Many have a cache of their own, which only a sync makes them
      empty: it takes as long as all writing before it. Where the first such flush takes long, a thread has them empty
      it beside the writing, again and again, as fast as they can. Elsewhere a sync may send the whole file.
    """

    def __init__(self, raw: Any, *, flushes: bool = False) -> None:
        self._raw = raw
        self._written = 0
        self._begun = 0
        self._flushes = flushes
        self._flushed = 0
        self._flush: Future[None] | None = None

    def write(self, data: Buffer, /) -> int | None:
        count: int | None = self._raw.write(data)
        self._written += count or 0
        if self._written - self._begun >= _SYNC_STEP:
            if _begin is not None and (descriptor := self._descriptor()) is not None:
                # Its result does not matter: a file system that cannot do it loses nothing, and what the disk could
                # not take is reported by the sync.
                _begin(descriptor, self._begun, self._written - self._begun, _WRITE)
                if self._flushes and self._written - self._flushed >= _FLUSH_STEP:
                    self._flush_beside(descriptor)
            self._begun = self._written
        return count

    def _flush_beside(self, descriptor: int) -> None:
        disk = os.fstat(descriptor).st_dev
        if not _slow_disks.get(disk, True):
            return
        if self._flush is not None:
            if not self._flush.done():
                return
            self._flush.result()
        self._flushed = self._written
        # A descriptor of its own, since the file may be given up and closed meanwhile.
        self._flush = in_thread(partial(_flush, os.dup(descriptor), disk, self._written), "streamxf-flush")

    def sync(self) -> None:
        """Wait until the system has everything, and the disk; raises OSError for whatever they did not take."""
        self._raw.flush()
        if self._flush is not None:
            self._flush.result()  # the system reports an error once, and did so to the thread
        if (descriptor := self._descriptor()) is not None:
            begin = perf_counter()
            os.fsync(descriptor)
            if self._flushes and perf_counter() - begin > _LONG_AT_THE_END:
                _slow_disks[os.fstat(descriptor).st_dev] = True

    def _descriptor(self) -> int | None:
        with suppress(io.UnsupportedOperation, AttributeError):
            return int(self._raw.fileno())
        return None


def _flush(descriptor: int, disk: int, size: int) -> None:
    """Empty a disk's cache, once that has all `size` bytes of a file, and note whether this took long."""
    try:
        _begin(descriptor, 0, size, _AND_WAIT)
        begin = perf_counter()
        os.fdatasync(descriptor)
        _slow_disks[disk] = perf_counter() - begin > _LONG
    finally:
        os.close(descriptor)


class Draft(AbstractContextManager[SyncedFile]):
    """A file that is written beside `name` in a folder, and takes its place in one step when ``with`` is left without
    an error; otherwise the old file stays. Unbuffered: after a fork the child's copy of a buffer would be flushed into
    the parent's file. For the same reason nothing happens to one that is only dropped.

    - `folder`: a descriptor, or a path that may contain links.
    - `like`: whether there is a file of that name, whose owner and permissions stay, if this process may give them.
    - `sync`, `check`, `once`: as in `Storage.put`.
    - `hidden`: whether the draft's name begins with a dot, and of what it replaces only the contents are synced.
    """

    def __init__(
        self,
        folder: int | str,
        name: str,
        *,
        like: bool,
        sync: bool = True,
        check: Callable[[], object] | None = None,
        once: bool = False,
        hidden: bool = False,
    ) -> None:
        self._name, self._sync, self._check, self._once = name, sync, check, once
        self._sync_names = sync and not hidden
        self._draft = draft_of(f".{name}" if hidden else name)
        self._path = name if isinstance(folder, int) else os.path.join(folder, name)
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(opened(folder, how=ENTER))
        try:
            self._raw = create(self._draft, name if like else None, self._folder)
        except BaseException as error:
            with self._stack:
                self._drop(error)
            raise
        self.file = SyncedFile(self._raw)

    def __enter__(self) -> SyncedFile:
        return self.file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._stack:
            try:
                if error is None:
                    self._take_place()
            except BaseException as reason:
                error = reason
                raise
            finally:
                with suppress(OSError):
                    self._raw.close()
                if error is not None:
                    self._drop(error)

    def _take_place(self) -> None:
        if self._sync:
            self.file.sync()
        self._raw.close()
        if self._sync_names:
            sync_folder(self._folder)  # the data files' names, before anything refers to them
        if self._check is not None:
            self._check()
        if self._once:
            _link(self._folder, self._draft, self._name)
        else:
            os.replace(self._draft, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        if self._sync_names:
            sync_folder(self._folder)

    def _drop(self, error: BaseException) -> None:
        if isinstance(error, OSError) and error.filename == (None if error.errno == errno.ENOSPC else self._draft):
            error.filename = self._path
        with drop_draft_after(error, self._draft), suppress(FileNotFoundError):
            os.unlink(self._draft, dir_fd=self._folder)


def replacing(path: str) -> Draft | io.FileIO:
    """Write a file anew, as `Draft`. A link is followed to its target, which keeps its permissions; raises
    FileExistsError if that is missing. What is no regular file (a device, a named pipe) cannot be replaced, and is
    written to directly.
    """
    target = resolve_target(path)
    if target.exists() and not target.is_file():
        return open(target, "wb", buffering=0)
    return Draft(str(target.parent), target.name, like=target.exists(), hidden=True)


def _link(folder: int, draft: str, name: str) -> None:
    """Give a file its name if nothing has it; where a file system has no links, there is a moment between."""
    try:
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(draft, dir_fd=folder)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666, dir_fd=folder))
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def drop_draft_after(error: BaseException, draft: str | os.PathLike[str]) -> Iterator[None]:
    """Remove a draft after `error`, which is what people need first; that this fails, too, is a note."""
    try:
        yield
    except Exception as reason:
        if getattr(reason, "errno", None) != errno.EROFS:  # or there is none
            add_note(error, f"{os.fspath(draft)} could not be removed: {type(reason).__name__}: {reason}")


def draft_of(name: str) -> str:
    return f"{name}.{secrets.token_hex(4)}.tmp"


def sync_folder(folder: str | os.PathLike[str] | int) -> None:
    """Bring a folder's names to the disk, where its file system can do that. Raises OSError if the disk fails."""
    try:
        descriptor = open_folder(folder)
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
