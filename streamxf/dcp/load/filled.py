"""Whether a load fills its targets, where the metadata does not speak of all that was saved.

Global metadata is known to tile every tensor, so what DCP plans from it fills every target. A rank's own metadata
speaks of this rank's shards. Loaded under another sharding, DCP would read what is there and leave the rest of the
target as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.tensor import DTensor

from streamxf.errors import MetadataError
from streamxf.format.items import Span, TensorItem, check_tiles

_Target = tuple[str, torch.Size | None]
"""A tensor's name, and where in it the part begins that is loaded."""


def check_filled(plan: LoadPlan, planner: LoadPlanner, items: Mapping[str, Any]) -> None:
    """Check that what `plan` reads fills its targets, each element once.

    A planner that has DCP's `lookup_tensor` is asked how large a target is. One that has a `state_dict`, as DCP's own
    have, is asked for targets of which nothing is read, too. If it has neither, the metadata has to cover the whole
    tensor.

    Raises
    ------
    MetadataError
        If a part would stay as it was.
    """
    read: dict[_Target, list[Span]] = {}
    indexes: dict[_Target, MetadataIndex] = {}
    for request in plan.items:
        if request.type is LoadItemType.BYTE_IO:
            continue
        target = request.dest_index.fqn, request.dest_index.offset
        read.setdefault(target, []).append((request.dest_offsets, request.lengths))
        indexes.setdefault(target, request.dest_index)
    sizes: dict[_Target, torch.Size] = _wanted(planner, items)
    lookup = getattr(planner, "lookup_tensor", None)
    for target, index in indexes.items():
        if target in sizes:
            continue
        if lookup is None:
            _check_whole(index.fqn, items)
        else:
            sizes[target] = lookup(index).size()
    for target, size in sizes.items():
        try:
            check_tiles(size, read.get(target, []))
        except MetadataError as error:
            raise _not_filled(target[0]) from error


def _wanted(planner: LoadPlanner, items: Mapping[str, Any]) -> dict[_Target, torch.Size]:
    """The parts of tensors that a planner's state dict has on this rank, as DCP's planner sees them."""
    state = getattr(planner, "state_dict", None)
    if not isinstance(state, Mapping):
        return {}
    sizes: dict[_Target, torch.Size] = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or not isinstance(items.get(name), TensorItem):
            continue
        if isinstance(value, DTensor) and value.device_mesh.get_coordinate() is None:
            continue  # it lies on other ranks
        for chunk in _create_chunk_list(value):
            sizes[name, chunk.offsets] = chunk.sizes
    return sizes


def _check_whole(name: str, items: Mapping[str, Any]) -> None:
    item = items.get(name)
    if not isinstance(item, TensorItem):
        return  # which the read itself refuses
    try:
        check_tiles(item.shape, [(chunk.offset, chunk.shape) for chunk in item.chunks])
    except MetadataError as error:
        raise _not_filled(name) from error


def _not_filled(name: str) -> MetadataError:
    return MetadataError(
        "this rank's own metadata has only a part of what is to be loaded: the shards of other ranks are missing. Load "
        "with the ranks and the sharding of the save, or save with collectives, so that there is metadata of all",
        item=name,
    )
