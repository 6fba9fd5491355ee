"""`Ring`: a few buffers, lent out one after the other, for data that has to be copied before it can be encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory for one block.

    Attributes
    ----------
    memory : memoryview
    handle : object
        The same memory, for whoever copies into it.
    """

    memory: memoryview
    handle: Any


class Ring:
    """Buffers that are made when they are first needed, and lent out again when they come back.

    One thread takes them; any thread gives them back.

    Parameters
    ----------
    make : callable
        Makes a buffer.
    count : int
        The most that are made.
    """

    def __init__(self, make: Callable[[], Buffer], count: int) -> None:
        self._make = make
        self._left = count
        self._free: SimpleQueue[Buffer] = SimpleQueue()

    def take(self) -> Buffer:
        """A free buffer; waits for one if all are lent out."""
        try:
            return self._free.get_nowait()
        except Empty:
            if self._left:
                self._left -= 1
                return self._make()
            return self._free.get()

    def give(self, buffer: Buffer) -> None:
        """Say that `buffer` may be filled again."""
        self._free.put(buffer)
