"""Requests to a file system of fsspec's that works asynchronously, several at a time and repeated where that may help;
and `FetchedFile`, which fetches ahead what is announced, neighbours at once, from there or from a user's storage.

The clients below fsspec repeat requests by themselves, with back-off. What reaches us has outlasted that: a server that
was overloaded for longer, or an answer that ended early. A few more attempts cost seconds, and a failed save costs all
that it has uploaded.
"""

from __future__ import annotations

import errno
import inspect
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from streamxf.engine import ForkLock, in_thread
from streamxf.errors import AbortedError, ForeignError, hide_passwords

K = TypeVar("K")
T = TypeVar("T")

_UNDER_WAY = 16  # requests

_ATTEMPTS = 4
_PAUSE = 0.25  # seconds before the second attempt; each further pause is twice as long

# What the server has decided, and will decide again.
_FINAL = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
)
# Of s3fs: what was refused, a full disk, a key or a body too long, what the store does not know; of `part_of` the last.
_FINAL_NUMBERS = (errno.EINVAL, errno.ENOSPC, errno.ENAMETOOLONG, errno.EMSGSIZE, errno.ENOSYS, errno.EOPNOTSUPP)
_MAY_PASS = (408, 425, 429)  # of HTTP's statuses from 400 to 499
_SFTP_FINAL = (2, 3, 8)  # no such file, permission denied, unsupported


def is_asynchronous(filesystem: Any) -> bool:
    """Whether a file system of fsspec's has coroutines, and a loop in a thread of its own that runs them."""
    from fsspec.asyn import AsyncFileSystem

    # A cache is not one itself, though it has the attributes of what lies below: asked there, it would be left out. A
    # folder that poses as a root is one whatever lies below.
    known = isinstance(filesystem, AsyncFileSystem) and filesystem.async_impl and not filesystem.asynchronous
    return known and all(map(is_asynchronous, _below(filesystem)))


def lowest(filesystem: Any) -> Any:
    """What talks to the storage, below caches and folders that pose as a root."""
    return next(map(lowest, _below(filesystem)), filesystem)


def _below(filesystem: Any) -> list[Any]:
    below = getattr(filesystem, "fs", None)
    return [below] if hasattr(below, "_strip_protocol") else []


def fetches_ranges(filesystem: Any) -> bool:
    """Whether it `is_asynchronous`, and can be asked for a part: sshfs's ignores which, and returns the whole file."""
    if not is_asynchronous(filesystem):
        return False
    taken = inspect.signature(lowest(filesystem)._cat_file).parameters.values()
    return any(each.name == "start" or each.kind is each.VAR_POSITIONAL for each in taken)


def start_request(filesystem: Any, request: Callable[[], Awaitable[T]]) -> Future[T]:
    """Have a request made, and repeated after errors that may pass; any number may be under way. Raises AbortedError in
    a forked child, which has none of the thread and the connections that the file system uses, and where a finalizer
    would wait for ever.
    """
    import asyncio  # which takes as long as all of streamxf's own modules

    try:
        loop = filesystem.loop
    except RuntimeError as error:
        raise AbortedError("files opened before a fork cannot be read in a child process: open them there") from error
    if sys.is_finalizing() or asyncio._get_running_loop() is loop:
        raise AbortedError("the storage's own thread, and a process at its end, cannot wait for an answer")
    return asyncio.run_coroutine_threadsafe(_repeated(request), loop)


def make_request(filesystem: Any, request: Callable[[], Awaitable[T]]) -> T:
    """The same, and wait for its answer."""
    future = start_request(filesystem, request)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # an interrupt of this thread
        raise


def answers(keys: Iterable[K], begin: Callable[[K], Future[T]]) -> Iterator[tuple[K, T | Exception]]:
    """Make a request for each key, some at a time: yields each key, in their order, with the answer or the error."""
    rest, under_way = iter(keys), deque[tuple[K, "Future[T]"]]()
    try:
        while True:
            for key in islice(rest, _UNDER_WAY - len(under_way)):
                under_way.append((key, begin(key)))
            if not under_way:
                return
            key, future = under_way[0]
            found: T | Exception
            try:
                found = future.result()
            except Exception as error:  # of whatever class
                found = error
            under_way.popleft()
            yield key, found
    finally:
        for _, future in under_way:  # an interrupt of this thread
            future.cancel()


