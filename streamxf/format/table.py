"""The items of an index, read from its parts when they are asked for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, repeat
from operator import add, gt, lt, sub
from typing import Any, NamedTuple

from streamxf.budget import Steps
from streamxf.buffers import collector_paused
from streamxf.errors import MetadataError, StreamxfError
from streamxf.format import columns as col
from streamxf.format import fields, limits
from streamxf.format.bare import CRC_BYTES
from streamxf.format.columns import IndexPart, PartEntry
from streamxf.format.header import Kind
from streamxf.format.items import ITEMSIZES, Chunk, Item, ObjectItem, Path, Place, TensorItem, elements_size
from streamxf.format.tiling import Ints, check_apart, check_elements, check_tiles, share, work_for

_SHOWN = 200
_REMEMBERED = 2**27  # bytes of parts, decompressed
_MANY = 32  # chunks from which on numpy compares them
_AT_ONCE = 2**23  # bytes of parts, as they are stored, that are read in one request
_TEXTS = frozenset({"path", "properties"})


class ItemRules(NamedTuple):
    """What an index says of all items.

    - `rank`: whose rank-local metadata it stands in.
    - `descriptors`: those of each `Place`.
    - `framed`: whether all tensors are, behind stream transforms.
    - `coded`: whether items are in containers.
    """

    rank: int | None
    descriptors: tuple[str, ...]
    framed: bool
    coded: bool
    hashed: bool
    dtypes: tuple[str, ...]


Box = tuple[tuple[int, ...], tuple[int, ...]]  # offset and shape


class Band(NamedTuple):
    first: str
    last: str
    rows: int
    parts: tuple[PartEntry, ...]


class ItemTable(Mapping[str, Item]):
    """Items by name, in the order of names.

    - `files`: paths, and the size and writer of each, in the order in which chunks count them.
    - `read`: gives bytes of the parts, from a position, so many.
    """

    def __init__(
        self,
        rules: ItemRules,
        bands: Sequence[Band],
        files: Mapping[str, Any],
        read: Callable[[int, int], bytes],
    ) -> None:
        self.rules = rules
        self.bands = bands
        self._lasts = [band.last for band in bands]
        self._paths = [*files]
        self.sizes = [file.size for file in files.values()]
        self.writers = {path: file.writer for path, file in files.items()}
        self._read = read
        self.on_error: Callable[[Exception], None] = lambda _: None  # may raise what explains an error of a part
        self._known: OrderedDict[tuple[int, int], IndexPart] = OrderedDict()
        self._room = _REMEMBERED
        self._same: dict[int, list[bytes]] = {}
        without = col.CRCS if rules.coded else col.NUMBER
        columns = [column for column in col.ITEM_COLUMNS if column is not without]
        self._first = [column for column in columns if rules.hashed or column is not col.SHA256]
        self._further = [column for column in self._first if column not in (col.MORE_ENDS, col.MORE)]

    @cached_property
    def _work(self) -> Steps:
        return work_for(sum(part.size for band in self.bands for part in band.parts))

    def __len__(self) -> int:
        return sum(band.rows for band in self.bands)

    def __iter__(self) -> Iterator[str]:
        for number in range(len(self.bands)):
            yield from self.part(number, 0).names

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __getitem__(self, name: str) -> Item:
        if (found := self._find(name)) is None:
            raise KeyError(name)
        with collector_paused():
            try:
                return self._item(name, *found)
            except MetadataError as error:
                raise error.locate(item=name[:_SHOWN]) from None

    def whole(self) -> dict[str, Item]:
        """All items, read and checked at once, and compared with each other."""
        made: dict[str, Item] = {}
        with collector_paused():
            for number, band in enumerate(self.bands):
                for place in range(len(band.parts)):
                    self.part(number, place)  # one that no item needs is checked as well
                for row, name in enumerate(self.part(number, 0).names):
                    try:
                        item = self._item(name, number, row)
                    except MetadataError as error:
                        raise error.locate(item=name[:_SHOWN]) from None
                    if isinstance(item, TensorItem):
                        item = replace(item, chunks=tuple(item.chunks))
                    made[name] = item
        self._check_numbers(place for item in made.values() for place in item.places)
        return made

    def _check_numbers(self, places: Iterable[Place]) -> None:
        numbers: dict[bytes, list[int]] = {}
        for place in places if self.rules.coded else ():
            numbers.setdefault(self.writers[place.file], []).append(place.number or 0)
        for each in map(sorted, numbers.values()):  # hostile ones would all have one place in a set
            if any(one == two for one, two in pairwise(each)):
                fields.bad("two items, or chunks, have one writer and number")

    def _find(self, name: str) -> tuple[int, int] | None:
        """The band and the row of an item."""
        number = bisect_left(self._lasts, name)
        if number == len(self.bands) or name < self.bands[number].first:
            return None
        names = self.part(number, 0).names
        row = bisect_left(names, name)
        return (number, row) if row < len(names) and names[row] == name else None

    # -- parts -------------------------------------------------------------------------------------------------

    def part(self, number: int, place: int) -> IndexPart:
        """A part of a band."""
        key = number, place
        if key not in self._known:
            self.fetch(number, place, place + 1)
        self._known.move_to_end(key)
        return self._known[key]

    def fetch(self, number: int, begin: int, end: int) -> None:
        """Read parts of a band that are not known, in as few requests as may be."""
        entries = self.bands[number].parts
        missing = [place for place in range(begin, end) if (number, place) not in self._known]
        while missing:
            run = 1
            while run < len(missing) and missing[run] == missing[0] + run and run * entries[missing[0]].size < _AT_ONCE:
                run += 1
            first, last = entries[missing[0]], entries[missing[run - 1]]
            try:
                data = self._read(first.at, last.at + last.size - first.at)
                for place in missing[:run]:
                    entry = entries[place]
                    self._take(number, place, data[entry.at - first.at : entry.at - first.at + entry.size])
            except (StreamxfError, OSError) as error:
                self.on_error(error)
                raise
            missing = missing[run:]

    def _take(self, number: int, place: int, data: bytes) -> None:
        band = self.bands[number]
        entry, stop = band.parts[place], band.parts[place + 1].begin if place + 1 < len(band.parts) else None
        part = IndexPart.parse(data, entry, self._further if place else self._first, band.rows, stop)
        same = [bytes(part[column]) for column in col.SAME_IN_BAND]
        if number not in self._same:
            if not part.names or (part.names[0], part.names[-1]) != (band.first, band.last):
                fields.bad("a band has other items than the root says")
            self._same[number] = same
        elif self._same[number] != same:
            fields.bad("parts of a band have other items")
        self._room -= entry.raw
        self._known[number, place] = part
        while self._room < 0 and len(self._known) > 1:
            (old, at), _ = self._known.popitem(last=False)
            self._room += self.bands[old].parts[at].raw

    # -- items -------------------------------------------------------------------------------------------------

    def _item(self, name: str, number: int, row: int) -> Item:
        first = self.part(number, 0)
        dtype, shape, count = self.about(first, row)
        path, properties = more(first, row, dtype is None)
        chunks = StoredChunks(self, name, number, row, shape, count)
        if dtype is None:
            return ObjectItem(name, chunks[0].place, path)
        return TensorItem(name, dtype, shape, chunks, path, properties)

    def all_chunks(self, name: str, number: int, row: int, shape: Ints, count: int) -> tuple[Chunk, ...]:
        """All chunks of a tensor, checked as a whole."""
        chunks: list[Chunk] = []
        with collector_paused():
            try:
                if count == 1 and (only := self.one_chunk(number, row, 0)).shape == shape and not any(only.offset):
                    return (only,)
                self.all_spans(name, number, row, shape, count)
                for place in range(self.parts_with(number, count)):
                    part = self.part(number, place)
                    chunks += self.some_chunks(part, row, part.chunks_at[row], part.chunks_at[row + 1])
                self._check_numbers([chunk.place for chunk in chunks])
            except MetadataError as error:
                raise error.locate(item=name[:_SHOWN]) from None
        return tuple(chunks)

    def all_spans(self, name: str, number: int, row: int, shape: Ints, count: int) -> list[Box]:
        """Offset and shape of all chunks of a tensor, which are checked as a whole."""
        self.fetch(number, 0, self.parts_with(number, count))
        spans: list[Box] = []
        with collector_paused():
            for place in range(self.parts_with(number, count)):
                part = self.part(number, place)
                here = slice(part.numbers_at[row], part.numbers_at[row + 1])
                columns = (part[column][here] for column in (col.OFFSET, col.SIZES))
                length = part.chunks_at[row + 1] - part.chunks_at[row]
                spans += zip(*(_groups(values, len(shape), length) for values in columns), strict=True)
            try:
                (check_tiles if self.rules.rank is None else check_apart)(shape, spans, self._work)
                if not all(one[0] < two[0] for one, two in pairwise(spans)):
                    fields.bad("two chunks have the same offset, or they do not rise")
            except MetadataError as error:
                raise error.locate(item=name[:_SHOWN]) from None
        return spans

    def part_of(self, number: int, ordinal: int) -> int:
        """The part of a band that has the chunk of this ordinal."""
        return bisect_right(self.bands[number].parts, ordinal, key=lambda entry: entry.begin) - 1

    def parts_with(self, number: int, count: int) -> int:
        """How many parts of a band have chunks of an item with so many."""
        return bisect_left(self.bands[number].parts, count, key=lambda entry: entry.begin)

    def one_chunk(self, number: int, row: int, ordinal: int) -> Chunk:
        place = self.part_of(number, ordinal)
        part = self.part(number, place)
        at = part.chunks_at[row] + ordinal - part.begin
        return self.some_chunks(part, row, at, at + 1)[0]

    def reaching(
        self, number: int, row: int, place: int, rows: range, begins: Ints, ends: Ints
    ) -> Iterator[tuple[int, Chunk]]:
        """Those chunks of an item in a part that reach into a box, with their ordinals."""
        part = self.part(number, place)
        ndim, first = part[col.NDIM][row], part.chunks_at[row]
        at = part.numbers_at[row] + rows.start * ndim
        boxes = [part[column][at : at + len(rows) * ndim] for column in (col.OFFSET, col.SIZES)]
        if len(rows) > _MANY:
            import numpy

            offsets, shapes = (numpy.array(values, numpy.int64).reshape(-1, ndim) for values in boxes)
            chosen = numpy.flatnonzero(((offsets < ends) & (offsets + shapes > begins)).all(axis=1)).tolist()
        else:
            pairs = enumerate(zip(*(_groups(values, ndim, len(rows)) for values in boxes), strict=True))
            chosen = [k for k, (at, size) in pairs if share((at, [*map(add, at, size)]), (begins, ends))]
        for k in chosen:
            (chunk,) = self.some_chunks(part, row, first + rows.start + k, first + rows.start + k + 1)
            yield part.begin + rows.start + k, chunk

    def about(self, part: IndexPart, row: int) -> tuple[str | None, tuple[int, ...], int]:
        """The dtype of an item, its shape, and how many chunks it has."""
        dtype, count = part[col.DTYPE][row], part[col.COUNT][row]
        shape = tuple(part[col.SHAPE][part.shapes_at[row] : part.shapes_at[row + 1]])
        if dtype > len(self.rules.dtypes) or (not dtype and (shape or count != 1)):
            fields.bad("the dtype of an item, or an object of several chunks")
        check_elements(shape)
        return self.rules.dtypes[dtype - 1] if dtype else None, shape, count

    def some_chunks(self, part: IndexPart, row: int, begin: int, end: int) -> list[Chunk]:
        """Some chunks of an item, with where they are stored."""
        ndim, dtype, count = part[col.NDIM][row], part[col.DTYPE][row], end - begin
        at = part.numbers_at[row] + (begin - part.chunks_at[row]) * ndim
        boxes = (part[column][at : at + count * ndim] for column in (col.OFFSET, col.SIZES))
        offsets, shapes = (_groups(values, ndim, count) for values in boxes)
        kinds, files = part[col.KIND][begin:end], part[col.FILE][begin:end]
        self._check_kinds(kinds, dtype)
        if max(files, default=0) >= len(self._paths):
            fields.bad("a chunk is in a file that there is not")
        numbers: Iterable[int | None] = part[col.NUMBER][begin:end] if self.rules.coded else repeat(None)
        hashes: Iterable[bytes | None] = repeat(None)
        if self.rules.hashed:
            hashes = (part.value(col.SHA256, at) for at in range(begin, end))
        crcs: Iterable[bytes | None] = repeat(None)
        if not self.rules.coded:
            ends = pairwise(part.crcs_at[begin : end + 1])
            crcs = (bytes(part[col.CRCS][CRC_BYTES * one : CRC_BYTES * two]) for one, two in ends)
        made = []
        places = zip(files, part[col.AT][begin:end], part[col.BYTES][begin:end], hashes, numbers, crcs, strict=False)
        for offset, shape, kind, place in zip(offsets, shapes, kinds, places, strict=True):
            file, start, size, *facts = place
            if start + size > self.sizes[file]:
                fields.bad(f"it reaches beyond the end of {self._paths[file]}")
            stored = Place(self._paths[file], start, size, self.rules.descriptors, *facts)
            chunk = Chunk(offset, shape, stored, kind == Kind.FRAMED)
            if kind == Kind.TENSOR and chunk.raw and size != elements_size(self.rules.dtypes[dtype - 1], shape):
                fields.bad("a raw tensor has other bytes than its elements")
            made.append(chunk)
        return made

    def _check_kinds(self, kinds: memoryview, dtype: int) -> None:
        found = {*kinds}
        allowed = {Kind.OBJECT}
        if dtype:
            plain = not self.rules.framed and self.rules.dtypes[dtype - 1] in ITEMSIZES
            allowed = {Kind.TENSOR, Kind.FRAMED} if plain else {Kind.FRAMED}
        if not found <= allowed:
            fields.bad("a chunk has a kind that it cannot have")


def _groups(values: memoryview, size: int, count: int) -> Iterable[tuple[int, ...]]:
    return zip(*[iter(values)] * size, strict=True) if size else repeat((), count)


def more(part: IndexPart, row: int, is_object: bool) -> tuple[Path | None, dict[str, Any]]:
    """The path of an item, and properties of a tensor."""
    ends = part[col.MORE_ENDS]
    text = bytes(part[col.MORE][ends[row - 1] if row else 0 : ends[row]])
    if not text:
        return None, {}
    content = fields.loads(text, "what a part says of an item")
    fields.exact(content, set(), frozenset({"path"}) if is_object else _TEXTS, "an item")
    properties = fields.mapping(content.get("properties", {}), "properties")
    for member, value in properties.items():
        fields.string(member, "properties"), type(value) is bool or fields.string(value, "properties")
    if "path" not in content:
        return None, properties
    steps = fields.array(content["path"], "path")
    if not 1 <= len(steps) <= limits.MAX_STEPS:
        fields.bad("path")
    most = limits.MAX_STEP
    return tuple(
        fields.string(step, "path") if type(step) is str else fields.integer(step, "path", most) for step in steps
    ), properties


class StoredChunks(Sequence[Chunk]):
    """The chunks of an item, read when they are asked for: all of them, and checked as a whole, or those that overlap a
    box, and whether they cover it.
    """

    def __init__(self, table: ItemTable, name: str, number: int, row: int, shape: tuple[int, ...], count: int) -> None:
        self._table = table
        self._name = name
        self._at = number, row
        self._shape = shape
        self._count = count

    @cached_property
    def _all(self) -> tuple[Chunk, ...]:
        return self._table.all_chunks(self._name, *self._at, self._shape, self._count)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._all)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int) and "_all" not in vars(self) and 0 <= key < self._count:
            return self._table.one_chunk(*self._at, key)
        return self._all[key]

    def __eq__(self, other: object) -> bool:
        return self._all == (other._all if isinstance(other, StoredChunks) else other)

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return f"<{self._count} chunks>"

    def overlapping(self, begins: Ints, ends: Ints) -> list[tuple[int, Chunk]] | None:
        """Those that reach into a box, with their numbers; None if it takes all to tell."""
        if not self._count or len(begins) != len(self._shape) or not self._shape or not all(map(lt, begins, ends)):
            return None
        found = self._near(begins, ends)
        box = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
        inside = [
            (
                tuple(max(at - begin, 0) for at, begin in zip(chunk.offset, begins, strict=True)),
                tuple(map(sub, map(min, map(add, chunk.offset, chunk.shape), ends), map(max, chunk.offset, begins))),
            )
            for _, chunk in found
        ]
        try:
            check_tiles(box, inside)
        except MetadataError:
            return None  # not a grid: another chunk may reach into it
        beyond = any(any(map(gt, map(add, chunk.offset, chunk.shape), self._shape)) for _, chunk in found)
        return None if beyond else found

    def spans(self) -> list[Box]:
        """The offset and shape of each, checked as a whole, without a look at where they are stored."""
        return self._table.all_spans(self._name, *self._at, self._shape, self._count)

    def _near(self, begins: Ints, ends: Ints) -> list[tuple[int, Chunk]]:
        """The chunks that reach into a box, if they are cut along the first dimension as a whole: those before begin at
        the last place that is not behind it.
        """
        starts, most = self._starts, self._table.parts_with(self._at[0], self._count)
        begin, end, size = begins[0], ends[0], max(self._shape[0], 1)
        place = self._table.part_of(self._at[0], min(begin * self._count // size, self._count - 1))
        while place and starts(place)[0] > begin:
            place -= 1
        while place + 1 < most and starts(place)[-1] <= begin and self._last_end(place)[0] <= begin:
            place += 1
        at = max(bisect_right(starts(place), begin) - 1, 0)
        first = starts(place)[at]
        at = bisect_left(starts(place), first)
        while not at and place and starts(place - 1)[-1] == first:
            place -= 1
            at = bisect_left(starts(place), first)
        last = self._table.part_of(self._at[0], min(-(-end * self._count // size), self._count) - 1)
        self._table.fetch(self._at[0], place, last + 1)
        found: list[tuple[int, Chunk]] = []
        while place < most:
            stop = bisect_left(starts(place), end, at)
            found += self._table.reaching(*self._at, place, range(at, stop), begins, ends)
            last_end, whole = self._last_end(place)
            if stop < len(starts(place)) or (last_end >= end and whole):
                break
            place, at = place + 1, 0
        return found

    def _starts(self, place: int) -> memoryview:
        """Where the chunks in a part begin, along the first dimension."""
        part, row, ndim = self._table.part(self._at[0], place), self._at[1], len(self._shape)
        return part[col.OFFSET][part.numbers_at[row] : part.numbers_at[row + 1] : ndim]

    def _last_end(self, place: int) -> tuple[int, bool]:
        """Where the last chunk in a part ends, along the first dimension, and whether it is whole along the others."""
        part, row, ndim = self._table.part(self._at[0], place), self._at[1], len(self._shape)
        shape = part[col.SIZES][part.numbers_at[row + 1] - ndim : part.numbers_at[row + 1]]
        return self._starts(place)[-1] + shape[0], tuple(shape[1:]) == self._shape[1:]
