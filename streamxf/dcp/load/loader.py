"""`Loader`: the items of a load, in parallel, each into the memory where it belongs.

The planner is asked in the calling thread only; workers read and decode blocks. What becomes of a block depends on the
target:

- Where all of it is wanted, and the target has the same elements in the same order, it is decoded straight into the
  target's memory.
- Otherwise it is decoded into reused memory, and what is wanted of it is copied: byte for byte if the order is the
  same, else in the calling thread by `copy_`, which casts and knows strides and devices.
- A stream that is framed in another way than `framing.frame_of` says, and a target that has to be filled in one go, get
  a whole copy by torch's unpickler and a single `copy_`.

A tensor that is wanted whole is expected to be framed as streamxf's writer frames it, and the frame is compared while
the other blocks are on their way already. If it is another one, the tensor is loaded once more in the last way, which
writes the same memory. Nothing is committed before.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from streamxf.buffers import flat_view
from streamxf.dcp.load.fill import Buffers, Fill, Step
from streamxf.dcp.load.stored import Framing, Geometry, StoredTensor
from streamxf.dcp.load.target import Target
from streamxf.dcp.objects.policy import Objects
from streamxf.dcp.tensors.boxes import Wanted, contiguous_strides
from streamxf.dcp.tensors.payload import is_plain
from streamxf.engine import Pipeline
from streamxf.errors import MetadataError, StreamxfError, UnsupportedError, escaped, located
from streamxf.fileio.blocks import BlockReader
from streamxf.fileio.reader import StreamReader
from streamxf.meter import Meter
from streamxf.proportion import Budget

# Bytes; up to here a tensor is decoded in the calling thread, because handing it over costs more than it brings.
INLINE_BYTES = 128 * 1024
_TORCH_GRAIN = 32768  # elements; at::internal::GRAIN_SIZE


class Loader:
    """Loads items for one planner.

    Parameters
    ----------
    planner : LoadPlanner
        Called only in the thread that calls this.
    meter : Meter
        Counts what is done.
    objects : Objects
        How items that are no tensors are loaded.
    budget : Budget, optional
        Pays for these: nobody has made memory for them.

    Attributes
    ----------
    meter : Meter
    """

    def __init__(self, planner: LoadPlanner, meter: Meter, objects: Objects, budget: Budget | None = None) -> None:
        self.meter = meter
        self._planner = planner
        self._objects = objects
        self._budget = budget
        self._pipeline: Pipeline[Step] = Pipeline(_do)
        self._under_way: list[Fill] = []
        self._stored: StoredTensor | None = None
        self._small = bytearray()
        self._buffers = Buffers()

    def load_bytes(self, request: ReadItem, stream: Any, stored_size: int) -> None:
        """Hand an object's bytes to the planner, or what `Objects` makes of them.

        Raises
        ------
        PolicyError, MetadataError
            If the planner must not have it.
        """
        data = stream.read(-1) or b""
        if self._budget is not None:
            self._budget.spend(len(data), "the object")
        self.meter.item(len(data), stored_size)
        self._planner.load_bytes(request, io.BytesIO(self._objects.renew(data, stored_size)))

    def load_stream(self, request: ReadItem, stream: Any, geometry: Geometry, raw_size: int, stored_size: int) -> None:
        """Load a tensor from a file object by torch's unpickler, and copy it into the planner's in one go."""
        tensor = self._load(stream, geometry, raw_size, stored_size)
        self.meter.item(raw_size, stored_size)
        self._put(request, tensor)

    def load_tensor(
        self, request: ReadItem, reader: BlockReader, geometry: Geometry, file: str, *, framed: bool
    ) -> None:
        """Load a tensor from its container.

        Parameters
        ----------
        geometry : Geometry
            What the metadata says of it.
        file : str
            For errors.
        framed : bool
            Whether streamxf's own writer made it, so that it may be expected to have the usual frame.

        Raises
        ------
        StreamxfError
            If something is not as it was stored, or not as the metadata says. For blocks that workers have at hand, a
            later call raises that.
        """
        if reader.count == 1 and reader.size <= INLINE_BYTES:
            self._load_small(request, reader, geometry, framed)
            return
        wanted = Wanted.of(geometry.shape, request.storage_offsets, request.lengths) if framed else None
        if wanted is None:
            self.load_stream(request, self._stream(reader), geometry, reader.size, reader.stored_size)
            return
        tensor = self._planner.resolve_tensor(request).detach()
        if tensor.size() != request.lengths:
            raise _other_shape(request.lengths, tensor)
        fill = self._fill(request, reader, geometry, wanted, tensor, file)
        if fill is None:
            stored = self._load(self._stream(reader), geometry, reader.size, reader.stored_size)
            self.meter.item(reader.size, reader.stored_size)
            self._put(request, stored, tensor)
            return
        self._await_overlaps(fill.target, ordered=fill.memory is None)
        self._under_way.append(fill)
        for index in fill.blocks:
            edge = fill.stored.edges.get(index)
            call: Callable[[], Step]
            if edge is not None:  # it takes its turn, too: the target may be another item's, which is not done yet
                call = partial(fill.run_edge, index, edge)
            else:
                call = partial(fill.run, index, reader.decoder(index))
            self._pipeline.submit(partial(_run, fill, call), reader.size_of(index))

    def has_usual_frame(self, reader: BlockReader, geometry: Geometry) -> bool:
        """Whether a tensor's stream is framed so that any part of it can be loaded from its own blocks alone.

        Raises
        ------
        StreamxfError
            If one of the blocks that hold the frame is not as it was stored.
        """
        framing = self._stored_in(reader).find(geometry)
        return framing is not None and framing.start % geometry.dtype.itemsize == 0

    def collect(self) -> None:
        """Commit the items that are done, as far as no earlier one is under way; raises what is wrong with any."""
        self._pipeline.collect()

    def wait(self) -> None:
        """Wait for the oldest block that is under way; raises what is wrong with any."""
        self._pipeline.wait()

    def settle(self) -> None:
        """Wait for all items and commit them; raises what is wrong with any."""
        self._pipeline.settle()
        self.meter.blocks(self._pipeline.peak_jobs)

    def cancel(self) -> None:
        """Give all items up. Returns when no worker is at them, so that their file may be closed."""
        self._pipeline.cancel()

    # -- ways --------------------------------------------------------------------------------------

    def _load_small(self, request: ReadItem, reader: BlockReader, geometry: Geometry, framed: bool) -> None:
        if not self._small:
            self._small = bytearray(INLINE_BYTES)
        data = memoryview(self._small)[: reader.size]
        reader.decode(0, data)
        self.meter.item(reader.size, reader.stored_size)
        tensor = _framed(geometry, data) if framed else None
        if tensor is None:
            tensor = self._load(io.BytesIO(data), geometry, reader.size, reader.stored_size)
        self._put(request, tensor)

    def _put(self, request: ReadItem, stored: torch.Tensor, target: torch.Tensor | None = None) -> None:
        """Fill the planner's tensor in one go, after what is under way to the same memory."""
        if target is None:
            target = self._planner.resolve_tensor(request).detach()
        if self._under_way:
            self._await_overlaps(Target.of(target))
        self._copy(request, stored, target)

    def _copy(self, request: ReadItem, stored: torch.Tensor, target: torch.Tensor) -> None:
        wanted = narrow_tensor_by_index(stored, request.storage_offsets, request.lengths)
        if target.size() != wanted.size():
            raise _other_shape(wanted.size(), target)
        if wanted.is_quantized != target.is_quantized:
            raise UnsupportedError(f"the stored tensor is of {wanted.dtype}, the target of {target.dtype}")
        _fill_at_once(target, wanted)
        self._planner.commit_tensor(request, target)

    def _fill(
        self,
        request: ReadItem,
        reader: BlockReader,
        geometry: Geometry,
        wanted: Wanted,
        tensor: torch.Tensor,
        file: str,
    ) -> Fill | None:
        """How to load a tensor block by block; None if only torch's unpickler can."""
        target = Target.of(tensor)
        if not target.plain:
            return None
        stored = self._stored_in(reader)
        framing: Framing | None
        order = contiguous_strides(request.lengths)
        if not wanted.whole:
            framing = stored.find(geometry)
            compared = True
        elif target.has_order(geometry.strides):
            framing = stored.framing(geometry)
            compared = False
        else:
            # stored as the target is, or as it is by default
            compared = True
            framing = stored.find(geometry)
            if framing is None and target.is_dense and tensor.dtype == geometry.dtype:
                order = tensor.stride()
                framing = stored.find(replace(geometry, strides=order))
        if framing is None or framing.start % geometry.dtype.itemsize:
            return None
        memory = target.memory(geometry.dtype, order) if wanted.is_run else None
        if memory is None and order != contiguous_strides(request.lengths):
            return None
        return Fill(
            request,
            stored,
            framing,
            compared,
            wanted,
            geometry,
            target,
            memory,
            file,
            self._buffers,
            self._done,
        )

    def _done(self, fill: Fill) -> None:
        self._under_way.remove(fill)
        self.meter.item(*fill.decoded)
        if fill.matches:
            self._planner.commit_tensor(fill.request, fill.target.tensor)
        else:
            reader = fill.stored.reader
            stored = self._load(self._stream(reader), fill.geometry, reader.size, reader.stored_size)
            self._copy(fill.request, stored, fill.target.tensor)

    # -- helpers -----------------------------------------------------------------------------------

    def _stored_in(self, reader: BlockReader) -> StoredTensor:
        if self._stored is None or self._stored.reader is not reader:
            self._stored = StoredTensor(reader)  # parts of one tensor come one after the other, and share its edges
        return self._stored

    def _await_overlaps(self, target: Target, *, ordered: bool = False) -> None:
        """Settle first if something under way writes to the memory of `target`: the later item must have its way.

        `ordered` says that the target is filled by this thread in the items' order, as some of the others are.
        """
        others = [fill.target for fill in self._under_way if not (ordered and fill.memory is None)]
        if others and (not target.plain or any(target.overlaps(other) for other in others)):
            self.settle()

    def _load(self, stream: Any, geometry: Geometry, size: int, stored_size: int) -> torch.Tensor:
        """What torch's unpickler makes of a stream of `size` bytes, if that is the tensor that the metadata says."""
        tensor = self._objects.load_tensor(stream, size, stored_size)
        geometry.check(tensor)
        return tensor

    def _stream(self, reader: BlockReader) -> StreamReader:
        return StreamReader(reader, meter=self.meter)


