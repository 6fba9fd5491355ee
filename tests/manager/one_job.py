"""A job that saves to a run, by itself: ``python -m tests.manager.one_job RUN SAID save|train keyed|plain``."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import streamxf
from streamxf.manager.manager import CheckpointManager
from streamxf.storage.local import LocalStorage
from streamxf.storage.storage import Storage
from tests.manager.runs import state_at


def main(run: str, said: str, what: str, keyed: str) -> None:
    options: dict[str, Any] = {}
    if keyed == "keyed":
        options = {"chain": "zstd+encrypt", "keys": streamxf.Key(bytes(range(32)))}
    put = LocalStorage.put

    def waits(storage: Storage, name: str, *arguments: Any, **more: Any) -> None:
        if name == ".metadata" and what == "save":
            Path(said).write_text(f"begun {os.getpid()}")
            signal.pause()
        put(storage, name, *arguments, **more)

    LocalStorage.put = waits  # type: ignore[method-assign]
    with CheckpointManager(run, **options) as manager:
        manager.save(1, state_at(1))
        manager.wait()
        Path(said).write_text(f"saved {os.getpid()}")
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
