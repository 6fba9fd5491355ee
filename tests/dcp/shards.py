"""Sharded checkpoints, saved by several ranks in one process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_global_save_plan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

import streamxf


@dataclass(frozen=True)
class Shard:
    """A part of a tensor, beginning at `offsets`."""

    tensor: torch.Tensor
    offsets: tuple[int, ...]
    whole: tuple[int, ...]


def rows(tensor: torch.Tensor, rank: int, ranks: int) -> Shard:
    """The rows of a tensor that a rank has, as FSDP cuts it."""
    parts = tensor.chunk(ranks)
    offset = sum(len(part) for part in parts[:rank])
    return Shard(parts[rank].clone(), (offset, *[0] * (tensor.ndim - 1)), tuple(tensor.shape))


class Planner(DefaultSavePlanner):
    """Plans shards as they are given; everything else as DCP does."""

    def create_local_plan(self) -> SavePlan:
        shards = {name: item for name, item in self.state_dict.items() if isinstance(item, Shard)}
        everything, self.state_dict = (
            self.state_dict,
            {name: item for name, item in self.state_dict.items() if name not in shards},
        )
        plan = super().create_local_plan()
        self.state_dict = everything
        items = [*plan.items, *(_write_item(name, shard) for name, shard in shards.items())]
        self.plan = SavePlan(items, planner_data=self.mappings)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Any:
        item = self.state_dict.get(write_item.index.fqn)
        return item.tensor if isinstance(item, Shard) else super().resolve_data(write_item)


def save_shards(
    path: Any,
    states: Sequence[dict[str, Any]],
    chain: Callable[[], Any] = list,
    *,
    use_collectives: bool = True,
    first: int = 0,
    **options: Any,
) -> list[str]:
    """Save one state for each rank, from the `first` on; returns the ids of the save, or those of the ranks."""
    writers, planners, plans = [], [], []
    for rank, state in enumerate(states, first):
        writer = streamxf.FileSystemWriter(path, _extensions=chain(), sync_files=False, **options)
        coordinates = rank == 0 or not use_collectives
        writer.set_up_storage_writer(coordinates, rank=rank, use_collectives=use_collectives)
        planner = Planner()
        planner.set_up_planner(state, writer.storage_meta(), coordinates)
        plan = writer.prepare_local_plan(planner.create_local_plan())
        if not use_collectives:
            (plan,), metadata = create_default_global_save_plan([plan])
            metadata.planner_data = planner.mappings
            writer.finish(metadata, [_written(writer, planner, plan)])
        writers.append(writer)
        planners.append(planner)
        plans.append(plan)
    if use_collectives:
        plans, metadata = create_default_global_save_plan(plans)
        plans = writers[0].prepare_global_plan(plans)
        results = [_written(*each) for each in zip(writers, planners, plans, strict=True)]
        metadata.planner_data = {name: at for planner in planners for name, at in planner.mappings.items()}
        writers[0].finish(metadata, results)
    return [writer.save_id for writer in (writers[:1] if use_collectives else writers)]


def save_as_ranks(
    count: int, path: Path, chain: Callable[[], list[Any]], *, items: int = 3, use_collectives: bool = True
) -> dict[str, Any]:
    """Save a few tensors for each rank, with a writer and data key for each; returns the state of all ranks."""
    states = [
        {f"rank.{rank}.{number}": torch.full((5,), 10.0 * rank + number) for number in range(items)}
        for rank in range(count)
    ]
    save_shards(path, states, chain, use_collectives=use_collectives)
    return {name: tensor for state in states for name, tensor in state.items()}


def _write_item(name: str, shard: Shard) -> WriteItem:
    index = MetadataIndex(name, torch.Size(shard.offsets))
    chunk = ChunkStorageMetadata(torch.Size(shard.offsets), shard.tensor.size())
    properties = TensorProperties.create_from_tensor(shard.tensor)
    return WriteItem(
        index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, torch.Size(shard.whole))
    )


def _written(writer: Any, planner: Any, plan: Any) -> Any:
    return writer.write_data(planner.finish_plan(plan), planner).wait()
