"""Every private name of torch that streamxf reaches, and what it relies on (tested by tests/dcp/test_torch_parts.py).

What is private has a leading underscore somewhere in its path. Parts are looked up when they are first imported from
here, so that importing this imports no torch, and reading an object imports no DCP. Not here are names that only stand
in pickles; those are looked up nowhere.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from streamxf.errors import UnsupportedError
from streamxf.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor, UntypedStorage, dtype
    from torch.distributed._shard.sharded_tensor.api import ShardedTensor
    from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension, ZStandard
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
    from torch.distributed.checkpoint.filesystem import _StorageReaderTransforms as StorageReaderTransforms
    from torch.distributed.checkpoint.filesystem import _StorageWriterTransforms as StorageWriterTransforms

_DCP = "torch.distributed.checkpoint"
_SAVER, _PROCESS = f"{_DCP}.state_dict_saver", f"{_DCP}._async_process_executor"
_PARTS = {
    # Stream extensions: what codecs are to torch. A registry makes them of descriptors by `from_descriptor_list`.
    # Codecs are registered with the abstract class, which torch's isinstance checks then accept.
    "StreamTransformExtension": f"{_DCP}._extension:StreamTransformExtension",
    "ExtensionRegistry": f"{_DCP}._extension:ExtensionRegistry",
    "ZStandard": f"{_DCP}._extension:ZStandard",
    # The `transforms` of torch's writers and readers, asked for each item's stream. `attach` puts its own there.
    "StorageWriterTransforms": f"{_DCP}.filesystem:_StorageWriterTransforms",
    "StorageReaderTransforms": f"{_DCP}.filesystem:_StorageReaderTransforms",
    # Where an item is: file, offset, length, descriptors. Attributes added to it reach the rank that publishes.
    "StorageInfo": f"{_DCP}.filesystem:_StorageInfo",
    # The `storage_data` of a rank's plan, from a coordinator whose writer is torch's own.
    "StoragePrefix": f"{_DCP}.filesystem:_StoragePrefix",
    # Distributes items over `thread_count` files by their sizes.
    "split_by_size_and_type": f"{_DCP}.filesystem:_split_by_size_and_type",
    # torch's writer and reader of URLs; torch 2.15 moved them to a public module.
    "FsspecWriter": f"{_DCP}.fsspec_filesystem:FsspecWriter",
    "FsspecReader": f"{_DCP}.fsspec_filesystem:FsspecReader",
    # This rank's parts of a plain tensor, DTensor or ShardedTensor, by offset and shape; ValueError for others.
    "create_chunk_list": f"{_DCP}.planner_helpers:_create_chunk_list",
    # What makes a writer or reader of `checkpoint_id=`: (storage, checkpoint_id, reader).
    "storage_setup": f"{_DCP}._storage_utils:_storage_setup",
    # What saves in the background: `execute_save`, with `checkpoint_id=` and `storage_writer=`.
    "ThreadBasedAsyncCheckpointExecutor": f"{_DCP}._async_thread_executor:_ThreadBasedAsyncCheckpointExecutor",
    "ProcessBasedAsyncCheckpointExecutor": f"{_DCP}._async_process_executor:_ProcessBasedAsyncCheckpointExecutor",
    # The class under all of torch's writers. Each save begins with its `set_up_storage_writer`.
    "AnyFileSystemWriter": f"{_DCP}.filesystem:_FileSystemWriter",
    # The store through which the ranks of the job found each other; None for backends that need none.
    "default_store": "torch.distributed.distributed_c10d:_get_default_store",
    # Makes a group of (size, rank in it, ranks, backend, store, name) and `timeout=`, with its store. Ranks that are
    # not in it need not call it, and what they call does not change the name.
    "new_process_group_helper": "torch.distributed.distributed_c10d:_new_process_group_helper",
    # What torch knows of groups: `default_pg`; of each, in `pg_group_ranks`, the rank in it of each rank of the job.
    "world": "torch.distributed.distributed_c10d:_world",
    # Its `_derived_version` is None where the process flattens states as this torch does, and not as one before 2.4.
    "flattening": f"{_DCP}:_version",
    # A view of a part of a tensor.
    "narrow_tensor_by_index": "torch.distributed._shard._utils:narrow_tensor_by_index",
    # The class of tensors that `local_shards()` has the parts of.
    "ShardedTensor": "torch.distributed._shard.sharded_tensor.api:ShardedTensor",
    # Whether a tensor is of a subclass that `__tensor_flatten__` takes apart.
    "is_traceable_wrapper_subclass": "torch.utils._python_dispatch:is_traceable_wrapper_subclass",
    # Whether writing to a tensor's memory would be seen through another one that shares it only until then.
    "is_cow_tensor": "torch._C:_is_cow_tensor",
    # Gives a function that takes a storage and the location it was saved from, and moves it to `map_location`.
    "get_restore_location": "torch.serialization:_get_restore_location",
    # Its `map_location`, of this thread, is what functions that rebuild tensors ask for.
    "serialization_tls": "torch.serialization:_serialization_tls",
    # Sparse tensors that were unpickled are checked all at once, at the end.
    "validate_loaded_sparse_tensors": "torch._utils:_validate_loaded_sparse_tensors",
}
_EARLIER = {f"{_DCP}.fsspec_filesystem": f"{_DCP}._fsspec_filesystem"}


def part(name: str) -> Any:
    """A part by its name here, as torch has it now. Raises ImportError or AttributeError if torch has it no longer."""
    home, _, attribute = _PARTS[name].partition(":")
    try:
        module = import_module(home)
    except ModuleNotFoundError:
        if home not in _EARLIER:
            raise
        module = import_module(_EARLIER[home])
    return getattr(module, attribute)


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = globals()[name] = part(name)
    except AttributeError:
        raise UnsupportedError(
            f"torch {torch.__version__} has no {_PARTS[name].replace(':', '.')}, so this streamxf cannot work with it; "
            "docs/compatibility.md lists the versions that it was tried with"
        ) from None
    return found


def untyped_storage(storage: Any) -> UntypedStorage:
    """What is below a ``TypedStorage``, without the warning of its own method."""
    return storage._untyped_storage  # type: ignore[no-any-return]


def typed_storage(storage: UntypedStorage, dtype: dtype) -> Any:
    """What torch's functions that rebuild tensors take: a storage with its dtype, made without a warning."""
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


