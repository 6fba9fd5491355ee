"""`Progress`: receives the progress of long operations; and the share of each item in it."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Protocol


class Progress(Protocol):
    """Receives the progress of functions with ``progress=``, in bytes. Any thread may call it."""

    def expect(self, count: int) -> None:
        """Announce `count` more bytes of work."""

    def advance(self, count: int) -> None:
        """Report `count` bytes as done."""


class Share:
    """The share of one item in a `Progress`, if there is one, which expects `size` already: in the end exactly `size`,
    however often parts of it are read, and however much is read around them. Any thread may call it.
    """

    __slots__ = ("_left", "_lock", "_progress")

    def __init__(self, progress: Progress | None, size: int) -> None:
        self._progress = progress
        self._left = size
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        with self._lock:
            count = min(count, self._left)
            self._left -= count
        if count and self._progress is not None:
            self._progress.advance(count)

    def finish(self) -> None:
        if self._left:
            self.advance(self._left)


class Shares:
    """The shares of items that are processed one after the other. `sizes`, by item, is used up."""

    def __init__(self, progress: Progress | None, sizes: dict[Hashable, int]) -> None:
        self._progress = progress
        self._left = sizes
        self._current = Share(progress, 0)
        if progress is not None:
            progress.expect(sum(sizes.values()))

    def begin(self, item: Hashable) -> Share:
        """Begin an item: the previous one is done but for what is under way, and one that comes again counts for
        nothing.
        """
        self._current.finish()
        self._current = Share(self._progress, self._left.pop(item, 0))
        return self._current

    def finish(self) -> None:
        """Report everything as done, items that were never begun included."""
        self._current.finish()
        Share(self._progress, sum(self._left.values())).finish()
        self._left.clear()
