"""The targets of a load: how each may be written to, whether all are filled, and what the checkpoint has besides.

Global metadata is known to tile every tensor, so what DCP plans from it fills every target. A rank's own metadata
speaks of this rank's shards. Loaded under another sharding, DCP would leave the rest of the target as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.tensor import DTensor, Replicate, Shard

from streamxf import torch_private
from streamxf.checkpoint.sources import Array, DeviceMemory, Staging, array_of, check_memory
from streamxf.dcp.base import keys_by_text
from streamxf.errors import MetadataError, UnsupportedError
from streamxf.format.items import TensorItem
from streamxf.format.limits import MAX_NDIM
from streamxf.format.tiling import Span, check_tiles, overlap

_MANY = 2**16  # rows of a shard, for each of which torch makes eight bytes to find where the first one is


@dataclass(slots=True, eq=False)
class Target:
    """The detached tensor that an item is loaded into.

    - `plain`: whether it is torch's own kind and each of its elements has a place of its own, so that `copy_` into its
      parts, one after the other, does what a single `copy_` does.
    - `extent`: the addresses between which it lies; None if it is not plain, and for devices other than CPU and CUDA.
    """

    tensor: torch.Tensor
    plain: bool
    extent: tuple[int, int] | None
    _array: tuple[torch.dtype, Array] | None = None  # what `memory` has found

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Target:
        """Raises as `check_memory`."""
        plain = (
            type(tensor) is torch.Tensor
            and tensor.layout == torch.strided
            and not tensor.is_quantized
            and tensor.device.type != "meta"
            and not _may_overlap(tensor)
        )
        if plain:
            check_memory(tensor)
        return cls(tensor, plain, _extent(tensor) if plain and tensor.device.type in ("cpu", "cuda") else None)

    def memory(self, dtype: torch.dtype, staging: Staging) -> Array | DeviceMemory | None:
        """The tensor's own memory, in its shape and strides, if writing elements of `dtype` there is the same as
        `copy_`; else None. Raises RuntimeError if torch does not let the tensor be written to, as `copy_` would.
        """
        if self._array is not None and self._array[0] == dtype:
            return self._array[1]
        tensor = self.tensor
        fits = (
            self.plain
            and tensor.dtype == dtype
            and tensor.dim() <= MAX_NDIM
            and not (dtype.is_complex and tensor.is_conj())
            and not tensor.is_neg()
            and not torch_private.is_cow_tensor(tensor)
        )
        if not fits:
            return None
        # torch then knows of a change in place, and refuses one of a tensor that takes none
        nothing = tensor.as_strided((0,), (1,))
        nothing.copy_(nothing)
        staged = staging.memory(tensor)
        if staged is not None or tensor.device.type != "cpu":
            return staged
        self._array = dtype, array_of(tensor)
        return self._array[1]

    def may_share_memory_with(self, other: Target) -> bool:
        """Whether two tensors are not known to lie between different addresses."""
        if self.extent is None or other.extent is None:
            return True
        return self.extent[0] < other.extent[1] and other.extent[0] < self.extent[1]


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def _may_overlap(tensor: torch.Tensor) -> bool:
    """Whether two elements could share memory. What is not known to be free of overlaps is taken to have some."""
    reach = 0  # of the dimensions with smaller strides, in elements
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


class ObjectPlaces:
    """The places of objects in a state dict that DCP has flattened. Its paths have strings, where keys may be integers:
    torch's own ``set_element`` would put the value under a new key beside the old one.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._keys: dict[int, dict[str, Any]] = {}  # of each dict

    def put(self, path: Sequence[str | int], value: Any) -> None:
        """Set what a path leads to."""
        node = self._state
        for step in path[:-1]:
            node = node[self._key(node, step)]
        node[self._key(node, path[-1])] = value

    def _key(self, node: Any, step: str | int) -> Any:
        if not isinstance(node, Mapping):
            return step
        if id(node) not in self._keys:
            self._keys[id(node)] = keys_by_text(node.keys())  # a TensorDict answers for these alone
        return self._keys[id(node)].get(str(step), step)


