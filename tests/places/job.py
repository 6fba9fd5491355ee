"""A job on another host than the test's: ``python -m tests.places.job WHAT PLACE SAID``. When it is as far as it should
be it makes the file SAID, and waits for SAID.go, or to be killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

import streamxf
from streamxf.manager import forget, sessions
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage
from streamxf.storage.remote import RemoteStorage
from streamxf.storage.storage import Storage
from tests.manager.runs import saved_run, state_at
from tests.polling import wait_until
from tests.storage.servers import using

SAID = Path(sys.argv[3])
DELAY = 10.0  # seconds, for which a place is said to keep what was written


def waits() -> None:
    SAID.touch()
    wait_until(Path(f"{SAID}.go").exists)


def before_the_put(act: Callable[[], Any]) -> None:
    """Do something when the second checkpoint is complete but for its metadata."""
    for kind in (LocalStorage, RemoteStorage):

        def acts(self: Storage, name: str, *arguments: Any, put: Any = kind.put, **how: Any) -> None:
            if (name, self.name) == (".metadata", "step-2"):
                act()
            put(self, name, *arguments, **how)

        kind.put = acts  # type: ignore[method-assign, assignment]


def saves(place: Storage) -> None:
    saved_run(place, 1, 2, 3, keep=2)


def saves_ten(place: Storage) -> None:
    forget._LONGEST_DELAY = DELAY
    saved_run(place, *range(4, 14), keep=2)
    waits()


def is_killed(place: Storage) -> None:
    before_the_put(lambda: os.kill(os.getpid(), signal.SIGKILL))
    saved_run(place, 1, 2)


def saves_slowly(place: Storage) -> None:
    before_the_put(waits)
    saved_run(place, 1, 2)


def holds(place: Storage) -> None:
    with streamxf.hold(place.child("step-1")):
        waits()


def overwrites(place: Storage) -> None:
    state = state_at(22) | {f"more-{number}": number for number in range(30)}
    dcp.save(state, storage_writer=streamxf.FileSystemWriter(place.child("step-2"), chain="zstd"), no_dist=True)


def main(what: str, place: str) -> None:
    client, path, options = json.loads(place)
    sessions.machine = lambda: "another machine"  # type: ignore[attr-defined]
    socket.gethostname = lambda: "another-host"
    with using(client) if client else nullcontext():
        globals()[what](open_storage(path, options))


if __name__ == "__main__":
    main(*sys.argv[1:3])
