"""Functions that run in a process of their own: for its peak memory, or with a library before libc. In a smoke run
it is forked from one that has imported torch, which takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import streamxf

smoke = False
T = TypeVar("T")

_ROOT = Path(__file__).parent.parent


def in_child(module: str, function: str, *, preload: Path | None = None, **arguments: Any) -> Any:
    """Call a function of `module` in a new process and return what it returns; both ways through JSON. `preload` is a
    library that stands between the child and libc.
    """
    asked = (module, function, json.dumps(arguments))
    if smoke and preload is None:
        servant = get_context("forkserver")
        servant.set_forkserver_preload([__name__, "torch.distributed.checkpoint"])
        with ProcessPoolExecutor(1, servant) as pool:
            return json.loads(pool.submit(answer, *asked).result())
    command = [sys.executable, "-m", "benchmarks.child", *asked]
    environment = {**os.environ, "LD_PRELOAD": str(preload)} if preload else None
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=_ROOT, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def in_fork(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a copy of this process, which need not import anything, and return what it returns.

    This process must have no threads, and what the copy leaves in memory ends with it.
    """
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(function, *arguments).result()


def answer(module: str, function: str, arguments: str) -> str:
    """The child's side of `in_child`."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    for public in streamxf.__all__:  # which are imported when they are looked at
        getattr(streamxf, public)
    return json.dumps(getattr(import_module(module), function)(**json.loads(arguments)))


if __name__ == "__main__":
    print(answer(*sys.argv[1:]))
