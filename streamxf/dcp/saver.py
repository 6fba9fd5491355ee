"""The process that torch starts for saves in the background: what ends it, and what must not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.util import Finalize

from streamxf.errors import AbortedError
from streamxf.torch_private import process_that_saves

NICE = 10
_PAUSE = 0.2  # seconds between two looks at the parent
_ends: list[Finalize] = []


def settle_in(deaf: Collection[int]) -> None:
    """In the process that torch started for saves, lower the priority of this thread, and so of the workers that it
    will start: training goes on beside them, perhaps on the same CPUs. Not in a thread of training's own process, where
    one that waits for a CPU could hold the interpreter's lock. Be `deaf` to signals that come to every process of a
    job, of which training makes a last save, and end with the process that started this one.
    """
    for value in vars(sys.modules["__main__"]).values():
        if isinstance(value, type) and value.__module__ == "__mp_main__":
            value.__module__ = "__main__"  # as pickles are to name it
    os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    for number in deaf:
        signal.signal(number, signal.SIG_IGN)
    if all(thread.name != "streamxf-parent" for thread in threading.enumerate()):
        threading.Thread(target=_end_with_parent, name="streamxf-parent", daemon=True).start()


def check_parent() -> None:
    """Raise AbortedError in a process that saves for one that is gone: another job may be at the same folder by now."""
    if _is_orphan():
        raise AbortedError("the process that this one saves for has ended; the save was not published")


def _is_orphan() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and os.getppid() != parent.pid


def _end_with_parent() -> None:
    """Linux can signal instead, but once the thread ends that started the process; torch's ends with the first save."""
    while not _is_orphan():
        time.sleep(_PAUSE)
    os._exit(1)


@contextmanager
def deaf_from_the_start(deaf: Collection[int]) -> Iterator[None]:
    """If torch starts that process now, it is deaf before it can say so itself: it has the mask of the thread that
    starts it. At the end of this process it gets no SIGTERM then, as multiprocessing sends it, but one that it hears.
    """
    if process_that_saves() is not None:
        yield
        return
    if not _ends:
        _ends.append(Finalize(None, _end_saver, exitpriority=100))
    resource_tracker.ensure_running()  # which lets SIGTERM and SIGINT through to the thread that starts it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, deaf)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_saver() -> None:
    process = process_that_saves()
    if process is not None and process.is_alive():
        process.kill()


def is_dead() -> bool:
    """Whether that process was started and has ended, so that torch can save there no more."""
    process = process_that_saves()
    return process is not None and not process.is_alive()