async def _repeated(request: Callable[[], Awaitable[T]]) -> T:
    import asyncio

    pause = _PAUSE
    while True:
        try:
            return await request()
        except Exception as error:  # of whatever class: each client has its own
            hide_passwords(error)
            if pause >= _PAUSE * 2 ** (_ATTEMPTS - 1) or _is_final(error):
                raise
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause *= 2


def _is_final(error: Exception) -> bool:
    if isinstance(error, _FINAL) or (isinstance(error, OSError) and error.errno in _FINAL_NUMBERS):
        return True
    status = status_of(error)
    return (400 <= status < 500 and status not in _MAY_PASS) or status in _SFTP_FINAL


def status_of(error: BaseException) -> int:
    """The status in a server's answer, as Azure's client, aiohttp, gcsfs, asyncssh or botocore keeps it; 0 for none."""
    answer = getattr(error.__cause__, "response", None) if getattr(error, "errno", 0) == errno.EIO else None
    if isinstance(answer, dict):  # of botocore; s3fs makes EIO of what it does not know
        return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    kept = (getattr(error, name, None) for name in ("status_code", "status", "code"))
    return next((status for status in kept if isinstance(status, int)), 0)


RANGE_BYTES = 8 * 2**20
AHEAD_BYTES = 48 * 2**20  # under way or in memory
_REQUESTS = 16
_STALE = 256  # reads after which a range whose rest nobody wants, as it seems, is dropped
_GAP = 128 * 1024  # bytes between two announced parts that are fetched along: another request would take longer

Span = tuple[int, int]
Request = Callable[[int, int], "Future[bytes]"]  # begins to fetch the bytes from one position to another


def requests_to(filesystem: Any, path: str, label: str, size: int) -> Request:
    """How parts of a file of that size are asked for; errors call it by its label."""

    async def fetch(start: int, stop: int) -> bytes:
        data = part_of(await filesystem._cat_file(path, start=start, end=stop), start, stop, size, label)
        return _exactly(stop - start, data, label)

    return lambda start, stop: start_request(filesystem, partial(fetch, start, stop))


def part_of(data: bytes, start: int, stop: int, size: int | None, label: str) -> bytes:
    """The part that was asked for, where all came. Raises OSError for large files: each part takes as long."""
    if len(data) != size or (start == 0 and size <= stop):
        return data
    if size > AHEAD_BYTES:
        text = (
            f"the server sends all {size:,} bytes of a file when asked for a part: it does not support HTTP ranges, or "
            "something on the way removes them. Copy the checkpoint to a disk, or serve it from a server that does"
        )
        raise OSError(errno.EOPNOTSUPP, text, label)
    return data[start:stop]


def requests_in_threads(read: Callable[[int, int], bytes], label: str) -> Request:
    """The same where reading waits for the answer: each request has a thread."""
    return lambda start, stop: in_thread(lambda: _exactly(stop - start, read(start, stop), label), "streamxf_fetch")


def _exactly(size: int, data: bytes, label: str) -> bytes:
    if len(data) != size:
        raise ForeignError(f"the storage failed: {size} bytes were requested, {len(data)} arrived", file=label)
    return data


