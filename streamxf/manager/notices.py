"""`Notices`: whether this process was told that the job will end, by a signal or a notice."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class Notices:
    """Watches for signals, until it is closed."""

    def __init__(self, signals: tuple[int, ...], notice: Callable[[], bool] | None) -> None:
        self._notice = notice
        self._told = False
        self._before: dict[int, Any] = {number: signal.signal(number, self._handle) for number in signals}

    @property
    def requested(self) -> bool:
        return self._told or (self._notice is not None and self._notice())

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._told = True
