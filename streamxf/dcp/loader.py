"""`Loader`: the items of a load, in parallel, each into the memory where it belongs.

The planner is asked in the calling thread only; workers read and decode blocks. The target decides on a block's way:

- Where the target is a tensor on the CPU of the stored dtype, in whatever strides, blocks are decoded into its memory,
  or what is wanted of them is copied there.
- Where it is a tensor on a GPU, of the stored dtype and without gaps, blocks are decoded into pinned memory and copied
  from there, while others are decoded.
- Any other target (of another dtype, say) is filled by `copy_`, from pieces of a few blocks, in the
  calling thread and in the order of the items.
- What only torch can make, a tensor of some subclass, is loaded whole and copied in one go.
"""

from __future__ import annotations

import io
import math
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from streamxf.buffers import scratches
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.elements import INLINE_BYTES, Elements
from streamxf.checkpoint.metadata import Metadata
from streamxf.checkpoint.opening import ItemOpener, ItemPart
from streamxf.checkpoint.sources import COPIES, Array, DeviceMemory, Staging
from streamxf.dcp import planner as planners
from streamxf.dcp.base import is_own
from streamxf.dcp.targets import ObjectPlaces, Target, check_dtype, check_kind
from streamxf.engine import MAX_BYTES_IN_FLIGHT, worker_count
from streamxf.errors import MetadataError, ReplacedError, UnsupportedError, is_damage, located
from streamxf.format.items import Place, TensorItem, boxes_of_run, element_size
from streamxf.format.limits import MAX_BLOCK_LOG2
from streamxf.pipeline import Pipeline
from streamxf.progress import Progress, Shares
from streamxf.report import Meter
from streamxf.storage.fetch import FetchedFile
from streamxf.storage.reading import READ_WHOLE, Counted, FileSlice, OpenFiles, StoredFile, Timed
from streamxf.storage.storage import Storage
from streamxf.stream.reader import Blocks, StreamReader, read_all
from streamxf.torch_private import narrow_tensor_by_index
from streamxf.torchsave.objects import dtype_of, refusal

PIECE_BYTES = 4 * 2**20
_AHEAD = 2**20  # bytes of small items that are read at once
_WHOLE = 4 * 2**20  # bytes; a tensor of no more is opened and decoded by one worker, where much is left a larger one
_END = 16 * 1024  # bytes at an item's beginning and end that hold its header and its table, or most of that
_BATCH = 2**20  # bytes of tensors, at least, that a worker is given at once
_TOGETHER = 4  # tensors of more, or blocks of a larger tensor, that a worker is given at once, at most
_TARGETS = 128  # that are asked for at once
_TURNS = 8  # that each worker has at least before it is given more, so that all are busy to the end

_LOADS = [{"load_bytes": planner.load_bytes} for planner in (DefaultLoadPlanner, planners.LoadPlanner)]
_OWN = {name: getattr(DefaultLoadPlanner, name) for name in ("resolve_tensor", "lookup_tensor", "transform_tensor")}

Job = Callable[[], None]
_Entry = tuple[ReadItem | None, ItemPart]
"""What is read: an object, or a part of a chunk; without a request, a chunk that is only checked."""


@dataclass(eq=False, slots=True)
class _Filling:
    """A target that is being filled, or a piece of one.

    - `file`, `item`: for errors.
    - `target`: of the whole item.
    - `done`: called in the loader's thread, in the order of items, when all jobs are over.
    - `left`: jobs of workers that are not over, and one more until all of them are submitted.
    """

    file: str
    item: str
    target: Target
    done: Job
    left: int = 1


_Steps = list[tuple[_Filling, Job]]


