"""`LoadPlanner` and `SavePlanner`: torch's planners, for jobs of very many ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.checkpoint import BytesStorageMetadata, ChunkStorageMetadata, LoadPlan, Metadata, ReadItem
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from streamxf.dcp.base import reset_names
from streamxf.dcp.columns import Merged, PlannedItems, ReadItems, Shared, is_grid
from streamxf.dcp.metadata import FOUND, LazyTensor, torch_chunks
from streamxf.dcp.plans import flattened_entries, is_caching, is_flattened, is_usable, kept_plans
from streamxf.dcp.targets import ObjectPlaces, box_of, check_box, check_kind, chunks_here, whole_size
from streamxf.errors import MetadataError, UnsupportedError
from streamxf.format.items import Item, TensorItem
from streamxf.format.tiling import check_apart, check_tiles
from streamxf.format.values import Nesting
from streamxf.torch_private import ShardedTensor
from streamxf.wording import some


class LoadPlanner(DefaultLoadPlanner):
    """Plans a load as DCP's ``DefaultLoadPlanner`` does, whose options it has, and takes time and memory for the chunks
    that this rank reads instead of all of them.

    ``dcp.load(state, storage_reader=streamxf.FileSystemReader(path), planner=streamxf.LoadPlanner())``. With readers
    other than streamxf's it is torch's own, but for objects under integer keys, and those that it does not load.

    Parameters
    ----------
    flatten_state_dict, flatten_sharded_tensors, allow_partial_load
        As in torch.
    """

    def set_up_planner(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """As torch's planner does it, which makes None of objects, also in others, and of mappings that are no dict."""
        reset_names()
        leaves, copied = [*_leaves(state_dict, ())], _without_objects(state_dict)
        if not any(isinstance(value, ShardedTensor) for _, value in leaves):
            self.flatten_sharded_tensors = False  # for which torch makes the state again, without empty dictionaries
        super().set_up_planner(copied, *args, **kwargs)
        self.original_state_dict = state_dict
        self._objects = ObjectPlaces(state_dict)
        for (path, given), (_, made) in zip(leaves, _leaves(copied, ()), strict=True):
            if made is not given and made is not None:  # where a tensor was on the meta device
                self._objects.put(path, made)

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        """As torch's planner does it, with the keys that the state dict has."""
        self.put(read_item.dest_index.fqn, torch.load(value, weights_only=False))

    def put(self, name: str, value: Any) -> None:
        """Put an object where it belongs in the state dict."""
        self._objects.put(self.mappings.get(name, (name,)), value)

    check_kind = staticmethod(check_kind)

    def shards_for(self, item: TensorItem) -> list[tuple[tuple[int, ...], Tensor]]:
        """What this rank has of the item's target, each with its offset; UnsupportedError if the item does not fit."""
        target = self.state_dict[item.name]
        try:
            boxes = _boxes(target)
        except ValueError:
            text = f"the checkpoint has a tensor, the state dict a {type(target).__name__}"
            raise UnsupportedError(text) from None
        if item.shape != (size := whole_size(target)):
            raise UnsupportedError(f"the checkpoint has a tensor of shape {item.shape}, the state dict one of {size}")
        if isinstance(target, DTensor):
            check_box(item.name, target, sum(size.numel() for _, size in boxes))
        return [(tuple(at), self.lookup_tensor(MetadataIndex(item.name, at)).detach()) for at, _ in boxes]

    def create_local_plan(self) -> LoadPlan:
        """As torch's planner makes it; raises what that raises."""
        whole = self.metadata
        assert whole is not None
        if not isinstance(found := getattr(whole, FOUND, None), BaseException | None):
            self._look_for_shard(found.items)
        near = _Near(self, whole.state_dict_metadata)
        self.metadata, state = Metadata(near), self.state_dict
        self.state_dict = stood_for = _stood_for(state)
        try:
            plan = super().create_local_plan()
        finally:
            reset_names()
            self.metadata = whole
            if self.state_dict is stood_for:  # which torch replaces for names of its versions before 2.4
                self.state_dict = state
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


