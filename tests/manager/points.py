"""Points of what streamxf does at which a test kills it, has the storage fail, or lets another process in."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from streamxf.manager import catalog, forget, removal

# where forget and removals look at what others may have changed, each by its module's own name
LOOKS = ((removal, "read_catalog"), (removal, "held"), (forget, "held"), (forget, "choose"))


class Killed(BaseException):
    """The process was killed."""


class Points:
    """Where streamxf changes the disk, takes a lock, or looks at catalog and holds: there a test may do something."""

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

    def locking(self, locked: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def counted(*arguments: Any) -> Iterator[bool]:
            self.reached()
            with locked(*arguments) as alone:
                self._locks += 1
                try:
                    yield alone
                finally:
                    self._locks -= 1

        return counted

    @contextmanager
    def watched(self, clock: Callable[[], float]) -> Iterator[None]:
        """What streamxf does in here meets the points, and has this clock."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(time, "time", clock))
            stack.enter_context(patch.object(os, "fsync", lambda _: None))  # of no interest, and slow
            for name in ("unlink", "rmdir", "rename", "replace"):
                stack.enter_context(patch.object(os, name, self.before(getattr(os, name))))
            for module in (catalog, removal):
                stack.enter_context(patch.object(module, "locked", self.locking(module.locked)))
            for module, name in LOOKS:
                stack.enter_context(patch.object(module, name, self.before(getattr(module, name))))
            yield
