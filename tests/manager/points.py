"""Points of what streamxf does at which a test kills it, has the storage fail, or lets another process in."""

import errno
import fcntl
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from fsspec.implementations.memory import MemoryFileSystem

from streamxf.manager import forget, holds, housekeeper, sessions
from streamxf.manager.housekeeper import Housekeeper
from streamxf.storage import local
from tests.failing import fails_with

# where removals look at what others may have changed, each by its module's own name
LOOKS = ((forget, "active_holds"), (forget, "remove_trees"), (forget, "newest"), (housekeeper, "put_hold"))
CHANGES = (
    *((os, name) for name in ("unlink", "rmdir", "rename", "replace", "link")),
    *((MemoryFileSystem, name) for name in ("rm_file", "pipe_file")),
)
no_locks = fails_with(OSError, errno.ENOLCK, "there are no locks on this file system")


class Killed(BaseException):
    """The process was killed."""


def kill(job: Housekeeper) -> None:
    """End a job's housekeeper as a kill does: its locks are free, and what it holds stays. The caller keeps it."""
    job._pool.shutdown()
    job._sessions._end.set()
    lock = job._sessions._lock
    if lock is not None:
        sessions._own.pop(job._sessions.own.id, None)
        lock.close()


class Points:
    """Where streamxf changes the storage, takes a lock, or looks at holds: there a test may do something."""

    def __init__(self) -> None:
        self._action: Callable[[], None] | None = None
        self._left = 0
        self._unlocked = False
        self._locks = 0
        self._dead = False

    @contextmanager
    def at(self, number: int, action: Callable[[], None], *, unlocked: bool = False) -> Iterator[None]:
        """Call `action` once, at the point of this number, counted in all or only `unlocked` ones."""
        self._action, self._left, self._unlocked = action, number, unlocked
        try:
            yield
        finally:
            self._action, self._dead = None, False

    def kill(self) -> None:
        self._dead = True
        raise Killed

    def reached(self) -> None:
        if threading.current_thread().name == sessions.SIGNS:  # its time is nobody's
            return
        if self._dead:
            raise Killed
        if self._action is None or (self._unlocked and self._locks):
            return
        if self._left:
            self._left -= 1
            return
        action, self._action = self._action, None
        action()

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            self.reached()
            return function(*arguments, **options)

        return called

    def locking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Of what others may not come between, by locks or since it takes but a moment."""

        @functools.wraps(function)
        def counted(*arguments: Any, **options: Any) -> Any:
            self.reached()
            self._locks += 1
            try:
                return function(*arguments, **options)
            finally:
                self._locks -= 1

        return counted

    def held(self, locked: Callable[..., Any]) -> Callable[..., Any]:
        """The same of a lock that is held for a while."""

        @contextmanager
        def counted(*arguments: Any, **how: Any) -> Iterator[bool]:
            self.reached()
            self._locks += 1
            try:
                with locked(*arguments, **how) as alone:
                    yield alone
            finally:
                self._locks -= 1

        return counted

    @contextmanager
    def watched(self, clock: Callable[[], float], locks: bool = True, settled: int | None = None) -> Iterator[None]:
        """What streamxf does in here meets the points, and has this clock, and locks or none. After `settled` ns what
        it finds in a folder is remembered.
        """
        with ExitStack() as stack:
            stack.enter_context(patch.object(time, "time", clock))
            stack.enter_context(patch.object(os, "fsync", lambda _: None))  # of no interest, and slow
            if not locks:
                for name in ("flock", "lockf", "fcntl"):
                    stack.enter_context(patch.object(fcntl, name, no_locks))
            for owner, name in (*CHANGES, *LOOKS):
                stack.enter_context(patch.object(owner, name, self.before(getattr(owner, name))))
            stack.enter_context(patch.object(forget, "_remove_unchanged", self.locking(forget._remove_unchanged)))
            stack.enter_context(patch.object(forget, "locked", self.held(forget.locked)))
            stack.enter_context(patch.object(holds, "_PATIENCE", 1.0))
            if settled is not None:
                stack.enter_context(patch.object(local, "_SETTLED", settled))
            yield
