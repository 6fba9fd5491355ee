"""What a save in the background stores: copies of tensors, and what ``torch.save`` makes of all else at the call; and
the process that torch starts for that: what ends it, and what must not.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.tensor import DTensor

from streamxf import torch_private
from streamxf.checkpoint.sources import check_storable
from streamxf.dcp.base import ranks_here
from streamxf.dcp.plans import SMALL, flattened_entries, is_flattened
from streamxf.dcp.targets import chunks_here, whole_size
from streamxf.errors import AbortedError, UnsupportedError, located, sendable
from streamxf.format.values import pack_value
from streamxf.torchsave.writing import Saved, alike_pickle, saved_plain

_PLAIN = torch.Tensor, torch.nn.Parameter
_CONSTANT = bool, int, float, complex, str, bytes, type(None)


def copied(value: Any, pin: bool, name: str = "") -> Any:
    """A copy of a state, of plain tensors in memory that is pinned if `pin`; of several ranks errors are in it, too."""
    if isinstance(value, Mapping) or (isinstance(value, list) and is_flattened(value)):
        made = {key: copied(each, pin, f"{name}.{key}".removeprefix(".")) for key, each in flattened_entries(value)}
        return made if isinstance(value, Mapping) else [*made.values()]
    try:
        with located(item=name, doing="copying"):
            if isinstance(value, torch.Tensor):
                return _copy_of(value, pin, name)
            return value if type(value) in _CONSTANT else StagedObject(name).of(value)
    except Exception as error:
        if ranks_here() == 1:
            raise
        return StagedObject(name, sendable(error))


def _copy_of(value: Any, pin: bool, name: str) -> Any:
    local: Any = value.to_local().detach() if (is_sharded := isinstance(value, DTensor)) else value
    local = local.trigger_wait() if hasattr(local, "trigger_wait") else local  # what a collective is still to fill
    for part in local.local_shards() if hasattr(local, "local_shards") else [local]:
        check_storable((part if isinstance(part, torch.Tensor) else part.tensor).detach())
    if isinstance(value, torch_private.ShardedTensor):
        return BlockingAsyncStager(pin).stage({name: value})[name]
    if local.is_quantized or type(local) not in _PLAIN or _says_more(local):
        staged = StagedObject(name).of(local)
        return torch_private.with_local(value, staged.made()) if is_sharded else staged
    made = torch.empty(local.size(), dtype=local.dtype, device="cpu")
    made = (made.pin_memory() if pin and made.numel() else made).copy_(local.detach())
    return torch_private.with_local(value, made) if is_sharded else made.requires_grad_(value.requires_grad)


def _says_more(local: torch.Tensor) -> bool:
    """Whether a plain tensor says by attributes more than a copy of it does."""
    return bool(vars(local)) and any(of(local) != of(local.detach()) for of in (whole_size, chunks_here))


def check_sent(state: Any, name: str = "") -> None:
    """Raise UnsupportedError for a tensor whose attributes, which pickling drops, say of which one it is a part."""
    if isinstance(state, Mapping | list | tuple):
        for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
            check_sent(value, f"{name}.{key}".removeprefix("."))
    elif type(state) in _PLAIN and _says_more(state):
        raise UnsupportedError(
            f"{', '.join(vars(state))} of this tensor would be lost on the way to the process that saves, which would "
            "store its elements as a whole tensor: do without async_stager=, or save in the foreground (dcp.save)",
            item=name,
        )


class StagedObject(Saved):
    """An object as `torch.save` writes it at the call, or the error of that, which the save of every rank raises."""

    def __init__(self, name: str, error: BaseException | None = None) -> None:
        self._name, self._error = name, error

    def of(self, value: Any) -> StagedObject:
        if (data := saved_plain(value)) is None:
            torch.save(value, sink := io.BytesIO())
            data = sink.getvalue()
        with suppress(Exception):  # for a comparison of ranks, which does without
            self.alike = alike_pickle(value)[: SMALL + 1] if ranks_here() > 1 else b""
        is_planned = isinstance(value, torch.Tensor) or hasattr(value, "__create_write_items__")
        self._data, self.saved = data, None if is_planned else data
        self.packed = pack_value(value)
        return self

    def made(self) -> Any:
        if self._error is not None:
            raise self._error
        is_copy = self.saved is None or torch_private.in_the_process_that_saves()
        return torch.load(io.BytesIO(self._data), "cpu" if is_copy else None, weights_only=False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if torch_private.state_on_the_way() is None:
            text = "one of streamxf's writers staged this for itself: pass it as storage_writer=, without async_stager="
            raise UnsupportedError(text, item=self._name)
        return super().__reduce_ex__(protocol)


NICE = 10
_PAUSE = 0.2  # seconds between two looks at the parent


def settle_in(deaf: Collection[int]) -> None:
    """In the process that torch started for saves, lower the priority of this thread, and so of the workers that it
    will start: training goes on beside them, perhaps on the same CPUs. Not in a thread of training's own process, where
    one that waits for a CPU could hold the interpreter's lock. Be `deaf` to signals that come to every process of a
    job, of which training makes a last save, and end with the process that started this one.
    """
    for value in vars(sys.modules["__main__"]).values():
        if isinstance(value, type) and value.__module__ == "__mp_main__":
            value.__module__ = "__main__"  # as pickles are to name it
    os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    for number in deaf:
        signal.signal(number, signal.SIG_IGN)
    if all(thread.name != "streamxf-parent" for thread in threading.enumerate()):
        threading.Thread(target=_end_with_parent, name="streamxf-parent", daemon=True).start()


def check_parent() -> None:
    """Raise AbortedError in a process that saves for one that is gone: another job may be at the same folder by now."""
    if _is_orphan():
        raise AbortedError("the process that this one saves for has ended; the save was not published")


def _is_orphan() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and os.getppid() != parent.pid


def _end_with_parent() -> None:
    """Linux can signal instead, but once the thread ends that started the process; torch's ends with the first save."""
    while not _is_orphan():
        time.sleep(_PAUSE)
    os._exit(1)