class Loader:
    """Loads a plan's items for its planner, file by file, in one thread. `meter` counts them, `opener` opens them."""

    def __init__(
        self, storage: Storage, metadata: Metadata, access: Access, planner: LoadPlanner, progress: Progress | None
    ) -> None:
        self.meter = Meter()
        self._storage = storage
        self._metadata = metadata
        self._planner = planner
        self._progress = progress
        self._objects = access.objects
        self.opener = ItemOpener(metadata, access)
        self._budget = self._objects.budget()  # pays for objects, for which the caller has no memory yet
        self._set_object = _setter(planner)
        self._targets: deque[Target] = deque()  # of the next items that are tensors
        self._asks_ahead = is_own(planner, _OWN)
        self._pipeline: Pipeline[list[_Filling]] = Pipeline()
        self._under_way: deque[_Filling] = deque()
        self._staging = Staging()
        self._together = 1
        self._workers = worker_count()
        self._turns = _TURNS * self._workers
        self._left = 0  # stored bytes of items that no worker has been given
        self._batch: _Steps = []
        self._batch_bytes = 0

    def run(self, requests: Sequence[ReadItem], done: Collection[int] = ()) -> None:
        """Read all items but those at the positions `done`; after an error no worker is at any."""
        found = [
            (request, part_of(self._metadata, request)) for number, request in enumerate(requests) if number not in done
        ]
        shares = None if self._progress is None else Shares(self._progress, _sizes(found))
        self._left = sum(wanted.place.share for _, wanted in found)
        most = MAX_BYTES_IN_FLIGHT // (3 * _BATCH * self._workers)  # with what codecs take meanwhile
        together = max(1, min(_TOGETHER, most, self._left // (_BATCH * self._turns)))
        by_file: dict[str, list[_Entry]] = {}
        for request, wanted in (*found, *self._empty(requests)):
            by_file.setdefault(wanted.place.file, []).append((request, wanted))
        with self._storage.entered() as storage, self.opening(storage):
            for name, entries in by_file.items():
                entries.sort(key=lambda entry: entry[1].place.at)
                with self.opened(storage, name) as file:
                    if self._budget is not None:
                        self._budget.add(file.held)
                    # where this thread reads, each block that waits to be decoded takes memory
                    self._together = together if file.access.parallel else 1
                    self._read_file(file, entries, shares)
        if shares is not None:
            shares.finish()

    def _empty(self, requests: Sequence[ReadItem]) -> Iterator[tuple[None, ItemPart]]:
        """Chunks without elements, of tensors that are read whole, for ranks with keys: DCP never asks for them."""
        if self._metadata.keyless:
            return
        items, state = self._metadata.items, getattr(self._planner, "state_dict", None)
        read: dict[str, int] = dict.fromkeys(state, 0) if isinstance(state, Mapping) else {}
        for request in requests:
            name = request.storage_index.fqn
            read[name] = read.get(name, 0) + request.lengths.numel()
        for name, count in read.items():
            item = items.get(name)
            if isinstance(item, TensorItem) and count >= math.prod(item.shape):
                yield from ((None, ItemPart(item, chunk)) for chunk in item.chunks if 0 in chunk.shape)

    @contextmanager
    def opening(self, storage: Storage) -> Iterator[OpenFiles]:
        """What opens files of the checkpoint by name, those beneath differences, too."""
        files = storage.open_files(partial(self.opened, storage))
        before, self.opener.open_file = self.opener.open_file, files.__getitem__
        try:
            yield files
        finally:
            self._pipeline.cancel()
            files.close()
            self.opener.open_file = before  # which has not this object

    @contextmanager
    def opened(self, storage: Storage, name: str) -> Iterator[StoredFile]:
        """A file of the checkpoint, whose reads are timed; raises MetadataError if it is missing."""
        found = False
        try:
            with located(file=storage.label(name)), storage.open(name) as file:
                found, file.access = True, Timed(file.access, self.meter.io)
                yield file
        except FileNotFoundError as error:  # of a key, say; or another save has removed it from its store by now
            missing = self._metadata.no_file(storage, name)
            if found and not isinstance(missing, ReplacedError):
                raise
            raise missing from error

    def _read_file(self, file: StoredFile, entries: list[_Entry], shares: Shares | None) -> None:
        if file.fetched is not None:
            _announce(file.fetched, entries)
        last: ItemPart | None = None
        access, ahead = file.access, 0
        blocks: Blocks | None = None
        try:
            behind = 0  # values that were read together
            for number, (request, wanted) in enumerate(entries):
                if number < behind:
                    continue
                with located(file=file.name, item=wanted.item.name, doing="reading"):
                    if wanted.place.span is not None and wanted.place.crcs is None:
                        behind = self._read_values(file, entries, number, shares)
                        continue
                    if request is None:
                        self._open(file, wanted)
                        continue
                    new = last is None or last != wanted  # parts of one tensor follow each other
                    self._left -= wanted.place.share if new else 0
                    if new and shares is not None:
                        file.access = Counted(access, shares.begin(request.storage_index).advance)
                    elif new and wanted.place.at >= ahead:
                        ahead = _read_ahead(file, entries, number)
                    target = self._target(entries, number) if wanted.chunk is not None else None
                    if target is not None and blocks is not None and file.access.parallel:
                        memory = self._whole_memory(request, wanted, target)
                        if memory is not None:
                            self._read_whole(file, request, wanted, target, memory)
                            continue
                    if new:
                        blocks, elements = self._open(file, wanted)
                        last = wanted
                    assert blocks is not None
                    if target is not None:
                        self._read_tensor(file.name, request, wanted, target, blocks, elements)
                    else:
                        self.load_object(request, read_all(blocks, self.meter), wanted.place, wanted.place.size)
            self._settle()
        except BaseException:
            self._pipeline.cancel()  # before the file is closed
            with suppress(RuntimeError):  # of a device that fails, which is not the news
                self._staging.wait()
            raise

    def _read_values(self, file: StoredFile, entries: list[_Entry], number: int, shares: Shares | None) -> int:
        """Read values of one container from an entry on; returns the number of the first behind them."""
        (request, wanted), access = entries[number], file.access
        container = wanted.place.container
        if shares is not None and request is not None:  # all of it counts for the first
            file.access = Counted(access, shares.begin(request.storage_index).advance)
        stream, read = self.opener.values(self.opener.source(file, wanted.place), wanted, self.meter), wanted.place.size
        for request, each in entries[number:]:
            if each.place.container != container or request is None:
                break
            number += 1
            with located(item=each.item.name):
                self.load_object(request, bytes(self.opener.value_in(stream, each)), each.place, read)
            self._left, read = self._left - each.place.share, 0  # all that was read counts for the first
        return number

    def _open(self, file: StoredFile, wanted: ItemPart) -> tuple[Blocks, Elements | None]:
        """An item's stream and, of a tensor, its elements; None where only torch can make it."""
        blocks = self.opener.blocks(self.opener.source(file, wanted.place), wanted, self.meter)
        if wanted.chunk is not None:
            with suppress(UnsupportedError):
                return blocks, wanted.elements(blocks)
        return blocks, None

    def _target(self, entries: list[_Entry], number: int) -> Target:
        """The target of an item.

        Where the planner may be asked ahead, it is asked for many at once: torch lets go of the interpreter's lock in
        each of its calls, and while workers run it takes long to come back.
        """
        if not self._targets:
            for request, wanted in entries[number : number + (_TARGETS if self._asks_ahead else 1)]:
                if request is not None and isinstance(wanted.item, TensorItem):
                    with located(item=wanted.item.name):
                        target = Target.of(self._planner.resolve_tensor(request).detach())
                        if self._asks_ahead and target.tensor.device.type not in COPIES:
                            target.memory(dtype_of(wanted.item.dtype), self._staging)
                        self._targets.append(target)
        target = self._targets.popleft()
        if any(target.may_share_memory_with(filling.target) for filling in self._under_way):
            self._settle()  # the later item must have its way
        return target

    def _read_whole(
        self, file: StoredFile, request: ReadItem, wanted: ItemPart, target: Target, memory: Array | DeviceMemory
    ) -> None:
        """Let a worker open and decode a tensor of few blocks.

        With several threads, what such a tensor costs is not its blocks but the turns at the interpreter's lock; so
        this thread does nothing of it that a worker can do, and a worker does all of it at once.
        """
        source = self.opener.source(file, wanted.place)
        self.meter.item(memory.nbytes, wanted.place.size)
        commit = partial(self._commit, request, target.tensor)
        filling = _Filling(file.name, wanted.item.name, target, commit)
        self._under_way.append(filling)
        self._batch.append((filling, partial(self._decode_whole, source, wanted, memory)))
        self._batch_bytes += memory.nbytes
        many = len(self._batch) >= _TOGETHER or self._batch_bytes * self._turns >= self._left
        if self._batch_bytes >= _BATCH and many:
            self._submit_batch()

    def _whole_memory(self, request: ReadItem, wanted: ItemPart, target: Target) -> Array | DeviceMemory | None:
        """The target's memory, if what is wanted is all of a stored tensor of few blocks, as it is stored."""
        item, chunk = wanted.item, wanted.chunk
        if not isinstance(item, TensorItem) or chunk is None or chunk.framed or chunk.shape != tuple(request.lengths):
            return None
        size = math.prod(chunk.shape) * element_size(item.dtype)
        most = max(_WHOLE, min(_TOGETHER * _WHOLE, self._left // self._turns))
        if not INLINE_BYTES < size <= most or target.tensor.size() != request.lengths:
            return None
        return target.memory(dtype_of(item.dtype), self._staging)

    def _decode_whole(self, source: FileSlice, wanted: ItemPart, memory: Array | DeviceMemory) -> None:
        scratch = scratches.take()
        if source.length <= _BATCH * self._together:  # header, table and blocks in one read
            source = source.read_whole(scratch)
        elements = wanted.elements(self.opener.blocks(source, wanted, self.meter))
        for job, _ in elements.jobs((0,) * len(memory.shape), memory.shape, memory):
            job()
        scratches.give(scratch)

    def _submit_batch(self) -> None:
        """Hand over the tensors that wait until there are enough of them."""
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if len(self._pipeline) > 2 * self._workers:  # this thread wakes up for several, not for each
            self._count(self._pipeline.narrow(self._workers))
        self._submit(batch, _BATCH * self._together)

    def _read_tensor(
        self, file: str, request: ReadItem, wanted: ItemPart, target: Target, blocks: Blocks, elements: Elements | None
    ) -> None:
        """Read the part of a tensor that a request wants. Errors in workers are raised by later calls."""
        item, tensor, lengths = wanted.item, target.tensor, tuple(request.lengths)
        assert isinstance(item, TensorItem)
        dtype = dtype_of(item.dtype)
        commit = partial(self._commit, request, tensor)
        if elements is None:
            self._load_whole(request, target, blocks, wanted.place.size, dtype)
            commit()
            return
        check_size(tensor, request.lengths)
        check_dtype(tensor, dtype_of(item.dtype, bare=True))
        self.meter.item(tensor.numel() * dtype.itemsize, stored_bytes(request, wanted))
        offset, filling = tuple(request.storage_offsets), partial(_Filling, file, item.name, target)
        memory = target.memory(dtype, self._staging)
        large = elements.blocks.block_size > 1 << MAX_BLOCK_LOG2
        apart = isinstance(memory, DeviceMemory) and (large or not elements.is_run(offset, lengths))
        if memory is not None and not apart:
            together = max(1, min(self._together, self._together * _BATCH // elements.blocks.block_size))
            self._fill(filling(commit), elements.jobs(offset, lengths, memory, together=together))
            return
        most = PIECE_BYTES // dtype.itemsize if target.plain else tensor.numel()
        for at, piece, jobs in elements.pieces(offset, lengths, most):
            self._fill(filling(partial(_copy_into, tensor, at, piece, dtype)), jobs)
        self._fill(filling(commit), ())

    def _commit(self, request: ReadItem, tensor: torch.Tensor) -> None:
        self._staging.end(tensor.device)
        self._planner.commit_tensor(request, tensor)

    def load_object(self, request: ReadItem, data: bytes, place: Place, read: int | None = None) -> None:
        """Give the planner the object of `data`, for which this rank has `read` so many bytes; None if others have."""
        if self._budget is not None:
            self._budget.add(place.share if read is None else 0)  # else it is in the file's
            self._budget.spend(len(data), "the object")
        self.meter.item(len(data), read or 0)
        if self._set_object is not None and (self._objects.weights_only or place.span is not None):
            self._set_object(request, self._objects.load_at(place, data, budget=self._budget))
        else:
            renewed = self._objects.renew_at(place, data, self._budget)
            try:
                if self._set_object is not None:
                    self._set_object(request, torch.load(io.BytesIO(renewed), weights_only=False))
                else:
                    self._planner.load_bytes(request, io.BytesIO(renewed))
            except Exception as error:  # of the object's own code: that it misses a file, say, is no damage of this one
                raise error if not is_damage(error) else refusal(error, renewed) from error

    def _load_whole(
        self, request: ReadItem, target: Target, blocks: Blocks, stored_size: int, dtype: torch.dtype
    ) -> None:
        """Load a tensor that only torch can make, and copy it into the planner's in one go."""
        tensor = self._objects.load_tensor(StreamReader(blocks, meter=self.meter), blocks.size, stored_size)
        if tensor.dtype != dtype:
            raise MetadataError(f"the stored tensor is {tensor.dtype}, the metadata says {dtype}: one was altered")
        self.meter.item(blocks.size, stored_size)
        wanted = narrow_tensor_by_index(tensor, request.storage_offsets, request.lengths)
        check_size(target.tensor, wanted.size())
        check_kind(target.tensor, wanted)
        target.tensor.copy_(wanted)

    def _fill(self, filling: _Filling, jobs: Iterable[tuple[Job, int]]) -> None:
        """Have jobs done by workers; those of a small item here: handing them over costs more than it brings."""
        self._under_way.append(filling)
        for job, size in jobs:
            if size <= INLINE_BYTES:
                job()
                continue
            filling.left += 1
            self._submit([(filling, job)], size)
        self._count([[filling]])

    def _submit(self, steps: _Steps, size: int) -> None:
        if steps:
            self._count(self._pipeline.submit(partial(_run, steps), size))

    def _count(self, done: Iterable[Iterable[_Filling]]) -> None:
        """Take note of jobs that are over, and commit what is done, as far as no earlier item is under way."""
        for filling in chain.from_iterable(done):
            filling.left -= 1
            while self._under_way and not self._under_way[0].left:
                first = self._under_way.popleft()
                with located(file=first.file, item=first.item, doing="reading"):
                    first.done()

    def _settle(self) -> None:
        """Wait for all items and commit them; raises what is wrong with any."""
        self._submit_batch()
        self._count(self._pipeline.results())
        self._staging.wait()
        self.meter.blocks(self._pipeline.peak_jobs)


def part_of(metadata: Metadata, request: ReadItem) -> ItemPart:
    """What a request wants: an object, or a chunk of a tensor. Raises MetadataError if it is not there."""
    index = request.storage_index
    item = metadata.items.get(index.fqn)
    if item is None:
        raise MetadataError("the metadata does not have the item", item=index.fqn)
    if isinstance(item, TensorItem) == (request.type == LoadItemType.BYTE_IO):
        wanted = "an object" if request.type == LoadItemType.BYTE_IO else "a tensor"
        raise MetadataError(f"the item is wanted as {wanted}, and the metadata says it is not one", item=index.fqn)
    if not isinstance(item, TensorItem):
        return ItemPart(item)
    chunks, offset, hint = item.chunks, tuple(index.offset or ()), index.index or 0  # which is nearly always right
    hints = [chunks[hint]] if hint in range(len(chunks)) else []
    chunk = next((chunk for chunk in chain(hints, chunks) if chunk.offset == offset), None)
    if chunk is None:
        raise MetadataError("the metadata does not describe this part of the tensor", item=index.fqn)
    return ItemPart(item, chunk)


def _setter(planner: LoadPlanner) -> Callable[[ReadItem, Any], None] | None:
    """What torch's own planner does with an object once it has unpickled it, but for keys that are no strings: to
    serialize it again, only to be unpickled there, takes half of a load. None for planners that do something else.
    """
    if not any(is_own(planner, loads) for loads in _LOADS):
        return None
    assert isinstance(planner, DefaultLoadPlanner)
    flat = not planner.flatten_state_dict  # torch's own then puts it where the caller does not look
    objects, paths = ObjectPlaces(planner.original_state_dict), {} if flat else planner.mappings
    return lambda request, made: objects.put(paths.get(name := request.dest_index.fqn, (name,)), made)


def _run(steps: _Steps) -> list[_Filling]:
    """What a worker does for some fillings."""
    for filling, job in steps:
        with located(file=filling.file, item=filling.item, doing="reading"):
            job()
    return [filling for filling, _ in steps]


def _sizes(found: list[tuple[ReadItem, ItemPart]]) -> dict[Hashable, int]:
    """Stored bytes of what is wanted, by item."""
    sizes: dict[Hashable, int] = {}
    for request, wanted in found:
        index = request.storage_index
        sizes[index] = min(wanted.place.share, stored_bytes(request, wanted) + sizes.get(index, 0))
    return sizes


def stored_bytes(request: ReadItem, wanted: ItemPart) -> int:
    """What a request wants of an item, in stored bytes; of a part of a tensor in proportion."""
    size, chunk = wanted.place.share, wanted.chunk
    if chunk is None or chunk.shape == tuple(request.lengths):
        return size
    return size * request.lengths.numel() // max(1, math.prod(chunk.shape))


def _announce(file: FetchedFile, entries: list[_Entry]) -> None:
    """Have fetched what will be read; of an item that is read in part, what says where its parts are."""
    last: ItemPart | None = None
    for request, wanted in entries:
        shared = wanted.place.span is not None
        if wanted == last or (shared and last is not None and wanted.place[:3] == last.place[:3]):
            continue
        last, at, size = wanted, wanted.place.at, wanted.place.size
        if shared or size <= 2 * _END or (request is not None and stored_bytes(request, wanted) == size):
            file.expect((at, at + size), soon=False)
        elif wanted.place.crcs is None:
            file.expect((at, at + _END), (at + size - _END, at + size), soon=False)


def _read_ahead(file: StoredFile, entries: list[_Entry], number: int) -> int:
    """Read small items that follow each other at once; return where what was read ends."""
    start = stop = entries[number][1].place.at
    for index in range(number, len(entries)):
        at, size = (place := entries[index][1].place).at, place.size
        if at > stop or size > READ_WHOLE or at + size > min(start + _AHEAD, file.size):
            break
        stop = max(stop, at + size)
    if stop > start:
        file.read_ahead(start, stop - start)
    return stop


def _copy_into(target: torch.Tensor, at: int, array: Array, dtype: torch.dtype) -> None:
    """Copy a run of a target's elements, row-major, that begins at `at`."""
    flat = torch.from_numpy(array.view(np.uint8)).view(dtype)
    for start, box in boxes_of_run(target.shape, at, at + array.size):
        part = target[tuple(slice(*span) for span in box)]
        part.copy_(flat[start - at :][: part.numel()].view(part.shape))


def check_size(target: torch.Tensor, wanted: Any) -> None:
    if target.size() != wanted:
        raise MetadataError(f"the stored tensor has the shape {tuple(wanted)}, the target {tuple(target.size())}")
