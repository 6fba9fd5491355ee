"""Files at the same time, in several threads; of those of a save the first failure stops all, and is what is raised."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.dcp.save.session import Save

WriteFile = Callable[[str, list[WriteItem]], list[WriteResult]]


def write_all(
    write: WriteFile, files: list[tuple[str, list[WriteItem]]], threads: int, save: Save
) -> list[WriteResult]:
    """Write files in up to `threads` threads, this one among them, and return when all have stopped.

    Raises
    ------
    BaseException
        The first failure, in any thread. An interrupt of this thread is one, too.
    """
    waiting = deque(files)
    results: dict[str, list[WriteResult]] = {}

    def work() -> None:
        while not save.failed:
            try:
                name, items = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                results[name] = write(name, items)
            except BaseException as error:
                save.fail(error)

    side_by_side(work, min(threads, len(files)), save.fail)
    cause = save.take_cause()
    if cause is not None:
        try:
            raise cause
        finally:
            del cause  # or it would lead to itself, and live until the garbage is collected
    return [result for name, _ in files for result in results[name]]


def side_by_side(work: Callable[[], None], threads: int, fail: Callable[[BaseException], None]) -> None:
    """Call `work` in up to `threads` threads, this one among them, and return when all have stopped.

    Plain threads, because a pool of Python's takes no work while the interpreter exits, and a save in the background
    may still be under way then.

    Parameters
    ----------
    work : callable
        Raises nothing, and returns at once when there is nothing left to do.
    fail : callable
        Is told of an interrupt of this thread; then `work` should return soon.
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
    while True:  # an interrupt may come at any place, and even then nobody leaves before the threads have stopped
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
