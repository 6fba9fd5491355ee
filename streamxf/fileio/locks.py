"""`ForkLock`: a lock that a forked child finds open."""

from __future__ import annotations

import os
import threading


class ForkLock:
    """Holds a lock for each process: the threads that may hold the parent's do not exist in the child.

    Use it as ``with lock.here():``. What is entered is a bare lock, so that an interrupt comes before it is taken or
    when it is sure to be released, and never between.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def here(self) -> threading.Lock:
        """The lock of this process."""
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock
