"""One rank's part of a load that reads once: it reads and decodes the units that it owns, round by round, sends them to
the ranks that need them, and receives the others.

While a round's messages are under way, workers read and decode the next one. Where what arrives is one run of a
target's memory it is received there, as blocks are decoded there; anything else goes through memory that is used again
for the next round but one. A message has elements only: which ones follows from the plan. Their CRC-32C comes after
them, so that nothing but the message that is awaited counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import crc32c
import numpy as np
import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from streamxf.buffers import Scratch
from streamxf.checkpoint.elements import Elements, Selection, Slices
from streamxf.checkpoint.opening import ItemPart
from streamxf.checkpoint.sources import Array, Staging
from streamxf.dcp.loader import Job, Loader, check_size, part_of
from streamxf.dcp.once.meeting import Meeting
from streamxf.dcp.once.plan import Assignment, ChunkRun, Need, SharedChunk, Unit
from streamxf.dcp.targets import Target, check_dtype, clashes
from streamxf.errors import MetadataError, UnsupportedError, located
from streamxf.format.items import Ranges, TensorItem, unsigned
from streamxf.pipeline import Pipeline
from streamxf.progress import Progress
from streamxf.storage.reading import READ_WHOLE, FileSlice, OpenFiles, Span
from streamxf.storage.storage import Storage
from streamxf.stream.reader import BareBlocks, read_all
from streamxf.torchsave.objects import dtype_of

_ALIGNED = 16  # bytes; where what belongs to a part may begin in a message
_CRCS = 2**29  # tags from here on are those of CRCs; a unit's is its number, so that gloo uses all of its interfaces


@dataclass(eq=False, slots=True)
class _Sink:
    """A request of this rank, and how its target is filled.

    - `array`: the target's memory, if elements may be put there.
    - `memory`: the same as bytes, if what is wanted of the chunk is one run in both.
    - `missing`: elements that are not there yet.
    - `is_stored`: whether they are an object's bytes as they are stored.
    """

    request: ReadItem
    target: Target
    dtype: torch.dtype
    selection: Selection
    array: Array | None
    memory: Array | None
    missing: int
    is_stored: bool

    def put(self, where: Slices, elements: Array) -> None:
        self.missing -= elements.size
        if self.array is not None:
            self.array[where] = elements
        else:
            flat = torch.from_numpy(np.ascontiguousarray(elements).reshape(-1).view(np.uint8))
            self.target.tensor[where].copy_(flat.view(self.dtype).view(elements.shape))

    def run(self, start: int, stop: int) -> Array | None:
        """The target's bytes for a run of the chunk's elements, if all of these are wanted, and may be put there."""
        if self.memory is None or start < self.selection.start or stop > self.selection.stop:
            return None
        itemsize, first = self.dtype.itemsize, self.selection.start
        return self.memory[(start - first) * itemsize : (stop - first) * itemsize]


@dataclass(eq=False, slots=True)
class _Piece:
    """What a rank gets of a part; it stands at `at` in a message, in bytes."""

    part: ChunkRun
    need: Need
    at: int
    size: int

    @property
    def reach(self) -> tuple[int, int]:
        """The run that holds it."""
        wanted = self.need.selection
        return max(self.part.start, wanted.start), min(self.part.stop, wanted.stop)

    def moves(self) -> Iterator[tuple[slice, list[int], slice, tuple[int, ...], Slices, Slices]]:
        """As `Selection.moves`; before each, where its elements stand in the message, and their shape."""
        at = 0
        for move in self.need.selection.moves(self.part.start, self.part.stop):
            inner = [each.stop - each.start for each in move[2]]
            yield slice(at, at + math.prod(inner)), inner, *move
            at += math.prod(inner)


_Decoded = tuple[Array, _Sink | None]  # bytes, and the sink in whose memory they are, if any


@dataclass(slots=True)
class _Round:
    """What goes on in a round; `scratch` is all memory that is not a target's, of which `taken` buffers are in use."""

    units: list[Unit]
    scratch: Scratch
    taken: int = 0
    decoded: dict[ChunkRun, _Decoded] = field(default_factory=dict)
    received: dict[int, list[tuple[list[_Piece], _Decoded]]] = field(default_factory=dict)
    crcs: dict[int, Array] = field(default_factory=dict)
    waits: list[Callable[[], None]] = field(default_factory=list)

    def take(self, size: int) -> Array:
        self.taken += 1
        return np.frombuffer(self.scratch.take(self.taken, size), np.uint8)


