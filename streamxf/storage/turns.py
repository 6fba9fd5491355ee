"""`in_turns`: a client that takes one call at a time. Those of fsspec's that are not asynchronous promise nothing to
threads: in paramiko's, one takes the answer that another waits for, which then waits for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from streamxf.errors import AbortedError
from streamxf.storage.fetch import lowest


class _Turn:
    """Of a client, wherever it is used; a finalizer or a signal's handler may come in the middle of a call."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._holder = 0
        self._pid = os.getpid()

    def call(self, method: Callable[..., Any], *given: Any, **more: Any) -> Any:
        if self._pid != os.getpid():
            raise AbortedError("what was opened before a fork cannot be used in a child process: open it there")
        if self._holder == threading.get_ident():
            raise AbortedError("the storage's client is in the middle of another call of this thread")
        with self.lock:
            self._holder = threading.get_ident()
            try:
                result = method(*given, **more)
            finally:
                self._holder = 0
        return _InTurns(result, self) if hasattr(result, "seek") else result


class _InTurns:
    """A file system, or a file that it opened."""

    def __init__(self, target: Any, turn: _Turn) -> None:
        self.__dict__.update(_target=target, _turn=turn)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return partial(self._turn.call, found) if callable(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return in_turns, (self._target,)  # a file system; files cannot be pickled


def in_turns(filesystem: Any) -> Any:
    """The same file system of fsspec's; all that use its client wait for each other."""
    turn = vars(lowest(filesystem)).setdefault("_streamxf_turn", _Turn())
    return _InTurns(filesystem, turn)
