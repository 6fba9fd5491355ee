"""Where a reader's bytes come from: a run of bytes inside a seekable file, read by position."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from streamxf.buffers import Scratch
from streamxf.errors import ContainerError


class ForkLock:
    """A lock for each process: the threads that may hold the parent's do not exist in a forked child. Use it as ``with
    lock.here():``. What is entered is a bare lock, so that an interrupt comes before it is taken or when it is sure
    to be released, and never between.
    """

    def __init__(self) -> None:
        self._locks = {os.getpid(): threading.Lock()}

    def here(self) -> threading.Lock:
        pid = os.getpid()
        # the dictionary decides which of two threads of a child made it
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.Lock())


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

    def expect(self, start: int, stop: int) -> None:
        """Take note that the bytes from `start` to `stop` will be read next: a file far away is better asked early."""


class _LocalFile:
    """A regular local file. `os.preadv` knows no shared position: threads and forks may read at once."""

    parallel = True

    def __init__(self, file: io.FileIO | io.BufferedReader) -> None:
        self._file = file

    def read_into(self, position: int, out: memoryview) -> int:
        # fileno() each time: it raises once the file is closed, when the number may be another file's
        done = count = os.preadv(self._file.fileno(), [out], position)
        while count and done < len(out):
            count = os.preadv(self._file.fileno(), [out[done:]], position + done)
            done += count
        return done

    def expect(self, start: int, stop: int) -> None:
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

    def expect(self, start: int, stop: int) -> None:
        """It is read in order, and may fetch ahead by itself."""

    def _read_some(self, out: memoryview) -> int:
        if self._readinto is not None:
            count: int = self._readinto(out) or 0
            return count
        data = self._file.read(min(len(out), READ_STEP)) or b""
        out[: len(data)] = data
        return len(data)


def access_to(file: Any) -> PositionalFile:
    """The best way to read `file` by position. Only Python's own classes are known to have nothing between them and the
    descriptor.
    """
    if type(file) in (io.FileIO, io.BufferedReader) and hasattr(os, "preadv"):
        raw = file.raw if isinstance(file, io.BufferedReader) else file
        if type(raw) is io.FileIO:
            return _LocalFile(file)
    return _Positioned(file)


class FileSlice:
    """`length` bytes of a file from `offset`, by default up to its end, read by position from any thread. A small slice
    is read whole, once; `whole` is the slice, if it was read already. Slices that several threads read at the same
    time share one `access_to` the file.
    """

    def __init__(
        self, file: Any, offset: int = 0, length: int | None = None, whole: bytes | bytearray | memoryview | None = None
    ) -> None:
        if length is None:
            # torch's _ReaderView counts seek(-n, SEEK_END) the wrong way round, and its seek() returns the position in
            # the file beneath
            file.seek(0, io.SEEK_END)
            length = file.tell() - offset
        self._access: PositionalFile = file if hasattr(file, "read_into") else access_to(file)
        self._offset = offset
        self.length = length
        self._whole = whole
        if whole is None and 0 <= self.length <= READ_WHOLE:
            data = bytearray(self.length)
            self.read_into(0, memoryview(data))
            self._whole = bytes(data)

    @property
    def parallel(self) -> bool:
        return self._whole is not None or self._access.parallel

    def read_whole(self, scratch: Scratch) -> FileSlice:
        """The same slice in memory, for as long as `scratch` is not used for something else."""
        return FileSlice(self._access, self._offset, self.length, self.view(0, self.length, scratch))

    def slice(self, start: int, stop: int) -> FileSlice:
        return FileSlice(self._access, self._offset + start, stop - start)

    def expect(self, start: int, stop: int) -> None:
        """Take note that these bytes will be read next."""
        if self._whole is None:
            self._access.expect(self._offset + start, self._offset + stop)

    def read_at(self, position: int, size: int) -> bytes:
        """Exactly `size` bytes from `position` of the slice; raises ContainerError if the slice or the file ends
        before.
        """
        self._check(position, size)
        if self._whole is not None:
            return bytes(self._whole[position : position + size])
        out = bytearray(size)
        self.read_into(position, memoryview(out))
        return bytes(out)

    def read_into(self, position: int, out: memoryview) -> None:
        self._check(position, len(out))
        if self._whole is not None:
            out[:] = self._whole[position : position + len(out)]
        else:
            self._read(position, out)

    def _read(self, position: int, out: memoryview) -> None:
        done = self._access.read_into(self._offset + position, out)
        if done < len(out):
            raise ContainerError(f"the file is truncated: it ends {len(out) - done} bytes before it should")

    def view(self, position: int, size: int, scratch: Scratch) -> memoryview:
        """`size` bytes from `position` of the slice, without a copy where they are in memory already, else in
        `scratch`.
        """
        self._check(position, size)
        if self._whole is not None:
            return memoryview(self._whole)[position : position + size]
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

    def expect(self, start: int, stop: int) -> None:
        self._access.expect(start, stop)


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
