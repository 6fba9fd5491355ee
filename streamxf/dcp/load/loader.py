"""`Loader`: the items of a load, in parallel, each into the memory where it belongs.

The planner is asked in the calling thread only; workers read and decode blocks. What becomes of a block depends on the
target:

- Where the target is a tensor on the CPU of the stored dtype, in whatever strides, blocks are decoded into its memory,
  or what is wanted of them is copied there.
- Any other target (of another dtype or device, say) is filled by `copy_`, from pieces of a few mebibytes, in the
  calling thread and in the order of the items.
- What only torch can make, a tensor of some subclass, is loaded whole and copied in one go.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from streamxf.checkpoint.elements import INLINE_BYTES, Array, Elements, unsigned
from streamxf.checkpoint.reading import cut
from streamxf.dcp.load.target import Target
from streamxf.engine import Pipeline
from streamxf.errors import MetadataError, StreamxfError, UnsupportedError, escaped
from streamxf.objects.policy import Objects
from streamxf.proportion import Budget
from streamxf.report import Meter

PIECE_BYTES = 4 * 2**20

Job = Callable[[], None]


@dataclass(eq=False)
class _Filling:
    """A target that is being filled, or a piece of one.

    Attributes
    ----------
    file, item : str
        For errors.
    target : Target
        Of the whole item.
    done : callable
        Called in the loader's thread, in the order of items, when all jobs are over.
    left : int
        Jobs that are not over, and one more until all of them are submitted.
    """

    file: str
    item: str
    target: Target
    done: Job
    left: int = 1


class Loader:
    """Loads items for one planner; `budget` pays for objects, for which the caller has no memory yet."""

    def __init__(self, planner: LoadPlanner, meter: Meter, objects: Objects, budget: Budget | None) -> None:
        self.meter = meter
        self._budget = budget
        self._planner = planner
        self._objects = objects
        self._set_object = _setter(planner) if objects.weights_only else None
        self._pipeline: Pipeline[_Filling] = Pipeline()
        self._under_way: deque[_Filling] = deque()

    def load_object(self, request: ReadItem, data: bytes, stored_size: int) -> None:
        """Hand an object to the planner.

        Raises
        ------
        PolicyError, MetadataError
            If the planner must not have it.
        """
        if self._budget is not None:
            self._budget.spend(len(data), "the object")
        self.meter.item(len(data), stored_size)
        if self._set_object is not None:
            self._set_object(request, self._objects.load(data, stored_size))
        else:
            self._planner.load_bytes(request, io.BytesIO(self._objects.renew(data, stored_size)))

    def load_whole(self, request: ReadItem, stream: Any, size: int, stored_size: int, dtype: torch.dtype) -> None:
        """Load a tensor that only torch can make, and copy it into the planner's in one go."""
        tensor = self._objects.load_tensor(stream, size, stored_size)
        if tensor.dtype != dtype:
            raise MetadataError(f"the stored tensor is {tensor.dtype}, the metadata says {dtype}: one was altered")
        self.meter.item(size, stored_size)
        target = self._target(request)
        self._await_overlaps(target)
        wanted = narrow_tensor_by_index(tensor, request.storage_offsets, request.lengths)
        _check_size(target.tensor, wanted.size())
        if wanted.is_quantized != target.tensor.is_quantized:
            raise UnsupportedError(f"the stored tensor is of {wanted.dtype}, the target of {target.tensor.dtype}")
        target.tensor.copy_(wanted)
        self._planner.commit_tensor(request, target.tensor)

    def load_tensor(
        self, request: ReadItem, elements: Elements, dtype: torch.dtype, file: str, stored_size: int
    ) -> None:
        """Load the part of a tensor that a request wants.

        Raises
        ------
        StreamxfError
            If something is not as it was stored. For blocks that workers are decoding, a later call raises that.
        """
        target = self._target(request)
        _check_size(target.tensor, request.lengths)
        self._await_overlaps(target)
        offset, lengths = tuple(request.storage_offsets), tuple(request.lengths)
        tensor = target.tensor
        self.meter.item(tensor.numel() * dtype.itemsize, stored_size)
        array = target.array(dtype)
        item = request.storage_index.fqn
        if array is not None:
            filling = _Filling(file, item, target, lambda: self._planner.commit_tensor(request, tensor))
            self._fill(filling, elements.jobs(offset, lengths, array))
            return
        most = max(1, PIECE_BYTES // dtype.itemsize) if target.plain else tensor.numel()
        for at, size in cut(lengths, most):
            piece = np.empty(size, unsigned(dtype.itemsize))
            into = tensor[tuple(slice(begin, begin + length) for begin, length in zip(at, size, strict=True))]
            filling = _Filling(file, item, target, partial(_copy_into, into, piece, dtype))
            self._fill(filling, elements.jobs(tuple(map(int.__add__, offset, at)), size, piece))
        self._fill(_Filling(file, item, target, lambda: self._planner.commit_tensor(request, tensor)), ())

    def settle(self) -> None:
        """Wait for all items and commit them; raises what is wrong with any."""
        self._count(self._pipeline.results())
        self.meter.blocks(self._pipeline.peak_jobs)

    def cancel(self) -> None:
        """Give all items up. Returns when no worker is at them, so that their file may be closed."""
        self._pipeline.cancel()

    # -- helpers -----------------------------------------------------------------------------------

    def _fill(self, filling: _Filling, jobs: Iterable[tuple[Job, int]]) -> None:
        """Have jobs done; those of a small item here, because handing them over costs more than it brings."""
        self._under_way.append(filling)
        with noted(filling.file, filling.item):
            for job, size in jobs:
                filling.left += 1
                if size <= INLINE_BYTES:
                    job()
                    self._count([filling])
                else:
                    self._count(self._pipeline.submit(_Run(filling, job), size))
        self._count([filling])

    def _count(self, fillings: Iterable[_Filling]) -> None:
        """Take note of jobs that are over, and commit what is done, as far as no earlier item is under way."""
        for filling in fillings:
            filling.left -= 1
            while self._under_way and not self._under_way[0].left:
                first = self._under_way.popleft()
                with noted(first.file, first.item):
                    first.done()

    def _target(self, request: ReadItem) -> Target:
        return Target.of(self._planner.resolve_tensor(request).detach())

    def _await_overlaps(self, target: Target) -> None:
        """Settle first if something under way writes to the memory of `target`: the later item must have its way."""
        others = [filling.target for filling in self._under_way]
        if others and (not target.plain or any(target.overlaps(other) for other in others)):
            self.settle()


def _setter(planner: LoadPlanner) -> Callable[[ReadItem, Any], None] | None:
    """What torch's own planner does with an object once it has unpickled it: to serialize it once more, only to be
    unpickled there, takes half of the time of a load. None for planners that do something else with its bytes.
    """
    if getattr(planner.load_bytes, "__func__", None) is not DefaultLoadPlanner.load_bytes:
        return None
    assert isinstance(planner, DefaultLoadPlanner)
    if not planner.flatten_state_dict:
        return lambda request, made: planner.state_dict.__setitem__(request.dest_index.fqn, made)
    state, paths = planner.original_state_dict, planner.mappings
    return lambda request, made: set_element(state, paths[request.dest_index.fqn], made)


class _Run:
    """A job of a filling, as a worker makes it."""

    __slots__ = ("_filling", "_job")

    def __init__(self, filling: _Filling, job: Job) -> None:
        self._filling = filling
        self._job = job

    def __call__(self) -> _Filling:
        with noted(self._filling.file, self._filling.item):
            self._job()
        return self._filling


class noted:
    """Tells errors their place, once: streamxf's own as they carry it, others as a note."""

    __slots__ = ("_file", "_item")

    def __init__(self, file: str, item: str) -> None:
        self._file = file
        self._item = item

    def __enter__(self) -> None:
        """There is nothing to prepare."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, StreamxfError):
            error.locate(file=self._file, item=self._item)
        elif isinstance(error, Exception) and not getattr(error, "__notes__", None):
            error.add_note(escaped(f"while reading item {self._item} of file {self._file}"))


def _copy_into(target: torch.Tensor, array: Array, dtype: torch.dtype) -> None:
    flat = torch.from_numpy(array.reshape(-1).view(np.uint8))
    target.copy_(flat.view(dtype).view(array.shape))


def _check_size(target: torch.Tensor, wanted: Any) -> None:
    if target.size() != wanted:
        raise MetadataError(f"the stored tensor has the shape {tuple(wanted)}, the target {tuple(target.size())}")