def _fill_at_once(target: torch.Tensor, source: torch.Tensor) -> None:
    """``target.copy_(source)``, in this thread alone if the tensors are not large.

    For some ten thousand elements torch wakes threads of its own, which costs more than the copy, and far more on a
    machine that is busy.
    """
    memory = None
    grain = source.numel() >= _TORCH_GRAIN and source.nbytes <= INLINE_BYTES
    if grain and is_plain(source) and source.is_contiguous():
        memory = Target.of(target).memory(source.dtype, source.stride())
    if memory is None:
        target.copy_(source)
    else:
        memory[:] = flat_view(source.reshape(-1).view(torch.uint8).numpy().data)


def _other_shape(size: Any, target: torch.Tensor) -> MetadataError:
    return MetadataError(f"the stored tensor has the shape {tuple(size)}, the target {tuple(target.size())}")


def _do(step: Step) -> None:
    step()


def _run(fill: Fill, call: Callable[[], Step]) -> Step:
    with noted(fill.file, fill.request.storage_index.fqn):
        return partial(_noted_step, fill, call())


def _noted_step(fill: Fill, step: Step) -> None:
    with noted(fill.file, fill.request.storage_index.fqn):
        step()


@contextmanager
def noted(file: str, item: str) -> Iterator[None]:
    """Tell errors their place, once: streamxf's own as they carry it, others as a note."""
    try:
        with located(file=file, item=item):
            yield
    except StreamxfError:
        raise
    except Exception as error:
        if not getattr(error, "__notes__", None):
            error.add_note(escaped(f"while reading item {item} of file {file}"))
        raise


def _framed(geometry: Geometry, data: memoryview) -> torch.Tensor | None:
    """The tensor that a stream of the single block `data` holds, over that memory; None if it is framed otherwise."""
    for requires_grad in (False, True):
        framing = Framing.of(geometry, len(data), requires_grad)
        if framing is not None and framing.matches(0, data):
            if framing.start == framing.stop:
                return torch.empty(geometry.shape, dtype=geometry.dtype, device="cpu")
            payload = torch.frombuffer(data[framing.start : framing.stop], dtype=torch.uint8)
            return payload.view(geometry.dtype).view(geometry.shape)
    return None
