"""`DcpSource`: a DCP checkpoint read box by box, with all checks of a load and blocks decoded in parallel."""

from __future__ import annotations

import io
import os
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from streamxf.dcp.compat import metadata_name
from streamxf.dcp.load.advice import items_advised
from streamxf.dcp.load.items import Require
from streamxf.dcp.load.loader import Loader, noted
from streamxf.dcp.metadata.file import manifest_of
from streamxf.dcp.objects.policy import Objects
from streamxf.dcp.places import held_by
from streamxf.dcp.publish.listing import list_files, rank_of
from streamxf.dcp.reader import OpenedFile
from streamxf.errors import MetadataError
from streamxf.fileio.source import access_to
from streamxf.formats.contents import Entry, Part
from streamxf.formats.dcp import Description, Loaded, Stored, metadata_names, reader_for
from streamxf.formats.dcp_item import Item, open_item
from streamxf.formats.extents import empty
from streamxf.formats.location import Location
from streamxf.formats.source import BOX_BYTES, Box, Source, check_box
from streamxf.keys import KeyRing
from streamxf.meter import Meter
from streamxf.proportion import MAX_EXPANSION, Budget

# Files at a time. Tensors of many ranks lie in the files of all of them; what fsspec opens may hold much of it ahead.
_OPEN_LOCAL, _OPEN_REMOTE = 256, 8
_AHEAD = BOX_BYTES  # bytes of boxes that are decoded while the caller has one


class DcpSource(Source):
    """A checkpoint whose metadata was read and found right.

    Parameters
    ----------
    location : Location
    keys : KeyRing
    require : {"published", "bound", "encrypted"}, optional
        As for `FileSystemReader`.
    max_expansion : int
        As `diff` takes it.

    Raises
    ------
    StreamxfError
        If the metadata cannot be used, or needs another key.
    """

    def __init__(
        self,
        location: Location,
        keys: KeyRing,
        require: Require | None = None,
        max_expansion: int = MAX_EXPANSION,
    ) -> None:
        first = reader_for(location, keys, require)
        listed = list_files(first.fs, first.path)
        self._readers: list[Any] = []
        files: list[Loaded] = []
        for name in metadata_names(location, listed):
            reader = first if not files else reader_for(location, keys, require)
            rank = rank_of(name)
            metadata = reader.read_metadata() if rank is None else reader.read_metadata(rank=rank)
            reader.set_up_storage_reader(metadata, True)
            self._readers.append(reader)
            files.append(Loaded(metadata_name(rank), rank, metadata, manifest_of(metadata), True))
        self._description = Description.of(files)
        self.contents = self._description.contents(location, listed)
        self.paths = self._description.paths
        self.budget = Budget(max_expansion, held_by(first.fs, first.path, self.contents.files, listed))
        for reader in self._readers:
            reader.bound_by(self.budget)
        self._stack: OrderedDict[tuple[int, str], tuple[OpenedFile, ExitStack]] = OrderedDict()
        self._item: tuple[Stored, Item] | None = None
        self._spent: set[Stored] = set()
        self._most_open = _OPEN_LOCAL if location.filesystem is None else _OPEN_REMOTE

    def read(self, boxes: Iterable[Box]) -> Iterator[torch.Tensor]:
        reading = _Reading()
        try:
            for box in boxes:
                check_box(box)
                with items_advised():
                    self._begin(reading, box)
                    reading.loader.collect()
                yield from reading.done()
                while reading.ahead > _AHEAD:
                    with items_advised():
                        reading.loader.wait()
                    yield from reading.done()
            with items_advised():
                reading.loader.settle()
            yield from reading.done()
        finally:
            reading.loader.cancel()

    def load_object(self, entry: Entry) -> Any:
        (stored,) = self._description.stored[entry.name]
        nothing = torch.Size([])
        request = ReadItem(LoadItemType.BYTE_IO, stored.index, nothing, stored.index, nothing, nothing)
        taker = _ObjectTaker()
        reading = _Reading()
        file = self._opened_file(stored.file, entry.parts[0].file, reading)
        with items_advised(), noted(file.name, entry.name):
            self._readers[stored.file]._read_item(file, request, Loader(taker, Meter(), Objects(), self.budget))
        return taker.found

    def close(self) -> None:
        self._item = None
        while self._stack:
            _, (_, stack) = self._stack.popitem()
            stack.close()

    # -- one box -----------------------------------------------------------------------------------

    def _begin(self, reading: _Reading, box: Box) -> None:
        """Have all parts of a box read, as soon as that may be."""
        entry = box.entry
        dtype = getattr(torch, entry.dtype or "")
        tensor = empty(dtype, box.lengths)
        waiting = reading.add(tensor)
        left = tensor.numel()
        if left:
            stored = self._description.stored[entry.name]
            for part, place in zip(entry.parts, stored, strict=True):
                found = _common(box, part)
                if found is None:
                    continue
                inside, lengths, target = found
                whole = lengths == box.lengths
                piece = tensor if whole else tensor[tuple(map(slice, target, map(int.__add__, target, lengths)))]
                left -= piece.numel()
                item = self._opened_item(place, part, reading)
                with noted(item.file, entry.name):
                    item.load(
                        reading.loader, reading.taker, reading.request(waiting, piece, place.index, inside, lengths)
                    )
                if not left:
                    break
        if left:
            raise MetadataError(f"no rank that is here has the part of {box.lengths} at {box.offsets}", item=entry.name)
        waiting.begun = True

    def _opened_item(self, stored: Stored, part: Part, reading: _Reading) -> Item:
        if self._item is None or self._item[0] != stored:
            self._item = None  # one that was decoded whole is not held while the next one is
            file = self._opened_file(stored.file, part.file, reading)
            with noted(file.name, stored.index.fqn):
                item = open_item(self._readers[stored.file], file, stored.index, reading.loader, self.budget)
                if stored not in self._spent:
                    self.budget.spend(item.cost, "the tensor")
                    self._spent.add(stored)
                self._item = stored, item
        return self._item[1]

    def _opened_file(self, number: int, name: str, reading: _Reading) -> OpenedFile:
        known = self._stack.get((number, name))
        if known is not None:
            self._stack.move_to_end((number, name))
            return known[0]
        while len(self._stack) >= self._most_open:
            reading.loader.settle()  # workers may be at it
            _, (_, old) = self._stack.popitem(last=False)
            old.close()
        reader = self._readers[number]
        stack = ExitStack()
        raw, size = stack.enter_context(reader._open_file(name))
        opened = OpenedFile(os.fspath(reader._full(name)), raw, access_to(raw), size)
        self._stack[number, name] = opened, stack
        return opened


