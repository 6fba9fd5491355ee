"""Processes that are the ranks of one job. Benchmarks start theirs here, too, without pytest."""

import datetime
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# far above what any step takes, far below the limit of the test: a rank that hangs ends as an error with a name
TIMEOUT = datetime.timedelta(seconds=240)
PRELOAD = ["tests.dcp.rank_scenarios", "tests.dcp.preloaded"]  # the first is not there for a benchmark without pytest


def start_ranks(function: Callable[..., None], arguments: tuple[Any, ...], count: int) -> Any:
    """Start processes, each a copy of one that has imported what takes seconds, and done nothing else."""
    mp.get_context("forkserver").set_forkserver_preload(PRELOAD)
    return mp.start_processes(function, arguments, nprocs=count, join=False, start_method="forkserver")


def join_group(rank: int, count: int, meeting: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    store = dist.FileStore(meeting, count)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=TIMEOUT)