def check_dtype(target: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise UnsupportedError if one is quantized, and the other of another dtype, which `copy_` cuts off or refuses."""
    if target.dtype != dtype and (target.is_quantized or str(dtype).startswith(("torch.qint", "torch.quint"))):
        raise UnsupportedError(
            f"the stored tensor is of {dtype}, the target of {target.dtype}, and a load does not quantize: load into a "
            f"tensor of {dtype}, and convert that"
        )


def check_kind(target: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise UnsupportedError unless `copy_` of `wanted`, a tensor that is more than its elements or a part of one,
    makes the target mean the same, and every other tensor of its memory.

    `copy_` would set a quantized tensor's scale on this target alone, and a module's state has tensors detached from
    its own. Of a subclass those who wrote its `copy_` decide.
    """
    check_dtype(target, wanted.dtype)
    if wanted.is_quantized and not _alike(_scale(wanted), _scale(target)):
        raise UnsupportedError(
            "the stored tensor is quantized by another scale, zero point, axis or scheme than the target: its elements "
            "would stand for other numbers in whatever shares the target's memory, as model.state_dict() does with the "
            "model. Load into a target made with the stored scale and zero point; or read the tensor whole, "
            "streamxf.Checkpoint(path)[name].read(), and give it to model.load_state_dict"
        )
    elif type(wanted) is type(target) is not torch.Tensor and not _alike(_context(wanted), _context(target)):
        raise UnsupportedError(
            f"the stored {type(wanted).__name__} has other attributes than the target, such as a scale or a layout, "
            f"which a load in place does not change: {_context(wanted)!r:.200}, {_context(target)!r:.200}. Load into "
            "a tensor that was made in the same way"
        )


def _scale(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What the numbers of a quantized tensor stand for."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return tensor.qscheme(), tensor.q_scale(), tensor.q_zero_point()
    axis, scales, zeros = tensor.q_per_channel_axis(), tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return tensor.qscheme(), axis, scales, zeros


def _context(tensor: Any) -> Any:
    """What a tensor of a subclass has besides tensors."""
    return tensor.__tensor_flatten__()[1] if torch_private.is_traceable_wrapper_subclass(tensor) else vars(tensor)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.size() == other.size() and torch.equal(one.cpu(), other.cpu())
    return bool(one == other)


def clashes(targets: Mapping[int, Target], requests: Sequence[ReadItem]) -> tuple[set[int], set[int]]:
    """The targets that cannot be filled in any order, since they share memory, and those that later ones overwrite
    altogether, as of tied weights; by the numbers of their requests.
    """
    apart = {number for number, target in targets.items() if target.extent is None}
    tensors: dict[Any, list[int]] = {}
    for number in sorted(targets.keys() - apart):
        index = requests[number].dest_index
        tensors.setdefault((index.fqn, index.offset), []).append(number)
    found = []
    for numbers in tensors.values():
        begins, ends = zip(*(targets[number].extent or (0, 0) for number in numbers), strict=True)
        found.append((min(begins), max(ends), numbers))
        spans = [(tuple(requests[number].dest_offsets), tuple(requests[number].lengths)) for number in numbers]
        shape = [max(at[axis] + size[axis] for at, size in spans) for axis in range(len(spans[0][0]))]
        if len(spans) > 1 and overlap(tuple(shape), spans):
            apart.update(numbers)
    hidden, together, reach = set[int](), list[list[int]](), 0
    for begin, end, numbers in sorted(found):
        together = [*together, numbers] if begin < reach else [numbers]  # they reach into each other's memory
        reach = max(reach, end)
        if len(together) > 1:
            same = len({_memory(each, targets) for each in together}) == 1
            (hidden if same else apart).update(number for each in together for number in each)
            hidden.difference_update(max(together))
    return apart, hidden - apart


def _memory(numbers: list[int], targets: Mapping[int, Target]) -> tuple[Any, ...]:
    tensors = [targets[number].tensor for number in numbers]
    return tuple(sorted((each.data_ptr(), tuple(each.shape), each.stride(), str(each.dtype)) for each in tensors))


_Part = tuple[str, torch.Size | None]  # a tensor's name, and where in it the part begins that is loaded


def check_filled(plan: LoadPlan, planner: LoadPlanner, items: Mapping[str, Any]) -> None:
    """Check that what `plan` reads fills its targets, each element once.

    A planner that has DCP's `lookup_tensor` is asked how large a target is. One that has a `state_dict`, as DCP's own
    have, is asked for targets of which nothing is read, too. If it has neither, the metadata has to cover the whole
    tensor. Raises MetadataError if a part would stay as it was.
    """
    read: dict[_Part, list[Span]] = {}
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


def check_placed(plan: LoadPlan, planner: LoadPlanner, items: Mapping[str, Any]) -> None:
    """Check that this rank has of each DTensor of the planner's what DCP reads for it. Raises as `check_box`."""
    state = getattr(planner, "state_dict", None)
    if not isinstance(state, Mapping) or not any(isinstance(value, DTensor) for value in state.values()):
        return
    read: Counter[str] = Counter()
    for request in plan.items:
        read[request.dest_index.fqn] += request.lengths.numel()
    for name, value in state.items():
        if isinstance(value, DTensor) and (name in read or name in items):
            check_box(name, value, read[name])


def check_box(name: str, value: DTensor, count: int) -> None:
    """Raise UnsupportedError unless a DTensor has here a single box of the whole tensor, of `count` elements.

    DCP takes the first index of a rank and how many it has. A `_StridedShard`, which `DTensor.view` makes of a shard of
    an inner dimension, may have others between them. How large the local tensor is, ``DTensor.from_local`` is told.
    """
    if value.device_mesh.get_coordinate() is None:  # it lies on other ranks
        return
    strange = not all(type(each) in (Shard, Replicate) for each in value.placements)
    for indices in (torch_private.indices_here(value, dim) for dim in range(value.dim())) if strange else ():
        if len(indices) and int(indices[-1]) - int(indices[0]) >= len(indices):
            raise UnsupportedError(
                f"with the placements {value.placements} this rank has pieces of the tensor that are apart, where DCP "
                "takes them for one: some elements would be loaded twice, and others not at all. Load before .view, or "
                "into a DTensor of Shard and Replicate placements (redistribute)",
                item=name,
            )
    local: Any = value.to_local()  # of several shards its own size may be that of columns
    shards = local.local_shards() if hasattr(local, "local_shards") else [local]
    if (here := sum(shard.numel() for shard in shards)) != count:
        raise UnsupportedError(
            f"the DTensor has {here:,} elements on this rank, where its shape and placements say "
            f"{count:,}, which is what DCP reads: it was made with another shape (from_local), and would stay partly "
            "as it was",
            item=name,
        )


def chunks_here(tensor: Any) -> list[ChunkStorageMetadata]:
    """What this rank has of a tensor, of a large shard of a DTensor by arithmetic; ValueError for another object."""
    box = box_of(tensor) if isinstance(tensor, DTensor) else None
    return torch_private.create_chunk_list(tensor) if box is None else [ChunkStorageMetadata(*box)]


def box_of(tensor: DTensor) -> tuple[torch.Size, torch.Size] | None:
    """Offset and shape of what this rank has of a DTensor; None of little, and where only torch can tell."""
    local, at = tensor.to_local(), tensor.device_mesh.get_coordinate()
    plain = all(type(each) in (Shard, Replicate) for each in tensor.placements)
    if at is None or not plain or hasattr(local, "__create_chunk_list__") or max(local.shape, default=0) < _MANY:
        return None
    offset, shape = [0] * tensor.dim(), list(tensor.shape)
    for placement, count, number in zip(tensor.placements, tensor.device_mesh.shape, at, strict=True):
        if isinstance(placement, Shard):
            whole, each = shape[placement.dim], -(-shape[placement.dim] // count)  # as torch.chunk cuts it
            begin = min(whole, each * number)
            shape[placement.dim] = min(each, whole - begin)
            offset[placement.dim] += begin
    return None if 0 in shape else (torch.Size(offset), torch.Size(shape))


def whole_size(target: torch.Tensor) -> tuple[int, ...]:
    """The size of the tensor that a target is, or is a part of; from torch 2.14.1 on plain tensors may say that."""
    part = getattr(torch.distributed.checkpoint, "CheckpointableTensor", None)
    return tuple(target.global_shape if part is not None and isinstance(target, part) else target.size())


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
    """A warning about `empty_targets`, or a state that is empty itself; empty if there is nothing to warn of."""
    if not isinstance(state, Mapping) or not (empty := empty_targets(state, names) if state else [*islice(names, 1)]):
        return ""
    shown = ", ".join(map(repr, empty[:3])) + (" and elsewhere" if len(empty) > 3 else "")
    shown = shown if state else "its top, as DCP finds a TensorClass, whose to_dict() it loads"
    return (
        f"the state to load is empty at {shown}, where the checkpoint has items; they are not loaded. An optimizer "
        "has no state before its first step: torch.distributed.checkpoint.state_dict.get_state_dict makes one. To load "
        "without them, leave the key out"
    )


def empty_targets(state: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The keys of a state, joined by dots, with an empty dictionary over items, as of an optimizer without a step."""
    empty = dict.fromkeys(_empty_in(state, ""), False)
    if empty:
        for name in names:
            at = name.find(".")
            while at >= 0:
                if name[:at] in empty:
                    empty[name[:at]] = True
                at = name.find(".", at + 1)
    return [name for name, has_items in empty.items() if has_items]


def _empty_in(state: Any, prefix: str) -> Iterator[str]:
    for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
        if isinstance(value, list) or (isinstance(value, Mapping) and [*value.keys()]):
            yield from _empty_in(value, f"{prefix}{key}.")
        elif isinstance(value, Mapping):
            yield f"{prefix}{key}"


def _wanted(planner: LoadPlanner, items: Mapping[str, Any]) -> dict[_Part, torch.Size]:
    """The parts of tensors that a planner's state dict has on this rank, as DCP's planner sees them."""
    state = getattr(planner, "state_dict", None)
    sizes: dict[_Part, torch.Size] = {}
    for name, value in state.items() if isinstance(state, Mapping) else ():
        if not isinstance(value, torch.Tensor) or not isinstance(items.get(name), TensorItem):
            continue
        if isinstance(value, DTensor) and value.device_mesh.get_coordinate() is None:
            continue  # it lies on other ranks
        for chunk in chunks_here(value):
            sizes[name, chunk.offsets] = chunk.sizes
    return sizes


def _check(name: str, size: Sequence[int], parts: list[Span]) -> None:
    try:
        check_tiles(size, parts)
    except MetadataError as error:
        raise MetadataError(
            "this rank's own metadata has only a part of the item: the shards of other ranks are missing. Load with "
            "the ranks and the sharding of the save, or save with collectives, which writes metadata of all ranks",
            item=name,
        ) from error
