"""`StopSignals`: whether this process was told by a signal that the job will end; and the process that saves."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)
_ends: list[Finalize] = []


class StopSignals:
    """Watches signals until it is closed; then each has the handler that it had before. That of Python's is called,
    too, and what was ignored stays ignored. Several may watch the same signals, and be closed in any order. Only in the
    main thread does Python let a program handle signals.
    """

    def __init__(self, signals: tuple[int, ...]) -> None:
        self._name = ""
        self._logged = False
        self._process = os.getpid()
        self._before: dict[int, Any] = {}
        self._closed = False
        if signals and not _in_main_thread():
            names = ", ".join(signal.Signals(number).name for number in signals)
            _log.warning("%s will not lead to a save: only the main thread can watch for signals", names)
            return
        for number in signals:
            before = signal.getsignal(number)
            if before is None:
                _log.warning("%s has a handler that Python cannot restore; it stays", signal.Signals(number).name)
            elif before != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._handle)

    @property
    def requested(self) -> bool:
        """Whether it was told. Logs it, which a signal handler must not do."""
        if self._name and not self._logged:
            self._logged = True
            _log.warning("received %s: the job saves, and then ends", self._name)
        return bool(self._name)

    def close(self) -> None:
        self._closed = True
        if _in_main_thread():
            for number, before in self._before.items():
                if signal.getsignal(number) == self._handle:  # or someone has put another one over it since
                    signal.signal(number, _open(number, before))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = _open(number, self._before[number])
        if self._closed or os.getpid() != self._process:
            self._pass_on(number, frame, before)
            return
        self._name = signal.Signals(number).name
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None, before: Any) -> None:
        """Do what would happen without this handler: another one was put over it, or a copy of this process has it.

        A copy ends by SIGTERM and SIGINT, as whoever sent them expects. Other signals come to every process of a job,
        and one that ends, such as a data loader's worker, would take training with it before it saves.
        """
        if callable(before):
            before(number, frame)
        elif self._closed or number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _open(number: int, before: Any) -> Any:
    """The handler that was there before, and before those of others that are closed by now."""
    while isinstance(owner := getattr(before, "__self__", None), StopSignals) and owner._closed:
        before = owner._before[number]
    return before


@contextmanager
def deaf_from_the_start(deaf: Collection[int], saver: Callable[[], Any]) -> Iterator[None]:
    """If torch starts its process for saves now, it is deaf before it can say so itself: it has the mask of the thread
    that starts it. At the end of this process it gets no SIGTERM then, as multiprocessing sends it, but one that it
    hears.
    """
    if saver() is not None:
        yield
        return
    if not _ends:
        _ends.append(Finalize(None, _end_saver, (saver,), exitpriority=100))
    resource_tracker.ensure_running()  # which lets SIGTERM and SIGINT through to the thread that starts it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, deaf)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_saver(saver: Callable[[], Any]) -> None:
    process = saver()
    if process is not None and process.is_alive():
        process.kill()


def is_dead(saver: Any) -> bool:
    """Whether the process that saves was started and has ended, so that torch can save there no more."""
    return saver is not None and not saver.is_alive()
