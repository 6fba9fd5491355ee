"""Where a reader's bytes come from: `FileSlice`, a run of bytes inside a seekable file, read by position; `StoredFile`,
a file that is open for reading; and `OpenFiles`, which keeps as many of them open as pays.
"""

from __future__ import annotations

import errno
import io
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import IO, Any, ClassVar, Protocol
from weakref import WeakValueDictionary

from typing_extensions import Buffer

from streamxf.budget import FREE_WHOLE, MAX_EXPANSION, held_bytes, most
from streamxf.buffers import Scratch
from streamxf.engine import ForkLock
from streamxf.errors import ContainerError, NotFetchedError, ReplacedError, StreamxfError
from streamxf.format.limits import PLAIN_MAGIC
from streamxf.storage.fetch import FetchedFile
from streamxf.storage.fetch import Span as Span
from streamxf.wording import size_text

READ_WHOLE = 128 * 1024
READ_STEP = 32 * 2**20
_STORED = -1  # the scratch memory's place for stored bytes; a chain's steps count from 0


class PositionalFile(Protocol):
    """A file that is read by position, from any thread.

    - `parallel`: whether several threads read at the same time. If not, the file is best read in order.
    """

    parallel: bool

    def read_into(self, position: int, out: memoryview) -> int:
        """Fill `out` with what stands from `position`; return less than its size at the end of the file only."""

    def expect(self, *spans: Span) -> None:
        """Note that these bytes are read next, each from a first to before a last: far files are best asked early."""