@dataclass(eq=False)
class _Waiting:
    """A box on its way."""

    tensor: torch.Tensor
    left: int = 0
    begun: bool = False


@dataclass
class _Reading:
    """One `read`: what is on its way, in the order of the boxes."""

    taker: _PartTaker = field(init=False)
    loader: Loader = field(init=False)
    ahead: int = 0
    _boxes: deque[_Waiting] = field(default_factory=deque)
    _parts: dict[int, tuple[_Waiting, torch.Tensor]] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        self.taker = _PartTaker(self)
        self.loader = Loader(self.taker, Meter(), Objects())

    def add(self, tensor: torch.Tensor) -> _Waiting:
        waiting = _Waiting(tensor)
        self._boxes.append(waiting)
        self.ahead += tensor.nbytes
        return waiting

    def request(
        self,
        waiting: _Waiting,
        piece: torch.Tensor,
        index: MetadataIndex,
        offsets: tuple[int, ...],
        lengths: tuple[int, ...],
    ) -> ReadItem:
        """For a piece of a box."""
        self._number += 1
        waiting.left += 1
        self._parts[self._number] = waiting, piece
        return ReadItem(
            LoadItemType.TENSOR,
            MetadataIndex(index.fqn, index.offset, self._number),
            torch.Size([0] * len(offsets)),
            index,
            torch.Size(offsets),
            torch.Size(lengths),
        )

    def target(self, request: ReadItem) -> torch.Tensor:
        return self._parts[request.dest_index.index or 0][1]

    def commit(self, request: ReadItem) -> None:
        waiting, _ = self._parts.pop(request.dest_index.index or 0)
        waiting.left -= 1

    def done(self) -> Iterator[torch.Tensor]:
        """The boxes that are read, as far as no earlier one is under way."""
        while self._boxes and self._boxes[0].begun and not self._boxes[0].left:
            tensor = self._boxes.popleft().tensor
            self.ahead -= tensor.nbytes
            yield tensor


class _PartTaker(DefaultLoadPlanner):
    """Tells a loader where pieces of boxes belong."""

    def __init__(self, reading: _Reading) -> None:
        super().__init__()
        self._reading = reading

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return self._reading.target(read_item)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self._reading.commit(read_item)


class _ObjectTaker(DefaultLoadPlanner):
    """Takes one object, which the reader has vetted."""

    found: Any = None

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.found = torch.load(value, weights_only=False)


def _common(box: Box, part: Part) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """What a box and a part have in common: its offsets in the part, its lengths, and its offsets in the box."""
    starts = tuple(map(max, box.offsets, part.offsets))
    stops = tuple(map(min, map(int.__add__, box.offsets, box.lengths), map(int.__add__, part.offsets, part.shape)))
    lengths = tuple(map(int.__sub__, stops, starts))
    if any(length <= 0 for length in lengths):
        return None
    inside = tuple(map(int.__sub__, starts, part.offsets))
    return inside, lengths, tuple(map(int.__sub__, starts, box.offsets))
