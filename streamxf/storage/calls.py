"""Requests to a file system of fsspec's that works asynchronously, several at a time and repeated where that may help.

The clients below fsspec repeat requests by themselves, with back-off. What reaches us has outlasted that: a server that
was overloaded for longer, or an answer that ended early. A few more attempts cost seconds, and a failed save costs all
that it has uploaded.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

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
_FINAL_NUMBERS = (errno.EINVAL, errno.ENOSPC)  # of s3fs: a request or a condition that was refused; a full disk


def is_asynchronous(filesystem: Any) -> bool:
    """Whether a file system of fsspec's has coroutines, and a loop in a thread of its own that runs them."""
    from fsspec.asyn import AsyncFileSystem

    # A cache is not one itself, though it has the attributes of what lies below: asked there, it would be left out.
    return isinstance(filesystem, AsyncFileSystem) and filesystem.async_impl and not filesystem.asynchronous


def begun(filesystem: Any, request: Callable[[], Awaitable[T]]) -> Future[T]:
    """Have a request made, and repeated after errors that may pass; any number may be under way."""
    import asyncio  # which takes as long as all of streamxf's own modules

    return asyncio.run_coroutine_threadsafe(_repeated(request), filesystem.loop)


def made(filesystem: Any, request: Callable[[], Awaitable[T]]) -> T:
    """The same, and wait for its answer."""
    future = begun(filesystem, request)
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
    for _ in range(_ATTEMPTS - 1):
        try:
            return await request()
        except _FINAL:
            raise
        except Exception as error:  # of whatever class: each client has its own
            if isinstance(error, OSError) and error.errno in _FINAL_NUMBERS:
                raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause *= 2
    return await request()
