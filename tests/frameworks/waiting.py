"""Runs a script whose rank 0 waits for a signal at the n-th call of a method: waiting.py PLACE N SCRIPT [ARGUMENTS].

PLACE is "module:Class.method".
"""

import functools
import os
import runpy
import signal
import sys
from importlib import import_module
from itertools import count
from typing import Any


def _wait() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)  # so that a signal is seen that comes before the wait
    print("waiting", flush=True)
    os.read(read, 1)


place, number = sys.argv[1], int(sys.argv[2])
module, _, path = place.partition(":")
owner, _, method = path.partition(".")
found = getattr(import_module(module), owner)
called = getattr(found, method)
calls = count(1)


@functools.wraps(called)
def _waiting(*args: Any, **kwargs: Any) -> Any:
    if next(calls) == number and os.environ.get("RANK", "0") == "0":
        _wait()
    return called(*args, **kwargs)


setattr(found, method, _waiting)
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
