"""`Progress`: who wants to know how far a long piece of work has come; and what items bring it."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Protocol


class Progress(Protocol):
    """What the functions that take ``progress=`` tell how far they are, in bytes. Any thread may call it."""

    def expect(self, count: int) -> None:
        """Say that there are `count` bytes to do, besides those that were expected before."""

    def advance(self, count: int) -> None:
        """Say that `count` bytes are done."""


class Share:
    """What a single item brings a `Progress`: in the end just what was expected of it, however often parts of it are
    read or how much stands around them. Any thread may call it.

    Parameters
    ----------
    progress : Progress
        Expects `size` already.
    """

    __slots__ = ("_left", "_lock", "_progress")

    def __init__(self, progress: Progress, size: int) -> None:
        self._progress = progress
        self._left = size
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        """Say that `count` bytes more are done."""
        with self._lock:
            left = self._left
            if count > left:
                count = left
            self._left = left - count
        if count:
            self._progress.advance(count)

    def finish(self) -> None:
        """Say that all of it is done."""
        if self._left:
            self.advance(self._left)


class Shares:
    """The shares of items that are done one after the other.

    Parameters
    ----------
    sizes : dict
        What to expect of each item; it is used up.
    """

    def __init__(self, progress: Progress, sizes: dict[Hashable, int]) -> None:
        self._progress = progress
        self._left = sizes
        self._current = Share(progress, 0)
        progress.expect(sum(sizes.values()))

    def begin(self, item: Hashable) -> Share:
        """Go on to an item: the one before it is done, but for what is under way, and an item that comes again brings
        nothing more.
        """
        self._current.finish()
        self._current = Share(self._progress, self._left.pop(item, 0))
        return self._current

    def finish(self) -> None:
        """Say that all is done, also what never had to be begun."""
        self._current.finish()
        Share(self._progress, sum(self._left.values())).finish()
        self._left.clear()
