"""A save by several ranks in one process: DCP's steps, one rank after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import streamxf


def save_as_ranks(
    count: int, path: Path, chain: Callable[[], list[Any]], *, items: int = 3, use_collectives: bool = True
) -> dict[str, Any]:
    """Save a few tensors for each rank, with a writer and data key for each.

    Returns
    -------
    dict
        The state of all ranks.
    """
    whole: dict[str, Any] = {}
    writers, planners, plans = [], [], []
    for rank in range(count):
        state = {f"rank.{rank}.{number}": torch.full((5,), 10.0 * rank + number) for number in range(items)}
        whole |= state
        writer = streamxf.FileSystemWriter(path, _extensions=chain(), sync_files=False)
        coordinates = rank == 0 or not use_collectives
        writer.set_up_storage_writer(coordinates, rank=rank, use_collectives=use_collectives)
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, writer.storage_meta(), coordinates)
        plan = writer.prepare_local_plan(planner.create_local_plan())
        if not use_collectives:
            (plan,), metadata = planner.create_global_plan([plan])
            writer.finish(metadata, [_write(writer, planner, plan)])
        writers.append(writer)
        planners.append(planner)
        plans.append(plan)
    if use_collectives:
        plans, metadata = planners[0].create_global_plan(plans)
        results = [_write(*each) for each in zip(writers, planners, plans, strict=True)]
        writers[0].finish(metadata, results)
    return whole


def _write(writer: Any, planner: Any, plan: Any) -> Any:
    return writer.write_data(planner.finish_plan(plan), planner).wait()
