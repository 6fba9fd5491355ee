"""Saves by many ranks in one process, without a process group.

Each rank has a planner and a writer of its own, and what ranks send one another goes through pickle, as it does between
processes.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.distributed.checkpoint import DefaultSavePlanner, filesystem
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.dcp.columns import PlannedItems, StoredResults, packed

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


class Part(torch.Tensor):
    """A tensor of which this rank has the rows of one shard; DCP asks it for them."""

    offset: int

    @classmethod
    def of(cls, rank: int, ranks: int) -> Any:
        made = torch.empty(1, COLUMNS, dtype=torch.bfloat16).expand(ranks * ROWS, COLUMNS).as_subclass(cls)
        made.offset = rank * ROWS
        return made

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size([self.offset, 0]), torch.Size([ROWS, COLUMNS]))]


class Planner(DefaultSavePlanner):
    """Looks into `Shard`, which plans for itself."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        found = self.state_dict[index.fqn]
        return found.data if isinstance(found, Shard) else super().lookup_object(index)


def names_of(items: int) -> list[str]:
    return [f"model.layers.{number // 8}.part.{number % 8}.weight" for number in range(items)]


def _data() -> torch.Tensor:
    return torch.empty(ROWS, COLUMNS).normal_(0, 0.02, generator=torch.Generator().manual_seed(1)).bfloat16()


def states(items: int, ranks: int) -> list[dict[str, Any]]:
    """What each rank has: shards of tensors that lie on all ranks, tensors of its own, and few objects. All have the
    same numbers.
    """
    data = _data()
    sharded = int(items * SHARDED / ranks)
    made: list[dict[str, Any]] = [dict.fromkeys(names_of(sharded), Shard(data, rank, ranks)) for rank in range(ranks)]
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


# -- one rank, and others like it ------------------------------------------------------------------------------------


def save_plan(writer: Any, planner: Any, rank: int, ranks: int, items: int) -> SavePlan:
    """What a rank plans to save: a shard of each of `items` tensors."""
    planner.set_up_planner(dict.fromkeys(names_of(items), Shard(_data(), rank, ranks)), None, not rank)
    made: SavePlan = writer.prepare_local_plan(planner.create_local_plan())
    return made


def load_plan(reader: Any, planner: Any, state: dict[str, Any]) -> LoadPlan:
    """What a rank plans to load, metadata read."""
    metadata = reader.read_metadata()
    planner.set_up_planner(dict(state), metadata, False)
    reader.set_up_storage_reader(metadata, True)
    made: LoadPlan = reader.prepare_local_plan(planner.create_local_plan())
    return made


def moved(items: PlannedItems, rank: int) -> PlannedItems:
    """What another rank plans to save."""
    return PlannedItems(items.layout, packed((items.boxes()[0] + [[rank * ROWS], [0]]).tobytes()))


def results_of_all(path: Path, own: Any, ranks: int, below: int = 1) -> Iterator[Any]:
    """What all ranks report, as if each had written what the first did, in fewer bytes by some `below` that number."""
    draw = np.random.default_rng(1)
    for rank in range(ranks):
        offset, name = torch.Size([rank * ROWS, 0]), f"__{rank}_0_{os.urandom(16).hex()}.distcp"
        less, made = draw.integers(0, below, len(own)), []
        if isinstance(own, StoredResults) and rank:
            places, (record,) = own.places([0]), own.records
            places[2] -= less
            yield StoredResults(moved(own.planned, rank), packed(places.tobytes()), [_linked(path, record, name)])
            continue
        for result in own if rank else ():
            stored = replace(result.storage_data, relative_path=name)
            made.append(replace(result, index=MetadataIndex(result.index.fqn, offset, rank), storage_data=stored))
        yield made if rank else own


def _linked(path: Path, record: Any, name: str) -> Any:
    """The record of the same file under the name that another rank gives it."""
    os.link(path / record.path, path / name)
    return replace(record, path=name, writer_id=bytes.fromhex(name[-39:-7]))


def as_stock(result: WriteResult) -> WriteResult:
    """The result of a streamxf writer as torch's would report it."""
    place = result.storage_data[0].place
    return replace(result, storage_data=filesystem._StorageInfo(place.file, place.at, place.size))


def sent(value: T) -> T:
    """`value` as another process gets it."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy
