"""`LoadPlanner`: torch's planner, which asks the checkpoint for the chunks that a rank needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.nn import Parameter

from streamxf.checkpoint import metadata as stored_metadata
from streamxf.dcp.columns import ReadItems
from streamxf.dcp.metadata import FOUND, LazyTensor, torch_chunks
from streamxf.format.items import Item, TensorItem
from streamxf.torch_private import create_chunk_list


class LoadPlanner(DefaultLoadPlanner):
    """Plans a load as DCP's ``DefaultLoadPlanner`` does, whose options it has, and takes time and memory for the chunks
    that this rank reads instead of all of them.

    ``dcp.load(state, storage_reader=streamxf.FileSystemReader(path), planner=streamxf.LoadPlanner())``. With readers
    other than streamxf's it is torch's own.

    Parameters
    ----------
    flatten_state_dict, flatten_sharded_tensors, allow_partial_load
        As in torch.
    """

    def create_local_plan(self) -> LoadPlan:
        """As torch's planner makes it; raises what that raises."""
        whole = self.metadata
        assert whole is not None
        if isinstance(found := getattr(whole, FOUND, None), stored_metadata.Metadata):
            self._look_for_shard(found.items)
        near = _Near(self, whole.state_dict_metadata)
        self.metadata = Metadata(near)
        try:
            plan = super().create_local_plan()
        finally:
            self.metadata = whole
        items: Any = ReadItems([near.numbered(item) for item in plan.items])
        return replace(plan, items=items)

    def _look_for_shard(self, items: Mapping[str, Item]) -> None:
        """Look for this rank's shard of one tensor before any names are asked for: a part of a large index that has it
        tells names, too, and those beside it are likely to have this rank's shards of the others.
        """
        for name, value in self.state_dict.items():
            with suppress(ValueError):  # an object; or a target that torch will refuse
                if type(value) not in (Tensor, Parameter) and isinstance(item := items.get(name), TensorItem):
                    item.overlapping(_boxes(value))
                    return


def _boxes(value: Any) -> list[Any]:
    """Offset and shape of what a rank has of a tensor; raises ValueError for another object."""
    return [(chunk.offsets, chunk.sizes) for chunk in create_chunk_list(value)]


class _Near(dict[str, Any]):
    """The items of a checkpoint; of a tensor, those chunks that overlap what the planner's state dict has of it."""

    def __init__(self, planner: LoadPlanner, items: dict[str, Any]) -> None:
        super().__init__(items)
        self._planner = planner
        self._numbers: dict[str, list[int]] = {}

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if not isinstance(found, LazyTensor) or "chunks" in vars(found):
            return found
        try:
            pairs = found.item.overlapping(_boxes(self._planner.state_dict[name]))
        except ValueError:
            return found  # the target is of another kind or has another shape, which torch says
        self._numbers[name] = [number for number, _ in pairs]
        made = LazyTensor.of(found.item)
        made.chunks = torch_chunks(span for _, span in pairs)
        return made

    def numbered(self, item: ReadItem) -> ReadItem:
        """A request with the number that its chunk has among all of the tensor, by which readers find it at once."""
        index, numbers = item.storage_index, self._numbers.get(item.storage_index.fqn)
        if numbers is None or index.index is None:
            return item
        return replace(item, storage_index=MetadataIndex(index.fqn, index.offset, numbers[index.index]))
