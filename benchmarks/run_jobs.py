"""What a manager adds to a save as checkpoints gather."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import streamxf
from benchmarks.harness import Phases, Rounds, alternate, timed
from benchmarks.run_folders import CHAIN, ManyCheckpoints, Place, save

ALONE = "dcp.save"
CALL, BEHIND = "manager.save", "in the background"


def saves(folder: Path, saved: Path, counts: tuple[int, ...], rounds: int) -> Rounds:
    """Seconds of saves of one small tensor: DCP's alone, and a manager's in runs with so many checkpoints, all of which
    its rules keep. Sides are named by the numbers.
    """
    place = Place.local(folder)
    keep = streamxf.Retention(last=10**6, best=10**6, metric="loss")
    managers: dict[int, streamxf.CheckpointManager] = {}
    steps: dict[int, int] = {}
    for count in counts:
        many = ManyCheckpoints(place, count, saved, f"beside-{count}")
        place.fill(many.name, saved, range(count))
        many.warm()
        managers[count] = streamxf.CheckpointManager(many.run, CHAIN, keep=keep)
        steps[count] = count

    def alone() -> Phases:
        begin = time.perf_counter()
        writer = streamxf.FileSystemWriter(folder / "alone" / f"step-{time.monotonic_ns()}", CHAIN)
        dcp.save({"w0": torch.zeros(1000)}, storage_writer=writer, no_dist=True)
        return {CALL: time.perf_counter() - begin}

    def managed(count: int) -> Phases:
        steps[count] += 1
        return {
            CALL: timed(lambda: save(managers[count], steps[count])),
            BEHIND: timed(managers[count].wait),
        }

    sides = {ALONE: alone} | {str(count): partial(managed, count) for count in counts}
    found = alternate(sides, rounds, "manager: saves beside many")
    for count, manager in managers.items():
        manager.close()
        place.remove(f"beside-{count}")
    place.remove("alone")
    return found
