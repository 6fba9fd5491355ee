"""Waiting for what other threads or processes do."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

SECONDS = 300.0  # far above what anything takes that is waited for, on a busy machine


def wait_until(condition: Callable[[], object], seconds: float = SECONDS, pause: float = 0.001) -> None:
    """Ask again and again, until the condition holds; it fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(pause)


def at_once(work: Callable[..., object], each: int | Iterable[object]) -> None:
    """Run `work` in so many threads, or in one for each argument, and wait until all are over."""
    arguments: list[tuple[object, ...]] = [()] * each if isinstance(each, int) else [(one,) for one in each]
    threads = [threading.Thread(target=work, args=own, daemon=True) for own in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads)


class WatchedLock:
    """In the place of a lock: `asked` is set as soon as a thread has to wait for it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.asked = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.asked.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
