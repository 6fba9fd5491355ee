"""A call in a forked child, which can be killed; torch is imported once, by its parent."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable


class Child:
    """Runs while others do.

    Parameters
    ----------
    call : callable
        Returns what JSON can hold.

    Attributes
    ----------
    process : int
        Its number.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._reading, writing = os.pipe()
        self.process = os.fork()
        if self.process:
            os.close(writing)
            return
        try:
            os.write(writing, json.dumps(call()).encode() + b"\n")
        finally:
            os._exit(1)  # after its result; whatever it raised

    def wait(self, seconds: float) -> bool:
        """Wait for its result, but not longer; gives whether it is over."""
        return bool(select.select([self._reading], [], [], seconds)[0])

    def kill(self) -> None:
        """End it without any warning."""
        os.kill(self.process, signal.SIGKILL)

    def result(self) -> object:
        """What the call returned; None if it was killed or raised."""
        with os.fdopen(self._reading) as pipe:
            text = pipe.read()
        os.waitpid(self.process, 0)
        return json.loads(text) if text.endswith("\n") else None