class _LocalFile:
    """A regular local file. `os.preadv` knows no shared position: threads and forks may read at once."""

    parallel = True

    def __init__(self, file: io.FileIO | io.BufferedReader) -> None:
        self._file = file

    def read_into(self, position: int, out: memoryview) -> int:
        # fileno() each time: it raises once the file is closed, when the number may be another file's
        done = count = self._read_some(position, out)
        while count and done < len(out):
            count = self._read_some(position + done, out[done:])
            done += count
        return done

    def _read_some(self, position: int, out: memoryview) -> int:
        try:
            return os.preadv(self._file.fileno(), [out], position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        return os.preadv(self._file.fileno(), [out], position)  # a disk, or a mounted one, may have had a bad moment

    def expect(self, *spans: Span) -> None:
        """The kernel reads ahead by itself."""


class _Positioned:
    """Any other seekable file, whose position changes: one thread at a time seeks and reads."""

    parallel = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self._readinto = getattr(file, "readinto", None)
        self._lock = ForkLock()

    def read_into(self, position: int, out: memoryview) -> int:
        done = 0
        with self._lock.here():
            self._file.seek(position)
            while done < len(out):
                count = self._read_some(out[done:])
                if not count:
                    break
                done += count
        return done

    def expect(self, *spans: Span) -> None:
        """It is read in order, and may fetch ahead by itself."""

    def _read_some(self, out: memoryview) -> int:
        if self._readinto is not None:
            return self._readinto(out) or 0
        data = self._file.read(min(len(out), READ_STEP)) or b""
        out[: len(data)] = data
        return len(data)


def access_to(file: Any) -> PositionalFile:
    """The best way to read `file` by position. Only Python's own classes surely have nothing above the descriptor."""
    own = type(file) in (io.FileIO, io.BufferedReader) and type(getattr(file, "raw", file)) is io.FileIO
    return _LocalFile(file) if own and hasattr(os, "preadv") else _Positioned(file)


class FileSlice:
    """`length` bytes of a file from `offset`, by default up to its end, read by position from any thread. A small slice
    is read whole, once; `whole` is the slice, if it was read already. Slices that several threads read at the same
    time share one `access_to` the file.
    """

    def __init__(
        self, file: Any, offset: int = 0, length: int | None = None, whole: bytes | bytearray | memoryview | None = None
    ) -> None:
        if length is None:
            # torch's _ReaderView counts seek(-n, SEEK_END) the wrong way round, and returns the position below it
            file.seek(0, io.SEEK_END)
            length = file.tell() - offset
        self._access: PositionalFile = file if hasattr(file, "read_into") else access_to(file)
        self._offset = offset
        self.length = length
        self.whole = whole
        if whole is None and 0 <= self.length <= READ_WHOLE:
            data = bytearray(self.length)
            self.read_into(0, memoryview(data))
            self.whole = bytes(data)

    @property
    def parallel(self) -> bool:
        return self.whole is not None or self._access.parallel

    def read_whole(self, scratch: Scratch) -> FileSlice:
        """The same slice in memory, for as long as `scratch` is not used for something else."""
        return FileSlice(self._access, self._offset, self.length, self.view(0, self.length, scratch))

    def slice(self, start: int, stop: int) -> FileSlice:
        return FileSlice(self._access, self._offset + start, stop - start)

    def expect(self, *spans: Span) -> None:
        """Take note that these bytes will be read next."""
        if self.whole is None:
            self._access.expect(*((self._offset + start, self._offset + stop) for start, stop in spans))

    def read_at(self, position: int, size: int) -> bytes:
        """Exactly `size` bytes from `position` of the slice; ContainerError if the slice or the file ends before."""
        self._check(position, size)
        if self.whole is not None:
            return bytes(self.whole[position : position + size])
        out = bytearray(size)
        self.read_into(position, memoryview(out))
        return bytes(out)

    def read_into(self, position: int, out: memoryview) -> None:
        self._check(position, len(out))
        if self.whole is not None:
            out[:] = self.whole[position : position + len(out)]
        else:
            self._read(position, out)

    def _read(self, position: int, out: memoryview) -> None:
        done = self._access.read_into(self._offset + position, out)
        if done < len(out):
            raise ContainerError(f"the file is truncated: it ends {len(out) - done} bytes before it should")

    def view(self, position: int, size: int, scratch: Scratch) -> memoryview:
        """`size` bytes from `position` of the slice, not copied if they are in memory already, else in `scratch`."""
        self._check(position, size)
        if self.whole is not None:
            return memoryview(self.whole)[position : position + size]
        out = scratch.take(_STORED, size)
        self._read(position, out)
        return out

    def _check(self, position: int, size: int) -> None:
        if position < 0 or position + size > self.length:
            raise ContainerError(
                f"the container is truncated: {size} bytes at {position} are missing, it has {self.length}"
            )


class _Observed:
    """An access that gives what it measures to `add`, in the thread that reads."""

    def __init__(self, access: PositionalFile, add: Callable[[Any], None]) -> None:
        self._access = access
        self._add = add
        self.parallel = access.parallel

    def expect(self, *spans: Span) -> None:
        self._access.expect(*spans)


class Timed(_Observed):
    """The seconds that each read took."""

    def read_into(self, position: int, out: memoryview) -> int:
        start = perf_counter()
        try:
            return self._access.read_into(position, out)
        finally:
            self._add(perf_counter() - start)


_STEP = 16 * 2**20  # bytes of a long read after which it is reported


class Counted(_Observed):
    """How many bytes were read, also while a long read goes on."""

    def read_into(self, position: int, out: memoryview) -> int:
        done = 0
        while done < len(out):
            piece = out[done : done + _STEP]
            count = self._access.read_into(position + done, piece)
            done += count
            self._add(count)
            if count < len(piece):  # the file ends here
                break
        return done


@dataclass
class StoredFile:
    """A file that is open for reading.

    - `name`: for errors.
    - `access`: to the file, by position.
    - `fetched`: the file in an object store, below `access`; None of any other file.
    """

    PLAIN: ClassVar = PLAIN_MAGIC  # how a file begins that `streamxf.open` wrote

    name: str
    size: int
    raw: IO[bytes]
    access: PositionalFile = None  # type: ignore[assignment]
    fetched: FetchedFile | None = None
    _ahead: tuple[int, bytes] = (0, b"")

    def __post_init__(self) -> None:
        self.access = self.access or access_to(self.raw)
        if self.size in _POINTER_BYTES and self.read(0, _POINTER_HEAD).startswith(_POINTERS):
            text = "there is a Git LFS pointer instead of the file: run `git lfs pull` in the repository"
            raise NotFetchedError(text, file=self.name)

    @property
    def is_plain(self) -> bool:
        """Whether `streamxf.open` wrote it."""
        return self.read(0, min(self.size, len(self.PLAIN))) == self.PLAIN

    @property
    def held(self) -> int:
        """How many of its bytes are stored, and in no hole."""
        return held_bytes(self.raw, self.size)

    def check_whole(self, length: int, error: type[StreamxfError] = ContainerError) -> None:
        """Check that `length` bytes may be read into memory; `error` if hardly any of the file is stored."""
        if length > FREE_WHOLE and length > MAX_EXPANSION * (held := self.held):
            text = f"the file has {size_text(self.size)}, of which {size_text(held)} are stored"
            raise error(f"{text}; the rest are holes, which no writer leaves. It was not read")

    def most(self, times: int = MAX_EXPANSION) -> int:
        """How many of its bytes may be read, in proportion to those that are stored."""
        return min(self.size, most(self.held, times))

    def counted(self, add: Callable[[int], None]) -> StoredFile:
        """The same open file, the bytes read from which are told to `add`."""
        return self.through(Counted(self.access, add))

    def through(self, access: PositionalFile) -> StoredFile:
        """The same open file, read through `access`."""
        file = copy(self)  # not made anew, which would look for a pointer by reading again
        file.access = access
        return file

    def slice(self, at: int, size: int) -> FileSlice:
        if at + size > self.size:
            raise ContainerError(
                f"{size} bytes at {at} reach beyond the end of the file, which has {self.size}: it was truncated",
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


_POINTERS = tuple(b"version https://%s.github.com/spec/v1" % name for name in (b"git-lfs", b"hawser"))
_POINTER_HEAD = max(map(len, _POINTERS))
_POINTER_BYTES = range(100, 1024)  # the specification's limit; a digest and a size follow, and what extensions add


def size_of(raw: IO[bytes]) -> int | None:
    """The size of a file, which is at its start then; None if it does not say, as those in /proc."""
    try:
        raw.seek(0, os.SEEK_END)  # which returns nothing in paramiko's
        size = raw.tell()
        raw.seek(0)
    except ValueError:  # that of webdav4 has no end where it is empty
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
    return size


class RangedFile(io.RawIOBase):
    """A file whose bytes `read` gives, from one position to another."""

    def __init__(self, read: Callable[[int, int], bytes | memoryview], size: int) -> None:
        self._read = read
        self._size = size
        self._at = 0

    def readinto(self, buffer: Buffer, /) -> int:
        out = memoryview(buffer).cast("B")
        stop = min(self._at + len(out), self._size)
        data = self._read(self._at, stop) if self._at < stop else b""
        out[: len(data)] = data  # a ValueError if there is more than was asked for
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


# Tensors of many ranks lie in the files of all of them; what is opened elsewhere may hold much of a file ahead.
_NEAR, _FAR = 256, 8
_SHARE = 4  # of what the process may have open; a comparison opens two checkpoints
_TOO_MANY = (errno.EMFILE, errno.ENFILE)


class _Lent:
    """Access to a near file of `files`, which is opened again where it was closed meanwhile."""

    def __init__(self, files: OpenFiles, name: str, file: StoredFile) -> None:
        self._files, self._name = files, name
        self.parallel = file.access.parallel
        self.stamp = _stamp_of(file)

    def read_into(self, position: int, out: memoryview) -> int:
        opened = self._files.begin(self._name, self)
        try:
            return opened.access.read_into(position, out)
        finally:
            self._files.end(opened)

    def expect(self, *spans: Span) -> None:
        """The kernel reads ahead by itself."""


@dataclass(eq=False)
class _Opened:
    """A file that is open; `reads` of its `access` are under way."""

    file: StoredFile
    access: PositionalFile
    stack: ExitStack
    reads: int = 0


class OpenFiles:
    """Opens files by name, and closes the one that was used least recently when there are too many, or the system
    opens no more. Near ones can be read all the same, from any thread: each is opened again, if it is the same file
    still. Others are not to be closed while blocks of them are under way.

    - `near`: as `Storage.near`.
    """

    def __init__(self, open_file: Callable[[str], AbstractContextManager[StoredFile]], *, near: bool) -> None:
        self._open, self._near = open_file, near
        self._most = most_open() if near else _FAR
        self._files: OrderedDict[str, _Opened] = OrderedDict()
        self._lent: WeakValueDictionary[str, _Lent] = WeakValueDictionary()
        self._lock = ForkLock(threading.RLock)  # a signal's handler may read, too

    def __getitem__(self, name: str) -> StoredFile:
        with self._lock.here():
            return self._opened(name).file

    def begin(self, name: str, lent: _Lent) -> _Opened:
        """What a read of a lent file goes to, open until its `end`. Raises ReplacedError if it is another file now."""
        with self._lock.here():
            if self._lent.get(name) is not lent:
                raise ValueError("I/O operation on closed file")
            opened = self._opened(name)
            opened.reads += 1
            return opened

    def end(self, opened: _Opened) -> None:
        with self._lock.here():
            opened.reads -= 1

    def _opened(self, name: str) -> _Opened:
        if (known := self._files.get(name)) is not None:
            self._files.move_to_end(name)
            return known
        while len(self._files) >= self._most and self._close_one():
            """One at a time: some may be read just now."""
        stack = ExitStack()
        file = self._enter(stack, name)
        access = file.access
        if self._near:
            lent = self._lent.get(name)
            if lent is None:
                lent = self._lent[name] = _Lent(self, name, file)
            elif lent.stamp != _stamp_of(file):
                stack.close()
                raise ReplacedError(_REPLACED, file=file.name)
            file = file.through(lent)
        made = self._files[name] = _Opened(file, access, stack)
        return made

    def _enter(self, stack: ExitStack, name: str) -> StoredFile:
        while True:
            try:
                return stack.enter_context(self._open(name))
            except FileNotFoundError as error:
                if name not in self._lent:
                    raise
                raise ReplacedError(_REPLACED, file=name) from error
            except OSError as error:
                if error.errno not in _TOO_MANY or not self._close_one():
                    raise

    def _close_one(self) -> bool:
        name = next((name for name, each in self._files.items() if not each.reads), None)
        if name is not None:
            self._files.pop(name).stack.close()
        return name is not None

    def close(self) -> None:
        with self._lock.here():
            self._lent.clear()
            while self._files:
                self._files.popitem()[1].stack.close()


_REPLACED = "it was replaced or removed while it was read: another process writes here. Start again"


def _stamp_of(file: StoredFile) -> tuple[int, ...]:
    """What tells a file from another one that takes its name."""
    try:
        facts = os.fstat(file.raw.fileno())
    except (OSError, AttributeError):  # it has no descriptor
        return (file.size,)
    return facts.st_dev, facts.st_ino, facts.st_size


def most_open() -> int:
    """How many near files are kept open: a share of what the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _NEAR if soft == resource.RLIM_INFINITY else max(1, min(_NEAR, soft // _SHARE))