class SavePlanner(DefaultSavePlanner):
    """Plans a save as DCP's ``DefaultSavePlanner`` does, whose options it has. What ranks send each other, and what the
    coordinator does with it, are columns, where DCP has several objects for each item of each rank.

    ``dcp.save(state, storage_writer=streamxf.FileSystemWriter(path), planner=streamxf.SavePlanner())``, on all ranks.

    Parameters
    ----------
    flatten_state_dict, flatten_sharded_tensors, dedup_save_to_lowest_rank
        As in torch.
    enable_plan_caching
        As in torch, which compares neither dtypes nor what a state dict is nested in, as this does.
    """

    _sent: ClassVar[dict[str, Any]] = {}  # what torch does not compare of the last plan, by the name of a class
    _about: Any = None

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """As torch's planner does it, which does not keep how the state is nested."""
        self._nesting = Nesting.recorded(state_dict, is_flattened) if is_caching(self) else None
        super().set_up_planner(state_dict, storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        """As torch's planner makes it; of a plan that is cached all of it, if something has changed."""
        state = self.state_dict
        self.state_dict = _stood_for(state)
        try:
            plan = super().create_local_plan()
        finally:
            self.state_dict = state
        properties = [item.tensor_data and item.tensor_data.properties for item in self.plan.items]
        # what may change in a plan that torch takes for the same
        self._about = (properties, self.plan.planner_data, self._nesting) if is_caching(self) else None
        if not is_usable(plan) and self._about != self._sent.get(type(self).__name__):
            plan = self.plan
        paths = Shared(plan.planner_data) if type(plan.planner_data) is dict else plan.planner_data
        items: Any = PlannedItems.exactly(plan.items)
        return replace(plan, items=items, planner_data=paths)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """As torch's planner makes it; raises ValueError if the ranks' shards do not make up a tensor."""
        if is_caching(self):
            changed, metadata = super().create_global_plan(all_plans)
            # who sent a plan has a reason: what torch compares of it is not all
            triples = zip(all_plans, changed, kept_plans(self, all_plans), strict=True)
            return [whole if sent.usable else plan for sent, plan, whole in triples], metadata
        self.global_plan, self.metadata = self._create_global_plan(all_plans)
        return self.global_plan, self.metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """As torch's planner does it."""
        plan = super().finish_plan(new_plan)
        self._sent[type(self).__name__] = self._about
        return plan

    def _create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        ranks: list[Any] = [PlannedItems.exactly(plan.items) for plan in all_plans]
        if not all(isinstance(items, PlannedItems) for items in ranks):  # a derived planner has put others there
            return getattr(super(), "_create_global_plan", super().create_global_plan)(all_plans)
        all_items = Merged.of(ranks)
        if all_items.again.any():
            all_items, kept = all_items.once(self.dedup_save_to_lowest_rank)
            ranks = [items.keeping(rows) for items, rows in zip(ranks, kept, strict=True)]
        entries: dict[str, Any] = {
            name: LazyTensor.of(data[1], properties=data[0], boxes=boxes) if data else BytesStorageMetadata()
            for name, data, boxes, _ in all_items.spans()
        }
        _check_plan(entries, len(all_plans))
        paths: dict[str, Any] | None = {} if self.flatten_state_dict else None
        if paths is not None:
            for data in reversed({id(plan.planner_data): plan.planner_data for plan in all_plans}.values()):
                paths |= data  # what lower ranks have counts
        plans = [replace(plan, items=items) for plan, items in zip(all_plans, ranks, strict=True)]
        return plans, Metadata(entries, paths)


def _check_plan(entries: dict[str, Any], ranks: int) -> None:
    errors = []
    for name, entry in entries.items():
        if isinstance(entry, LazyTensor) and not is_grid(entry.boxes, entry.size):
            try:
                (check_tiles if ranks > 1 else check_apart)(entry.size, entry.boxes)
            except MetadataError as error:
                errors.append(f"key:{name} {error.message}")
    if errors:
        raise ValueError(f"Failed to validate global plan: {some(errors, most=3)}")


def _boxes(value: Any) -> list[Any]:
    """Offset and shape of what a rank has of a tensor; raises ValueError for another object."""
    return [(chunk.offsets, chunk.sizes) for chunk in chunks_here(value)]


def _stood_for(state: dict[str, Any]) -> dict[str, Any]:
    return {name: _Stood(value) if isinstance(value, DTensor) else value for name, value in state.items()}


class _Stood:
    """What torch's planners are shown of a DTensor, of which they would make an integer for each row of this rank's."""

    def __init__(self, value: DTensor) -> None:
        self.size = value.size
        self._value = value

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [] if self._value.device_mesh.get_coordinate() is None else chunks_here(self._value)

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        value: Any = self._value
        if value.device_mesh.get_coordinate() is None:
            return []
        if (box := box_of(value)) is None:
            return value.__create_write_items__(name, value)  # type: ignore[no-any-return]
        properties = TensorProperties.create_from_tensor(value.to_local())
        data = TensorWriteData(ChunkStorageMetadata(*box), properties, value.size())
        return [WriteItem(MetadataIndex(name, box[0]), WriteItemType.SHARD, tensor_data=data)]


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What DCP makes items of, with the paths."""
    if not isinstance(value, Mapping) and not (isinstance(value, list) and is_flattened(value)):
        yield path, value
    for key, each in flattened_entries(value):
        yield from _leaves(each, (*path, key))


def _without_objects(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_objects(each) for key, each in value.items()}
    if isinstance(value, list) and is_flattened(value):
        return [*map(_without_objects, value)]
    return value if isinstance(value, int | float | str | bytes | BytesIO | Tensor) else None


class _Near(dict[str, Any]):
    """The items of a checkpoint; of a tensor, those chunks that overlap what the planner's state dict has of it."""

    def __init__(self, planner: LoadPlanner, items: dict[str, Any]) -> None:
        super().__init__(items)
        self._planner = planner
        self._numbers: dict[str, list[int]] = {}

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if not isinstance(found, LazyTensor) or found.boxes is not None or "chunks" in vars(found):
            return found
        try:
            pairs = found.item.overlapping(_boxes(self._planner.state_dict[name]))
        except ValueError:
            return found  # the target is of another kind or has another shape, which torch says
        self._numbers[name] = [number for number, _ in pairs]
        return LazyTensor.of(found.size, item=found.item, chunks=torch_chunks(span for _, span in pairs))

    def numbered(self, item: ReadItem) -> ReadItem:
        """A request with the number that its chunk has among all of the tensor, by which readers find it at once."""
        index, numbers = item.storage_index, self._numbers.get(item.storage_index.fqn)
        if numbers is None or index.index is None:
            return item
        return replace(item, storage_index=MetadataIndex(index.fqn, index.offset, numbers[index.index]))