# DCP gives a writer neither planner, nor the state as it is nested, nor the future of a save in the background, and an
# extension nothing of those beside it. These stand in variables of the functions that call, and nowhere else.


def extensions_of_the_asking_writer(frames: int) -> Any:
    """All extensions of the torch writer that asks one for its stream, some frames above; None if something else asks.

    That is `self.extensions` in ``_StorageWriterTransforms.transform_save_stream``.
    """
    return getattr(sys._getframe(1 + frames).f_locals.get("self"), "extensions", None)


def _variables_in(home: str, *functions: str) -> Mapping[str, Any]:
    """The variables of the nearest of these functions of a module that this thread is in; none outside of them."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_qualname.endswith(functions) and frame.f_globals.get("__name__") == home:
            return frame.f_locals  # type: ignore[no-any-return]
        frame = frame.f_back
    return {}


def future_of_the_save_in_this_thread() -> Future[Any] | None:
    """The future of the save in the background that this thread makes, or None.

    torch's executors call one of DCP's functions in a `ThreadPoolExecutor`, which has the future in a frame below it. A
    save that is only a part of what a pool was given, such as a whole training loop, is none.
    """
    item: Any = _variables_in("concurrent.futures.thread", "_WorkItem.run").get("self")
    called = getattr(item, "fn", None) or getattr(item, "task", [None])[0]  # the latter from Python 3.14 on
    return item.future if str(getattr(called, "__module__", "")).startswith(f"{_DCP}.") else None


def future_of_async_save() -> Future[Any] | None:
    """The future that `async_save`, by which this thread is called, is about to return, or None."""
    found = _variables_in(_SAVER, "async_save").values()  # of a state that cannot be sent no thread asks the writer
    return next((value for value in found if isinstance(value, Future)), None)


def path_of_async_save(stager: Any) -> Any:
    """The `checkpoint_id` of the `async_save` that was given no writer, and made this stager; None in any other."""
    found = _variables_in(_SAVER, "async_save")
    is_own = found.get("owned_async_stager") is stager and found.get("storage_writer") is None
    return found.get("checkpoint_id") if is_own else None


def state_of_the_save() -> Any:
    """The state dict, nested as it was given, of the `save` whose local step this thread makes; None in any other."""
    return _variables_in(_SAVER, "local_step").get("state_dict")


def planner_of_the_save() -> Any:
    """The planner of the `save` whose local or global step this thread makes; None in any other."""
    return _variables_in(_SAVER, "local_step", "global_step").get("planner")


_saves: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()  # by store what was drawn there, and how often


def ranks_of_the_save(folder: str) -> tuple[str | None, int | None]:
    """Of the `save` whose local step this thread makes, 32 hexadecimal digits that all ranks have alike who save as
    often to a `folder` of that name, and how many they are; None without a process group. Rank 0 draws, or whoever is
    there first: none waits for another, which may be gone. If the job's store is gone with one, there are no digits.
    """
    wrapper: Any = _variables_in(_SAVER, "local_step").get("distW")
    if not getattr(wrapper, "use_dist", False):
        return None, None
    count, store = torch.distributed.get_world_size(wrapper.group), __getattr__("default_store")()
    if store is None:
        return None, count
    known, group = _saves.setdefault(store, {}), (wrapper.group or __getattr__("world").default_pg).group_name
    known[group, folder] = known.get((group, folder), 0) + 1
    with suppress(RuntimeError):
        known[group] = known.get(group) or store.compare_set(f"streamxf saves of {group}", "", os.urandom(16).hex())
        text = known[group] + f" {known[group, folder]} {folder}".encode()
        return hashlib.sha256(text).hexdigest()[:32], count
    return None, count


def state_on_the_way() -> Any:
    """The state that torch sends, with the writer that is being pickled, to its process for saves; else None."""
    queued = _variables_in("multiprocessing.queues", "Queue._feed").get("obj")  # by torch 2.7, in a thread of its own
    sent = _variables_in(_PROCESS, "_AsyncCheckpointProcess.save") or getattr(queued, "__dict__", {})
    return sent.get("staged_state_dict")


def in_the_process_that_saves() -> bool:
    """Whether torch started this process for saves in the background."""
    import multiprocessing

    return getattr(getattr(multiprocessing.current_process(), "_target", None), "__module__", "") == _PROCESS


def indices_here(tensor: Any, dim: int) -> Tensor:
    """Which indices of a dimension this rank has of a DTensor, as its placements split it one after the other."""
    shape = [tensor.size(dim) if axis == dim else 1 for axis in range(tensor.dim())]
    indices, mesh = torch.arange(tensor.size(dim), device="cpu").view(shape), tensor.device_mesh
    for placement, count, at in zip(tensor.placements, mesh.shape, mesh.get_coordinate() or (), strict=True):
        if getattr(placement, "dim", None) == dim:
            indices = placement._split_tensor(indices, count, with_padding=False)[0][at]
    return indices.flatten()


def with_local(tensor: Any, local: Tensor) -> Any:
    """A DTensor as another one is, but for what this rank has of it, which may be on another device."""
    return type(tensor)(local, tensor._spec, requires_grad=tensor.requires_grad)


def gloo_group_of(ranks: Sequence[int], own: int, name: str, timeout: timedelta) -> Any | None:
    """A gloo group that these ranks alone make, of which this is `own`; None where the job has no store. ``new_group``
    would wait for the others, or, with ``use_local_synchronization``, name the group by how many this rank knows: ranks
    that know different numbers would wait for each other until the time-out, and a group that takes the name of one
    that is gone finds the addresses of that in the store.
    """
    if (store := __getattr__("default_store")()) is None:
        return None
    name += f" {store.add(f'{name} of {own}', 1)}"
    how = len(ranks), ranks.index(own), ranks, torch.distributed.Backend("gloo"), store, name
    group, _ = __getattr__("new_process_group_helper")(*how, timeout=timeout)
    __getattr__("world").pg_group_ranks[group] = {each: number for number, each in enumerate(ranks)}
    return group


def process_that_saves() -> Any | None:
    """The `multiprocessing.Process` that torch has started here for saves in the background; None before the first."""
    return getattr(getattr(sys.modules.get(_PROCESS), "_CHECKPOINT_PROCESS", None), "_save_process", None)


def counted_changes(tensor: Tensor) -> int:
    """How often a tensor was changed in place, as torch counts it; of a DTensor or a ShardedTensor, what this rank has.

    It does not count for inference tensors, nor what fused optimizers do, nor `torch._foreach_*` on DTensors.
    """
    if type(tensor) is torch.Tensor:
        return 0 if tensor.is_inference() else tensor._version
    with torch._C.DisableTorchFunctionSubclass():  # classes of tensors may refuse what they do not know
        if isinstance(tensor, __getattr__("ShardedTensor")):
            parts = [shard.tensor for shard in tensor.local_shards()]
        else:
            parts = [tensor, getattr(tensor, "_local_tensor", tensor)]
        return sum(part._version for part in parts if not part.is_inference())
