"""Saves by `dcp.async_save`: how their failures are told, and what torch's staging leaves uncopied.

torch gives the future of such a save to the caller of `async_save` alone. If nobody asks it, a full disk or a killed
process goes unnoticed for as long as training runs. A writer finds that future on the stack of the thread in which
torch's executor runs the save, and has a failure logged.
"""

from __future__ import annotations

import copy
import io
import logging
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from concurrent.futures.thread import _WorkItem
from typing import Any
from weakref import ref

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.tensor import DTensor

from streamxf.errors import escaped
from streamxf.torch_private import DisableTorchFunctionSubclass, ShardedTensor

_POOL = _WorkItem.run.__code__
_NAMES = 3  # in a warning
_log = logging.getLogger(__name__)


class Background:
    """The last save in the background that one writer is used for."""

    def __init__(self) -> None:
        self._future: Callable[[], Future[Any] | None] = _none

    def note(self) -> None:
        """If this thread makes a save in the background, have its failure logged."""
        future = _future()
        if future is not None and future is not self._future():
            self._future = ref(future)  # the error of a save that failed leads to all that was staged
            future.add_done_callback(_log_failure)

    def join(self) -> None:
        """Wait until an earlier save is over. Two at the same time would mix what the writer knows of each, and torch
        may stage the second into the memory of the first.
        """
        earlier = self._future()
        if earlier is not None and earlier is not _future():
            wait([earlier])
        self.note()


def _none() -> None:
    return None


def _future() -> Future[Any] | None:
    """The future of the save in the background that this thread makes, or None.

    A save that is only a part of what a pool was given, such as a whole training loop, is none.
    """
    frame: Any = sys._getframe()
    called = ""
    while frame is not None and frame.f_code is not _POOL:
        if frame.f_code.co_filename != _POOL.co_filename:  # Python 3.14 has a frame of its own between
            called = frame.f_globals.get("__name__", "")
        frame = frame.f_back
    if frame is None or not called.startswith("torch.distributed.checkpoint."):
        return None
    return getattr(frame.f_locals.get("self"), "future", None)


def _log_failure(future: Future[Any]) -> None:
    if future.cancelled() or (error := future.exception()) is None:
        return
    failures = {"": error}
    if isinstance(error, CheckpointException):
        failures = {f"rank {rank}: ": failure for rank, (failure, _) in error.failures.items()}
    told = [
        "; ".join([f"{where}{type(failure).__name__}: {failure}", *getattr(failure, "__notes__", ())])
        for where, failure in failures.items()
    ]
    _log.error("a save in the background failed: %s", escaped("; ".join(told)))


# -- what is captured ------------------------------------------------------------------------------


def with_copies(staged: Any) -> Any:
    """What torch's staging returned, with copies of what it had not copied: file objects in memory, and DTensors
    without dimensions.
    """
    match staged:
        case dict():
            return {name: with_copies(value) for name, value in staged.items()}
        case list() | tuple():
            return type(staged)(map(with_copies, staged))
        case DTensor() if not staged.dim():
            return staged.detach().clone()
        case io.BytesIO():
            return copy.deepcopy(staged)
    return staged


def tensor_versions(plan: SavePlan, planner: SavePlanner) -> dict[str, int]:
    """How often each of the plan's tensors has been changed in place so far, as torch counts it.

    It does not count what fused optimizers do, nor `torch._foreach_*` on DTensors.
    """
    state = getattr(planner, "state_dict", None)
    if not isinstance(state, Mapping):  # a planner that is not derived from torch's default
        return {}
    with DisableTorchFunctionSubclass():  # classes of tensors may refuse what they do not know
        return {
            name: sum(part._version for part in _parts_of(state.get(name)) if not part.is_inference())
            for name in {item.index.fqn for item in plan.items}
        }


def _parts_of(value: Any) -> list[torch.Tensor]:
    """The tensors of this process in whose versions changes of this one are counted."""
    match value:
        case ShardedTensor():
            return [shard.tensor for shard in value.local_shards()]
        case DTensor():
            return [value, value._local_tensor]
        case torch.Tensor():
            return [value]
    return []


def changed_text(before: dict[str, int], after: dict[str, int]) -> str:
    """A warning that names the tensors which changed in between; "" if there are none."""
    changed = sorted(name for name, version in before.items() if after.get(name) != version)
    if not changed:
        return ""
    more = f" and {len(changed) - _NAMES:,} more" if len(changed) > _NAMES else ""
    return (
        f"tensors changed while they were saved: {escaped(', '.join(changed[:_NAMES]))}{more}. This checkpoint mixes "
        "old and new values. Do not train during the save, or save a copy: dcp.async_save makes one, unless it is "
        "given an async_stager that does not"
    )
