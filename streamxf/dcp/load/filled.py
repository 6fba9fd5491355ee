"""Whether a load fills its targets, where the metadata does not speak of all that was saved; and what it leaves out.

Global metadata is known to tile every tensor, so what DCP plans from it fills every target. A rank's own metadata
speaks of this rank's shards. Loaded under another sharding, DCP would read what is there and leave the rest of the
target as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.tensor import DTensor

from streamxf.errors import MetadataError
from streamxf.format.items import Span, TensorItem, check_tiles
from streamxf.torch_private import create_chunk_list

_Target = tuple[str, torch.Size | None]
"""A tensor's name, and where in it the part begins that is loaded."""


def check_filled(plan: LoadPlan, planner: LoadPlanner, items: Mapping[str, Any]) -> None:
    """Check that what `plan` reads fills its targets, each element once.

    A planner that has DCP's `lookup_tensor` is asked how large a target is. One that has a `state_dict`, as DCP's own
    have, is asked for targets of which nothing is read, too. If it has neither, the metadata has to cover the whole
    tensor. Raises MetadataError if a part would stay as it was.
    """
    read: dict[_Target, list[Span]] = {}
    sizes = _wanted(planner, items)
    lookup = getattr(planner, "lookup_tensor", None)
    for request in plan.items:
        if request.type is LoadItemType.BYTE_IO:
            continue
        index = request.dest_index
        read.setdefault((index.fqn, index.offset), []).append((request.dest_offsets, request.lengths))
        if (index.fqn, index.offset) not in sizes and lookup is not None:
            sizes[index.fqn, index.offset] = lookup(index).size()
    for target in read:
        item = items.get(target[0])
        if target not in sizes and isinstance(item, TensorItem):  # the read itself refuses others
            _check(target[0], item.shape, [(chunk.offset, chunk.shape) for chunk in item.chunks])
    for target, size in sizes.items():
        _check(target[0], size, read.get(target, []))


def left_out(plan: LoadPlan, planner: LoadPlanner, items: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of items that this rank's plan does not ask for, and its state does not have."""
    asked = {request.storage_index.fqn for request in plan.items}
    if len(asked) == len(items):
        return ()
    state = getattr(planner, "state_dict", None)
    if isinstance(state, Mapping):  # of what has no elements, or none on this rank, nothing is read
        asked.update(state)
    return tuple(name for name in items if name not in asked)


def empty_text(state: Any, names: Iterable[str]) -> str:
    """A warning about `empty_targets`; empty if there is nothing to warn of."""
    if not isinstance(state, Mapping) or not (empty := empty_targets(state, names)):
        return ""
    shown = ", ".join(map(repr, empty[:3])) + (" and elsewhere" if len(empty) > 3 else "")
    return (
        f"the state to load is empty at {shown}, where the checkpoint has items; they are not loaded. An optimizer "
        "has no state before its first step: torch.distributed.checkpoint.state_dict.get_state_dict makes one. To load "
        "without them, leave the key out"
    )


def empty_targets(state: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The keys of a state, nested ones joined by dots, that hold an empty dictionary although there are items under
    them, such as an optimizer's that has made no step.
    """
    empty = dict.fromkeys(_empty_in(state, ""), False)
    if empty:
        for name in names:
            at = name.find(".")
            while at >= 0:
                if name[:at] in empty:
                    empty[name[:at]] = True
                at = name.find(".", at + 1)
    return [name for name, has_items in empty.items() if has_items]


def _empty_in(state: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in state.items():
        if isinstance(value, Mapping):
            if value:
                yield from _empty_in(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}"


def _wanted(planner: LoadPlanner, items: Mapping[str, Any]) -> dict[_Target, torch.Size]:
    """The parts of tensors that a planner's state dict has on this rank, as DCP's planner sees them."""
    state = getattr(planner, "state_dict", None)
    sizes: dict[_Target, torch.Size] = {}
    for name, value in state.items() if isinstance(state, Mapping) else ():
        if not isinstance(value, torch.Tensor) or not isinstance(items.get(name), TensorItem):
            continue
        if isinstance(value, DTensor) and value.device_mesh.get_coordinate() is None:
            continue  # it lies on other ranks
        for chunk in create_chunk_list(value):
            sizes[name, chunk.offsets] = chunk.sizes
    return sizes


def _check(name: str, size: Sequence[int], parts: list[Span]) -> None:
    try:
        check_tiles(size, parts)
    except MetadataError as error:
        raise MetadataError(
            "this rank's own metadata has only a part of what is to be loaded: the shards of other ranks are missing. "
            "Load with the ranks and the sharding of the save, or save with collectives, so that there is metadata of "
            "all",
            item=name,
        ) from error
