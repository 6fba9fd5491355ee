"""A job that saves in a process of its own: ``python -m tests.manager.saving_job RUN SAID [wait]``. Each save there
waits before it is published; SAID gets a line for whatever happens. With `wait`, training waits for the first save.
"""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from streamxf.manager.manager import CheckpointManager
from streamxf.manager.schedule import Schedule
from streamxf.storage.local import LocalStorage
from streamxf.storage.storage import Storage
from tests.manager.runs import state_at

SAID = Path(sys.argv[2])
put = LocalStorage.put


def say(text: str) -> None:
    with SAID.open("a") as file:
        file.write(f"{text} {os.getpid()}\n")


def waits(storage: Storage, name: str, *arguments: Any, **more: Any) -> None:
    if name == ".metadata" and multiprocessing.parent_process() is not None:
        say(f"saving {storage.label()[-1]}")
        time.sleep(1.5)
    put(storage, name, *arguments, **more)


LocalStorage.put = waits  # type: ignore[method-assign]  # here, and where this module is imported to save


def main(run: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    watched = Schedule(steps=10, signals=(signal.SIGTERM, signal.SIGUSR1))
    with CheckpointManager(run, async_save="process", save=watched) as manager:
        manager.save(1, state_at(1))
        say("training")
        if sys.argv[3:]:
            manager.wait()
            say("saved")
        for step in range(2, 10_000):
            time.sleep(0.05)
            if manager.should_save(step) and (manager.stopping or step == 10):
                manager.save(step, state_at(step))
                say("asked")
            if manager.stopping:
                break
    say("ended")


if __name__ == "__main__":
    main(sys.argv[1])
