"""Saves by many ranks in one process, without a process group.

Each rank has a planner and a writer of its own, and what ranks send one another goes through pickle, as it does between
processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed.checkpoint import DefaultSavePlanner, filesystem
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

T = TypeVar("T")

ROWS, COLUMNS = 4, 8  # of a tensor's shard
OBJECTS = 100  # one item of so many is no tensor
SHARDED = 0.75  # the part of all items that are shards of tensors which lie on all ranks


class Shard:
    """One rank's rows of a tensor."""

    def __init__(self, data: torch.Tensor, rank: int, ranks: int) -> None:
        self.data = data
        self._offsets = torch.Size([rank * ROWS, 0])
        self._whole = torch.Size([ranks * ROWS, COLUMNS])

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        chunk = ChunkStorageMetadata(self._offsets, self.data.size())
        about = TensorWriteData(chunk, TensorProperties.create_from_tensor(self.data), self._whole)
        return [WriteItem(MetadataIndex(name, self._offsets), WriteItemType.SHARD, tensor_data=about)]


class Planner(DefaultSavePlanner):
    """Looks into `Shard`, which plans for itself."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        found = self.state_dict[index.fqn]
        return found.data if isinstance(found, Shard) else super().lookup_object(index)


def states(items: int, ranks: int) -> list[dict[str, Any]]:
    """What each rank has: shards of tensors that lie on all ranks, tensors of its own, and few objects. All have the
    same numbers.
    """
    data = torch.empty(ROWS, COLUMNS).normal_(0, 0.02, generator=torch.Generator().manual_seed(1)).bfloat16()
    sharded = int(items * SHARDED / ranks)
    made: list[dict[str, Any]] = []
    for rank in range(ranks):
        shard = Shard(data, rank, ranks)
        made.append({f"model.layers.{number // 8}.part.{number % 8}.weight": shard for number in range(sharded)})
    for number in range(items - sharded * ranks):
        name = f"experts.{number}.weight"
        made[number % ranks][name] = data if number % OBJECTS else {"step": number}
    return made


@dataclass(frozen=True)
class Planned:
    """What the ranks agreed on before they write; `metadata` is the global one, or without collectives one a rank."""

    writers: list[Any]
    planners: list[DefaultSavePlanner]
    plans: list[SavePlan]
    metadata: list[Metadata]


def plan(path: Path, state: list[dict[str, Any]], make_writer: Callable[[Path], Any], *, collectives: bool) -> Planned:
    """Everything up to the writing, in DCP's order."""
    writers = [make_writer(path) for _ in state]
    planners = [Planner() for _ in state]
    local: list[SavePlan] = []
    for rank, (writer, planner, own) in enumerate(zip(writers, planners, state, strict=True)):
        planner.set_up_planner(state_dict=own, storage_meta=writer.storage_meta(), is_coordinator=rank == 0)
        writer.set_up_storage_writer(rank == 0 or not collectives, rank=rank, use_collectives=collectives)
        local.append(sent(writer.prepare_local_plan(planner.create_local_plan())))
    if collectives:
        shared, metadata = planners[0].create_global_plan(local)
        plans = [sent(plan) for plan in writers[0].prepare_global_plan(shared)]
        contents = [metadata]
    else:
        plans, contents = [], []
        for writer, planner, alone in zip(writers, planners, local, strict=True):
            own_plans, metadata = planner.create_global_plan([alone])
            plans += writer.prepare_global_plan(own_plans)
            contents.append(metadata)
    plans = [planner.finish_plan(plan) for planner, plan in zip(planners, plans, strict=True)]
    return Planned(writers, planners, plans, contents)


def write(planned: Planned) -> list[list[WriteResult]]:
    """Write each rank's part; what the ranks would report."""
    parts = zip(planned.writers, planned.plans, planned.planners, strict=True)
    return [sent(writer.write_data(plan, planner).wait()) for writer, plan, planner in parts]


def as_stock(result: WriteResult) -> WriteResult:
    """The result of a streamxf writer as torch's would report it."""
    place = result.storage_data[0].place
    return replace(result, storage_data=filesystem._StorageInfo(place.file, place.at, place.size))


def sent(value: T) -> T:
    """`value` as another process gets it."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy
