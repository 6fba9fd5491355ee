"""The process that torch starts for saves in the background: what ends it, and what must not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Collection

from streamxf.errors import AbortedError

NICE = 10
_PAUSE = 0.2  # seconds between two looks at the parent


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