class Transfer:
    """The shared part of a load on one rank; for one thread.

    - `read`: positions in the plan of the requests that are done with.
    - `received_bytes`: of elements.
    """

    def __init__(self, share: Assignment, loader: Loader, planner: LoadPlanner) -> None:
        self.read: set[int] = set()
        self.received_bytes = 0
        self._share = share
        self._rank = share.rank
        self._loader = loader
        self._planner = planner
        self._pipeline: Pipeline[None] = Pipeline()
        self._sinks: dict[Need, list[_Sink]] = {}
        self._all: list[_Sink] = []
        self._wanted: dict[SharedChunk, ItemPart] = {}
        self._opened: tuple[SharedChunk, str, Elements] | None = None

    def prepare(self, requests: Sequence[ReadItem]) -> str:
        """Find the targets. Returns why the share does not fit the requests, or nothing. Raises MetadataError if this
        rank has other metadata than the coordinator, or a target has another shape than what is wanted.
        """
        numbers: dict[Any, list[int]] = {}
        for number, request in enumerate(requests):
            numbers.setdefault(box_of(request), []).append(number)
        found: dict[int, tuple[SharedChunk, Need]] = {}
        for shard in {part.shard: None for unit in self._share.units for part in unit.parts}:
            for need in shard.needs_of(self._rank):
                mine = numbers.get(((shard.name, shard.offset), need.selection.box if shard.dtype else ()))
                if mine is None:
                    return "finish_plan has changed a plan"
                found.update(dict.fromkeys(mine, (shard, need)))
        targets = {number: self._target(requests[number], shard) for number, (shard, _) in sorted(found.items())}
        apart, hidden = clashes(targets, requests)
        for number, target in targets.items():
            shard, need = found[number]
            sinks = self._sinks.setdefault(need, [])
            if number not in apart:
                sink = _sink(requests[number], target, shard, need)
                sink.missing *= number not in hidden  # what would come there is overwritten
                self._all.append(sink)
                sinks += [sink] if sink.missing else []
        self.read = targets.keys() - apart
        return ""

    def _target(self, request: ReadItem, shard: SharedChunk) -> Target:
        wanted = self._wanted[shard] = part_of(self._loader.opener.metadata, request)
        item, chunk = wanted.item, wanted.chunk
        if not shard.dtype and chunk is None:
            return Target.of(torch.empty(shard.count, dtype=torch.uint8, device="cpu"))
        if not isinstance(item, TensorItem) or chunk is None or (item.dtype, chunk.shape) != (shard.dtype, shard.shape):
            raise MetadataError("the ranks have found different metadata: it was replaced meanwhile", item=shard.name)
        target = Target.of(self._planner.resolve_tensor(request).detach())
        with located(item=shard.name):
            check_size(target.tensor, request.lengths)
            check_dtype(target.tensor, dtype_of(item.dtype))
        return target

    def run(self, storage: Storage, meeting: Meeting, progress: Progress | None) -> None:
        """Read, send and receive, until all targets are filled and committed; after an error no worker is at any."""
        self._meeting = meeting
        own = [part for unit in self._share.units if unit.owner == self._rank for part in unit.parts]
        costs = self._costs(own)
        stored = sum(costs.values())
        if progress is not None:
            progress.expect(stored)
        rounds = [list(units) for _, units in groupby(self._share.units, key=lambda unit: unit.round)]
        scratches = Scratch(), Scratch()
        with storage.entered() as held, self._loader.opening(held) as files:
            try:
                work = self._decode(_Round(rounds[0], scratches[0]), files)
                for number in range(1, len(rounds) + 1):
                    self._drain()
                    self._begin(work)
                    if progress is not None:
                        progress.advance(sum(map(costs.__getitem__, work.decoded)))
                    before = work
                    if number < len(rounds):
                        work = self._decode(_Round(rounds[number], scratches[number % 2]), files)
                    self._end(before)
                    meeting.check()
            finally:
                self._pipeline.cancel()
        for sink in self._all:
            if sink.missing:
                raise MetadataError("a part of the tensor is missing", item=sink.request.storage_index.fqn)
            if sink.request.type is LoadItemType.BYTE_IO:
                self._load_object(sink, storage)
                continue
            self._loader.meter.item(sink.target.tensor.numel() * sink.dtype.itemsize, 0)
            self._planner.commit_tensor(sink.request, sink.target.tensor)
        self._loader.meter.cell.stored_bytes += stored

    def _load_object(self, sink: _Sink, storage: Storage) -> None:
        data, loader = sink.target.tensor.numpy(), self._loader
        wanted = part_of(loader.opener.metadata, sink.request)
        with located(file=storage.label(wanted.place.file), item=wanted.item.name, doing="reading"):
            found = data.tobytes()
            if sink.is_stored:
                source = FileSlice(None, 0, len(data), whole=data.data)
                found = read_all(loader.opener.blocks(source, wanted, loader.meter), loader.meter)
            loader.load_object(sink.request, found, wanted.place)

    def _costs(self, parts: Sequence[ChunkRun]) -> dict[ChunkRun, int]:
        """The stored bytes of each; of values of one container, which is read once, all count for the first."""
        costs, seen = dict[ChunkRun, int](), set[Any]()
        for part in parts:
            place = self._wanted[part.shard].place
            whole = 0 if place.container in seen else place.size
            costs[part] = place.size * (part.stop - part.start) // part.shard.count if place.span is None else whole
            seen.update([place.container] if place.span is not None else ())
        return costs

    def _drain(self) -> None:
        """Wait until no worker is at any block."""
        for _ in self._pipeline.results():
            pass

    def _decode(self, work: _Round, files: OpenFiles) -> _Round:
        """Have workers read and decode what this rank owns in a round."""
        own = [part for unit in work.units if unit.owner == self._rank for part in unit.parts]
        small: dict[str, list[Span]] = {}
        for place in (self._wanted[part.shard].place for part in own):
            spans, span = small.setdefault(place.file, []), (place.at, place.at + place.size)
            if place.size <= READ_WHOLE and spans[-1:] != [span]:
                spans.append(span)
        for part in own:
            shard, count = part.shard, part.stop - part.start
            if self._opened is None or self._opened[0] is not shard:
                self._opened = (shard, *self._open(shard, files, small))
            _, name, elements = self._opened
            sinks = [sink for need in shard.needs_of(self._rank) for sink in self._sinks[need]]
            found = [(out, sink) for sink in sinks if (out := sink.run(part.start, part.stop)) is not None]
            out, _ = work.decoded[part] = found[0] if found else (work.take(part.size), None)
            with located(file=name, item=shard.name, doing="reading"):
                for job, size in elements.jobs((part.start,), (count,), out.view(unsigned(shard.itemsize))):
                    self._pipeline.submit(partial(_run, name, shard.name, job), size)
        return work

    def _open(self, shard: SharedChunk, files: OpenFiles, small: dict[str, list[Span]]) -> tuple[str, Elements]:
        """The elements of a chunk, in a row. `small` has the small items that are read next, by their files."""
        wanted, before = self._wanted[shard], self._opened
        if before is not None and self._wanted[before[0]].place.file != wanted.place.file:
            self._drain()  # another file may be closed for this one
        file = files[wanted.place.file]
        if file.fetched is not None:
            file.fetched.expect(*small.pop(wanted.place.file, ()), soon=False)
        with located(file=file.name, item=shard.name, doing="reading"):
            source = self._loader.opener.source(file, wanted.place)
            if shard.stored:
                return file.name, Elements(BareBlocks(source), 0, 1, shard.shape)
            blocks = self._loader.opener.blocks(source, wanted, self._loader.meter)
            if wanted.chunk is None:
                if blocks.size != shard.count:
                    raise MetadataError(f"the object has {blocks.size} bytes, and rank 0 found {shard.count}")
                return file.name, Elements(blocks, 0, 1, shard.shape)
            try:
                elements = wanted.elements(blocks)
            except UnsupportedError as error:
                error.add_note("next: load with read='each', which leaves such tensors to torch")
                raise
        return file.name, replace(elements, shape=(shard.count,))

    def _pieces(self, unit: Unit, rank: int) -> list[_Piece]:
        """What a rank gets of a unit."""
        pieces, at = list[_Piece](), 0
        for part in unit.parts:
            for need in part.shard.needs_of(rank):
                size = need.selection.count(part.start, part.stop) * part.shard.itemsize
                if size:
                    pieces.append(_Piece(part, need, at, size))
                    at += -(-size // _ALIGNED) * _ALIGNED
        return pieces

    def _begin(self, work: _Round) -> None:
        """Begin to receive and to send, and keep what is this rank's own."""
        last = _CRCS + work.units[0].round
        crcs: dict[int, list[int]] = {}
        for unit in work.units:
            if unit.owner != self._rank:
                pieces = self._pieces(unit, self._rank)
                sinks = self._sinks[pieces[0].need] if len(pieces) == 1 else []
                found = [(out, sink) for sink in sinks if (out := sink.run(*pieces[0].reach)) is not None]
                data = found[0] if found else (work.take(pieces[-1].at + pieces[-1].size), None)
                work.received.setdefault(unit.owner, []).append((pieces, data))
                self._post(work, data[0], unit.owner, unit.number)
        for owner, messages in work.received.items():
            work.crcs[owner] = np.zeros(len(messages), np.uint32)
            self._post(work, work.crcs[owner].view(np.uint8), owner, last)
        for unit in work.units:
            made: dict[Any, tuple[Array, int]] = {}  # most ranks get the same
            for rank in unit.ranks if unit.owner == self._rank else ():
                if rank != self._rank:
                    pieces = self._pieces(unit, rank)
                    key = tuple((piece.part, piece.need) for piece in pieces)
                    if key not in made:
                        packed = _packed(work, pieces)
                        made[key] = packed, crc32c.crc32c(packed.data)
                    crcs.setdefault(rank, []).append(made[key][1])
                    self._post(work, made[key][0], rank, unit.number, send=True)
        for rank, sums in crcs.items():
            self._post(work, np.array(sums, np.uint32).view(np.uint8), rank, last, send=True)
        for part, (own, own_sink) in work.decoded.items():
            elements = own.view(unsigned(part.shard.itemsize))
            for need in part.shard.needs_of(self._rank):
                for sink in self._sinks[need]:
                    if sink is own_sink:
                        sink.missing -= elements.size
                        continue
                    for run, shape, source, where in need.selection.moves(part.start, part.stop):
                        sink.put(where, elements[run].reshape(shape)[source])

    def _post(self, work: _Round, data: Array, rank: int, tag: int, *, send: bool = False) -> None:
        work.waits.append(self._meeting.begin(torch.from_numpy(data), rank, tag, send=send))

    def _end(self, work: _Round) -> None:
        """Wait for a round's messages, and put what was received where it belongs."""
        for wait in work.waits:
            wait()
        for owner, messages in work.received.items():
            for (pieces, (data, own_sink)), crc in zip(messages, work.crcs[owner].tolist(), strict=True):
                if crc32c.crc32c(data.data) != crc:
                    name = pieces[0].part.shard.name
                    raise ConnectionError(f"what rank {owner} sent of {name!r} did not arrive as it was sent")
                self.received_bytes += len(data)
                for piece in pieces:
                    packed = data[piece.at : piece.at + piece.size].view(unsigned(piece.part.shard.itemsize))
                    for sink in self._sinks[piece.need]:
                        if sink is own_sink:
                            sink.missing -= packed.size
                            continue
                        for slot, inner, *_, where in piece.moves():
                            sink.put(where, packed[slot].reshape(inner))


def box_of(request: ReadItem) -> tuple[tuple[str, tuple[int, ...]], Ranges]:
    """By what a request is known on other ranks: name and offset of a chunk, and what is wanted of that."""
    index, begins = request.storage_index, tuple(request.storage_offsets)
    box = tuple((begin, begin + length) for begin, length in zip(begins, request.lengths, strict=True))
    box = box if request.type is not LoadItemType.BYTE_IO else ()
    return (index.fqn, tuple(index.offset or ())), box


def _sink(request: ReadItem, target: Target, shard: SharedChunk, need: Need) -> _Sink:
    dtype = dtype_of(shard.dtype or "uint8")
    memory = target.memory(dtype, Staging()) if target.tensor.device.type == "cpu" else None
    array, flat = memory if isinstance(memory, np.ndarray) else None, None
    if array is not None and array.flags.c_contiguous and need.selection.is_run:
        flat = array.reshape(-1).view(np.uint8)
    count = math.prod(stop - start for start, stop in need.selection.box)
    return _Sink(request, target, dtype, need.selection, array, flat, count, shard.stored)


def _run(file: str, item: str, job: Job) -> None:
    with located(file=file, item=item, doing="reading"):
        job()


def _packed(work: _Round, pieces: list[_Piece]) -> Array:
    """A message, where it stands already if it is one run."""
    if len(pieces) == 1 and pieces[0].need.selection.is_run:
        part, (start, stop) = pieces[0].part, pieces[0].reach
        itemsize = part.shard.itemsize
        return work.decoded[part][0][(start - part.start) * itemsize : (stop - part.start) * itemsize]
    out = work.take(pieces[-1].at + pieces[-1].size)
    for piece in pieces:
        kind = unsigned(piece.part.shard.itemsize)
        elements, packed = work.decoded[piece.part][0].view(kind), out[piece.at : piece.at + piece.size].view(kind)
        for slot, inner, run, shape, source, _ in piece.moves():
            packed[slot].reshape(inner)[...] = elements[run].reshape(shape)[source]
    return out
