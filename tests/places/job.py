"""A job on another host than the test's: ``python -m tests.places.job WHAT PLACE SAID``. When it is as far as it should
be it makes the file SAID, and waits for SAID.go, or to be killed.
"""

import json
import os
import signal
import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import streamxf
from streamxf.manager import sessions, state
from streamxf.storage.local import LocalStorage
from streamxf.storage.opening import open_storage
from streamxf.storage.remote import RemoteStorage
from streamxf.storage.storage import Storage
from tests.manager.runs import replace_by_larger, saved_run
from tests.polling import wait_until
from tests.storage.servers import using

WHAT, PLACE, SAID = sys.argv[1:]
DELAY = 10.0  # seconds, after which a place is said to keep what was written


def wait() -> None:
    Path(SAID).touch()
    wait_until(Path(f"{SAID}.go").exists)


def main(place: Storage) -> None:
    state._LONGEST_DELAY = DELAY
    if WHAT in ("saves", "saves_ten"):
        saved_run(place, *(range(1, 4) if WHAT == "saves" else range(4, 14)), keep=2)
        wait()
    elif WHAT == "holds":
        with streamxf.hold(place.child("step-1")):
            wait()
    elif WHAT == "overwrites":
        replace_by_larger(place.child("step-2"))
    else:
        saved_run(place, 1, 2)


def stop_before_the_put(kind: Any) -> None:
    """When the second checkpoint is complete but for its metadata."""
    put = kind.put

    def stops(self: Storage, name: str, *arguments: Any, **how: Any) -> None:
        if (name, self.name) == (".metadata", "step-2"):
            wait() if WHAT == "saves_slowly" else os.kill(os.getpid(), signal.SIGKILL)
        put(self, name, *arguments, **how)

    kind.put = stops


if __name__ == "__main__":
    client, path, options = json.loads(PLACE)
    sessions.machine = lambda: "another machine"  # type: ignore[attr-defined]
    socket.gethostname = lambda: "another-host"
    if WHAT in ("saves_slowly", "is_killed"):
        stop_before_the_put(LocalStorage)
        stop_before_the_put(RemoteStorage)
    with using(client) if client else nullcontext():
        main(open_storage(path, options))