class FetchedFile:
    """The bytes of a file, from any thread.

    Reads of what was announced by `expect` are served from memory, and what was read is forgotten; any other read is a
    request of its own. So what is announced should be about to be read, and about in that order.
    """

    parallel = True

    def __init__(self, request: Request, size: int) -> None:
        self._request = request
        self._size = size
        self._lock, self._pid = ForkLock(), os.getpid()
        self._announced: deque[list[Span]] = deque()  # parts that one request will fetch
        self._ranges: list[_Range] = []
        self._reads = 0

    def expect(self, *spans: Span, soon: bool = True) -> None:
        """Announce that bytes will be read, in this order: before all else that was announced, or after."""
        with self._here():
            known = [*self._announced, *(each.unread for each in self._ranges)]
            left = [(start, min(stop, self._size)) for start, stop in spans]
            for first, last in ((group[0][0], group[-1][1]) for group in known):
                left = [part for span in left for part in _without(span, first, last)]
            if soon:
                groups: deque[list[Span]] = deque()
                _add(groups, left)
                self._announced.extendleft(reversed(groups))
            else:
                _add(self._announced, left)
            self._begin_next()

    def read_into(self, position: int, out: memoryview) -> int:
        end = min(position + len(out), self._size)
        at = position
        while at < end:
            with self._here():
                found = self._covering(at)
                stop = min(end, found.stop) if found is not None else self._next_range(at, end)
            begin, data = (at, self._request(at, stop)) if found is None else (found.start, found.data)
            out[at - position : stop - position] = memoryview(data.result())[at - begin : stop - begin]
            if found is not None:
                with self._here():
                    found.read(at, stop)
                    self._begin_next()
            at = stop
        return max(0, end - position)

    def close(self) -> None:
        """Give up what is under way."""
        with self._here():
            self._announced.clear()
            for each in self._ranges:
                each.data.cancel()
            self._ranges.clear()

    def _here(self) -> Any:
        """The lock; a forked child forgets what is under way in its parent."""
        if self._pid != os.getpid():
            self._announced, self._ranges, self._pid = deque(), [], os.getpid()
        return self._lock.here()

    # -- with the lock held ------------------------------------------------------------------------------

    def _begin_next(self) -> None:
        """Forget what was read, and fetch what is next as far as there is room."""
        self._ranges = [each for each in self._ranges if each.unread and self._reads - each.used < _STALE]
        held = sum(each.stop - each.start for each in self._ranges)
        while self._announced and len(self._ranges) < _REQUESTS and held < AHEAD_BYTES:
            begun_now = self._begin(self._announced.popleft())
            held += begun_now.stop - begun_now.start

    def _begin(self, spans: list[Span]) -> _Range:
        start, stop = spans[0][0], spans[-1][1]
        made = _Range(start, stop, self._request(start, stop), spans, self._reads)
        self._ranges.append(made)
        return made

    def _covering(self, at: int) -> _Range | None:
        """The range that has a byte, begun now if it was only announced."""
        self._reads += 1
        for each in self._ranges:
            if each.start <= at < each.stop:
                each.used = self._reads
                return each
        for spans in self._announced:
            if spans[0][0] <= at < spans[-1][1]:
                self._announced.remove(spans)
                return self._begin(spans)
        return None

    def _next_range(self, at: int, end: int) -> int:
        return min([end, *(each.start for each in self._ranges if at < each.start)])


@dataclass(eq=False, slots=True)
class _Range:
    """A range that is being fetched, the announced parts of it that nobody has read, and which read used it last."""

    start: int
    stop: int
    data: Future[bytes]
    unread: list[Span]
    used: int

    def read(self, start: int, stop: int) -> None:
        self.unread = [part for span in self.unread for part in _without(span, start, stop)]


def _add(groups: deque[list[Span]], spans: list[Span]) -> None:
    """Append spans, each to what is fetched along with those before it if they are near."""
    for start, stop in spans:
        while start < stop:
            near = bool(groups) and 0 <= start - groups[-1][-1][1] <= _GAP
            end = min(stop, (groups[-1][0][0] if near else start) + RANGE_BYTES)
            if near and start < end:
                groups[-1].append((start, end))
            else:
                end = min(stop, start + RANGE_BYTES)
                groups.append([(start, end)])
            start = end


def _without(span: Span, start: int, stop: int) -> list[Span]:
    """What is left of a span."""
    return [(a, b) for a, b in ((span[0], min(span[1], start)), (max(span[0], stop), span[1])) if a < b]


class _Turn:
    """Of a client, wherever it is used; a finalizer or a signal's handler may come in the middle of a call."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._holder = 0
        self._pid = os.getpid()

    def call(self, method: Callable[..., Any], *given: Any, **more: Any) -> Any:
        if self._pid != os.getpid():
            raise AbortedError("storage opened before a fork cannot be used in a child process: open it there")
        if self._holder == threading.get_ident():
            raise AbortedError("the storage's client is in the middle of another call of this thread")
        with self.lock:
            self._holder = threading.get_ident()
            try:
                result = method(*given, **more)
            finally:
                self._holder = 0
        return _InTurns(result, self) if hasattr(result, "seek") else result


class _InTurns:
    """A file system, or a file that it opened."""

    def __init__(self, target: Any, turn: _Turn) -> None:
        self.__dict__.update(_target=target, _turn=turn)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return partial(self._turn.call, found) if callable(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return in_turns, (self._target,)  # a file system; files cannot be pickled


def in_turns(filesystem: Any) -> Any:
    """The same file system of fsspec's; all that use its client wait for each other. Those that are not asynchronous
    promise nothing to threads: in paramiko's, one takes the answer that another waits for, which then waits for ever.
    """
    return _InTurns(filesystem, vars(lowest(filesystem)).setdefault("_streamxf_turn", _Turn()))
