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
        self._locks = {os.getpid(): threading.Lock()}

    def here(self) -> threading.Lock:
        """The lock of this process."""
        pid = os.getpid()
        # the dictionary decides which of two threads of a child made it
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.Lock())
