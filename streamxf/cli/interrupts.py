"""Ctrl-C, and the signals by which schedulers and closed terminals end a process: each ends a command tidily."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from streamxf.cli.exits import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns signals into KeyboardInterrupt, and remembers the first.

    What is interrupted may turn that into an error of its own, as imports and DCP do; so what counts afterwards is
    whether there was a signal.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self._raised: list[KeyboardInterrupt] = []

    @property
    def exit_code(self) -> int:
        """As shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
        return INTERRUPTED if self.first is None else 128 + self.first

    def how_to_resume(self, error: BaseException) -> list[str]:
        """What was noted of that on `error`, or on the interrupts themselves, which typer does not pass on."""
        notes = (note for each in (*self._raised, error) for note in getattr(each, "__notes__", ()))
        return [note for note in dict.fromkeys(notes) if "repeat" in note]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch for signals in the block. Those that the process was started to ignore, as by nohup, stay ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            for number, known in before.items():
                if known is not signal.SIG_IGN:
                    signal.signal(number, self._note)
            yield
        finally:
            for number, known in before.items():
                signal.signal(number, known)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or number
        self._raised.append(KeyboardInterrupt())
        raise self._raised[-1]
