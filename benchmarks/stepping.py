"""Training loops of several ranks, and how long each step is blocked by the question whether to save."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

import streamxf
from streamxf.manager.agreement import Agreement
from tests.dcp.process_groups import join_group, start_ranks

STEP = 0.003
WARM = 50
OURS, WAITING = "should_save", "an all-reduce that waits"


def blocked(ranks: int, steps: int, folder: Path) -> dict[str, list[float]]:
    """Run a loop with each way to ask: the seconds that it took in each step, of all ranks together."""
    folder.mkdir()
    context = start_ranks(_rank, (ranks, str(folder), steps), ranks)
    while not context.join():
        """A rank that fails ends the others, and is raised here."""
    found = [json.loads((folder / f"rank {rank}").read_text()) for rank in range(ranks)]
    return {name: [seconds for each in found for seconds in each[name]] for name in (OURS, WAITING)}


def _rank(rank: int, ranks: int, folder: str, steps: int) -> None:
    with suppress(PermissionError):  # threads that are made later inherit it
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    join_group(rank, ranks, f"{folder}/meeting")
    gradient = torch.rand(250_000)

    def train() -> None:
        """Waits for an accelerator, and averages a gradient: no rank is ahead of the others by a step."""
        time.sleep(STEP)
        dist.all_reduce(gradient.clone())

    found = {}
    # everything that a step can be asked for, and nothing that comes
    schedule = streamxf.Schedule(steps=10**9, seconds=1e9)
    with streamxf.CheckpointManager(f"{folder}/run", save=schedule) as manager:
        found[OURS] = _measured(train, manager.should_save, steps)
    agreement = Agreement()
    found[WAITING] = _measured(train, lambda step: agreement.exchange(step, wait=True), steps)
    agreement.close()
    Path(folder, f"rank {rank}").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _measured(train: Callable[[], None], ask: Callable[[int], object], steps: int) -> list[float]:
    found = []
    for step in range(1, WARM + steps + 1):
        train()
        begin = time.perf_counter()
        ask(step)
        found.append(time.perf_counter() - begin)
    return found[WARM:]
