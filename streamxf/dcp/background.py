"""Saves by `dcp.async_save`: how failures are reported, and which objects torch's staging leaves uncopied.

torch gives the future of such a save to the caller of `async_save` alone. A future nobody awaits hides its error, and a
full disk or a killed process would go unnoticed for as long as training runs. A writer finds that future on the stack
of the thread in which torch's executor runs the save, and logs a failure.
"""

from __future__ import annotations

import copy
import io
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any
from weakref import ref

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.tensor import DTensor

from streamxf.errors import escaped
from streamxf.torch_private import counted_changes, future_of_the_save_in_this_thread, in_the_process_that_saves
from streamxf.wording import some

NICE = 10
_NAMES = 3  # in a warning
_log = logging.getLogger(__name__)


class Background:
    """The last save in the background that one writer is used for."""

    def __init__(self) -> None:
        self._future: Callable[[], Future[Any] | None] = _none

    def note(self) -> None:
        """If this thread makes a save in the background, have its failure logged."""
        future = future_of_the_save_in_this_thread()
        if future is not None and future is not self._future():
            self._future = ref(future)  # the error of a save that failed leads to all that was staged
            future.add_done_callback(_log_failure)

    def join(self) -> None:
        """Wait until an earlier save is over. Two at the same time would mix the writer's state of each, and torch may
        stage the second into the memory of the first.
        """
        earlier = self._future()
        if earlier is not None and earlier is not future_of_the_save_in_this_thread():
            wait([earlier])
        self.note()


def give_way() -> None:
    """In the process that torch started for saves, lower the priority of this thread, and so of the workers that it
    will start: training goes on beside them, perhaps on the same CPUs. Not in a thread of training's own process, where
    one that waits for a CPU could hold the interpreter's lock.
    """
    if in_the_process_that_saves():
        os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def _none() -> None:
    return None


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
    """The result of torch's staging, with copies of objects that it had not copied: file objects in memory and DTensors
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
    """How often each of the plan's tensors has been changed in place so far, as torch counts it."""
    state = getattr(planner, "state_dict", None)
    if not isinstance(state, Mapping):  # a planner that is not derived from torch's default
        return {}
    tensors = {name: state.get(name) for name in {item.index.fqn for item in plan.items}}
    return {name: counted_changes(tensor) for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}


def changed_text(before: dict[str, int], after: dict[str, int]) -> str:
    """A warning that names the tensors which changed in between; "" if there are none."""
    changed = sorted(name for name, version in before.items() if after.get(name) != version)
    if not changed:
        return ""
    return (
        f"tensors changed while they were saved: {some(changed, most=_NAMES)}. This checkpoint mixes "
        "old and new values. Do not train during the save, or save a copy: dcp.async_save makes one, unless it is "
        "given an async_stager that does not"
    )
