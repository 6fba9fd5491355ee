"""Waiting for what another thread or process does, where nothing announces it."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 300.0  # far above what anything takes that is waited for, on a busy machine


def wait_until(condition: Callable[[], object], seconds: float = SECONDS, pause: float = 0.001) -> None:
    """Ask again and again, until the condition holds; it fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(pause)
