"""Work in several threads at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


def side_by_side(work: Callable[[], None], threads: int, fail: Callable[[BaseException], None]) -> None:
    """Call `work` in up to `threads` threads, this one among them, and return when all have stopped.

    Plain threads, because a pool of Python's takes no work while the interpreter exits, and a save in the background
    may still be under way then.

    `work` raises nothing, and returns at once when there is nothing left to do. `fail` is told of an interrupt of this
    thread; then `work` should return soon.
    """
    begun: list[None] = []
    over: list[None] = []
    news: SimpleQueue[None] = SimpleQueue()

    def help_out() -> None:
        begun.append(None)
        try:
            work()
        finally:
            over.append(None)
            news.put(None)

    helpers = (threading.Thread(target=help_out, name=f"streamxf-file_{n}") for n in range(1, threads))
    first = True
    while True:  # an interrupt may come at any place, and even then the threads have to stop first
        try:
            if first:
                first = False
                all(map(_start, helpers))  # until one cannot be started
                work()
            # No join: an interrupt of it makes Python 3.11 and 3.12 believe that a thread has ended which has not. One
            # that begins only now finds nothing to do.
            while len(over) < len(begun):
                news.get()
            break
        except BaseException as error:
            fail(error)


def _start(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # no more threads are to be had; the others do its work
        return False
    return True
