"""The command ``streamxf`` in a process of its own, at a terminal that the test holds the other end of."""

import os
import pty
from collections.abc import Sequence
from contextlib import suppress

from tests.cli import preloaded


def at_terminal(arguments: Sequence[object], typed: str = "", **environment: str) -> tuple[int, str]:
    """Run a command whose three streams are a terminal of 80 columns; returns its exit code and what was shown.

    Parameters
    ----------
    typed : str
        What is waiting at the keyboard.
    """
    ours, theirs = pty.openpty()
    try:
        seen = os.environ | {"TERM": "xterm", "COLUMNS": "80"} | environment
        process = preloaded.start(arguments, [theirs] * 3, environment=seen)
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = b""
        with suppress(OSError):  # Linux's word for the end
            while more := os.read(ours, 65536):
                shown += more
        return process.wait(), shown.decode()
    finally:
        os.close(ours)
