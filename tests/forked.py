"""Something that is done in a forked child."""

import os
import signal
from collections.abc import Callable
from typing import Any


def status_of_child(act: Callable[[], Any]) -> int:
    """The exit status of a forked child that does this, and is killed if it hangs."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(120)
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
