"""The items of an index, read from its parts when they are asked for.

All that a part says of single items and chunks is checked when it is read, as columns: no object is made for a chunk
that nobody asks for. How chunks tile a tensor is checked where it is used, or by `ItemTable.check`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise, repeat
from operator import add, lt
from typing import Any, NamedTuple

from streamxf.budget import Steps
from streamxf.buffers import collector_paused
from streamxf.errors import MetadataError, StreamxfError, located
from streamxf.format import columns as col
from streamxf.format import fields, limits
from streamxf.format.bare import CRC_BYTES
from streamxf.format.columns import Array, IndexPart, PartEntry
from streamxf.format.header import Kind
from streamxf.format.items import ITEMSIZES, Chunk, Item, ObjectItem, Path, Place, TensorItem
from streamxf.format.tiling import Box, Boxes, Ints, Span, check_apart, check_tiles, work_for

_SHOWN = 200
_REMEMBERED = 2**27  # bytes of parts, decompressed
_TOGETHER = 16  # parts that are asked for together where all are read; all of them are remembered
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
        import numpy

        self.rules = rules
        self.bands = bands
        self._lasts = [band.last for band in bands]
        self._paths = [*files]
        self._sizes = numpy.array([file.size for file in files.values()], "i8")
        ids: dict[bytes, int] = {}
        self._writers = numpy.array([ids.setdefault(file.writer, len(ids)) for file in files.values()], "u4")
        self._itemsizes = numpy.array([0, *(ITEMSIZES.get(dtype, 0) for dtype in rules.dtypes)])
        self._read = read
        self.on_error: Callable[[Exception], None] = lambda _: None  # may raise what explains an error of a part
        self._known: OrderedDict[tuple[int, int], IndexPart] = OrderedDict()
        self._room = _REMEMBERED
        self._asked: tuple[int, range] | None = None
        self._alike: Boxes | None = None
        self._same: dict[int, list[Array]] = {}
        without = col.CRCS if rules.coded else col.NUMBER
        columns = [column for column in col.ITEM_COLUMNS if column is not without]
        self._first = [column for column in columns if rules.hashed or column is not col.SHA256]
        self._further = [column for column in self._first if column not in (col.MORE_ENDS, col.MORE)]

    @cached_property
    def work(self) -> Steps:
        """What may be spent on comparing chunks."""
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
            chunks = self._chunks(name, *found)
            return self._item(self.part(found[0], 0), found[1], chunks.shape, chunks)

    def whole(self) -> dict[str, Item]:
        """All items, read and checked at once, and compared with each other."""
        self.check(paths=False)
        with collector_paused():
            return {item.name: item for number in range(len(self.bands)) for item in self._items(number)}

    def check(self, *, paths: bool = True) -> None:
        """Check every item, and compare them with each other; raises MetadataError if readers would refuse one. `paths`
        and properties are checked wherever an item is made, too.
        """
        import numpy

        numbers = []
        for number, band in enumerate(self.bands):
            for place in range(len(band.parts)):
                if not place % _TOGETHER:
                    self.fetch(number, place, min(place + _TOGETHER, len(band.parts)))
                part = self.part(number, place)
                if not place:  # which has as many items as the root says: that alone may be any number
                    slabs = _Slabs(part.rows, self.rules.rank is not None)
                slabs.add(part)
                if self.rules.coded:
                    numbers.append((part[col.FILE], part[col.NUMBER]))
            first = self.part(number, 0)
            for row in range(first.rows) if paths else ():
                _more(first, row)
            for row in numpy.flatnonzero(~slabs.good).tolist():
                self._chunks(first.names[row], number, row).check()
        self.check_numbers(numbers)

    def check_numbers(self, found: Sequence[tuple[Array, Array]]) -> None:
        """Check that no two chunks, given by files and numbers, have one writer and number."""
        import numpy

        if not found:
            return
        # numbers of honest writers have few gaps, so that a bit for each is enough
        most, total = numpy.zeros(self._writers.size, "i8"), 0
        for files, numbers in found:
            numpy.maximum.at(most, self._writers[files], numbers.astype("i8"))
            total += numbers.size
        begins = numpy.cumsum(most + 1) - most - 1
        if float(most.sum()) + most.size < 8 * total + 2**16:
            seen = numpy.zeros(int(most.sum()) + most.size, bool)
            for files, numbers in found:
                seen[begins[self._writers[files]] + numbers] = True
            distinct = int(numpy.count_nonzero(seen)) == total
        else:
            files, numbers = (numpy.concatenate(side, dtype="i8") for side in zip(*found, strict=True))
            writers = self._writers[files]
            order = numpy.lexsort((numbers, writers))
            distinct = not ((numpy.diff(writers[order]) == 0) & (numpy.diff(numbers[order]) == 0)).any()
        if not distinct:
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

    def alike(self, number: int, places: range) -> Boxes | None:
        """The chunks of all items in some parts of a band, which have as many in each, when they are asked for again
        and again; else None.
        """
        import numpy

        if self._asked != (number, places):
            self._asked, self._alike = (number, places), None
            return None
        if self._alike is None:
            parts = [self.part(number, place) for place in places]
            ndim = parts[0][col.NDIM]
            if not all((each == each[0]).all() for each in (ndim, *(part.here for part in parts))):
                return None
            sides = (
                [part[column].reshape(part.rows, part.here[0], ndim[0]) for part in parts]
                for column in (col.OFFSET, col.SIZES)
            )
            self._alike = Boxes(*(numpy.concatenate(side, axis=1, dtype="i8") for side in sides))
        return self._alike

    def _take(self, number: int, place: int, data: bytes) -> None:
        import numpy

        band = self.bands[number]
        entry, stop = band.parts[place], band.parts[place + 1].begin if place + 1 < len(band.parts) else None
        part = IndexPart.parse(data, entry, self._further if place else self._first, band.rows, stop)
        if number not in self._same:
            if not part.names or (part.names[0], part.names[-1]) != (band.first, band.last):
                fields.bad("a band has other items than the root says")
            self._check_items(part)
            self._same[number] = [part[column].copy() for column in col.SAME_IN_BAND]
        elif not all(map(numpy.array_equal, self._same[number], map(part.__getitem__, col.SAME_IN_BAND))):
            fields.bad("parts of a band have other items")
        self._check_chunks(part)
        self._room -= entry.raw
        self._known[number, place] = part
        while self._room < 0 and len(self._known) > 1:
            (old, at), _ = self._known.popitem(last=False)
            self._room += self.bands[old].parts[at].raw

    def _check_items(self, part: IndexPart) -> None:
        import numpy

        dtype, ndim, count = (part[column] for column in (col.DTYPE, col.NDIM, col.COUNT))
        elements = _products(part[col.SHAPE].clip(1), ndim)
        for what, wrong in (
            ("a dtype that there is not", dtype >= self._itemsizes.size),
            ("a shape, or several chunks, and is an object", (dtype == 0) & ((ndim > 0) | (count != 1))),
            ("more elements than a tensor can have", elements > limits.MAX_NUMBER),
        ):
            _refuse(part, numpy.flatnonzero(wrong), f"it has {what}")

    def _check_chunks(self, part: IndexPart) -> None:
        import numpy

        rows = numpy.repeat(numpy.arange(part.rows), part.here)
        files, sizes = part[col.FILE], part[col.BYTES]
        _refuse(part, rows[files >= self._sizes.size], "a chunk is in a file that there is not")
        ends = numpy.add(part[col.AT], sizes, dtype="i8")
        _refuse(part, rows[ends > self._sizes.take(files)], "it reaches beyond the end of its file")
        dtypes, kinds = part[col.DTYPE].take(rows), part[col.KIND]
        tensors, width = kinds == Kind.TENSOR, self._itemsizes.take(dtypes)
        plain = tensors & (width > 0) & (not self.rules.framed)
        known = numpy.where(dtypes > 0, plain | (kinds == Kind.FRAMED), kinds == Kind.OBJECT)
        _refuse(part, rows[~known], "a chunk has a kind that it cannot have")
        if not self.rules.coded:
            elements = _products(part[col.SIZES], part[col.NDIM][rows])
            _refuse(part, rows[tensors & (elements * width != sizes)], "a raw tensor has other bytes than its elements")

    # -- items -------------------------------------------------------------------------------------------------

    def _items(self, number: int) -> Iterator[Item]:
        """The items of a band with all their chunks, once they are checked."""
        parts = [self.part(number, place) for place in range(len(self.bands[number].parts))]
        found = [(part.chunks_at, self.some_chunks(part, 0, part.chunks, part.spans())) for part in parts]
        shapes = parts[0][col.SHAPE].tolist()
        for row, (begin, end) in enumerate(pairwise(parts[0].shapes_at)):
            chunks = tuple(chunk for at, made in found for chunk in made[at[row] : at[row + 1]])
            yield self._item(parts[0], row, tuple(shapes[begin:end]), chunks)

    def _item(self, part: IndexPart, row: int, shape: tuple[int, ...], chunks: Sequence[Chunk]) -> Item:
        name, dtype = part.names[row], part[col.DTYPE][row]
        with located(item=name[:_SHOWN]):
            path, properties = _more(part, row)
        if not dtype:
            return ObjectItem(name, chunks[0].place, path)
        return TensorItem(name, self.rules.dtypes[dtype - 1], shape, chunks, path, properties)

    def _chunks(self, name: str, number: int, row: int) -> StoredChunks:
        part = self.part(number, 0)
        shape = tuple(part[col.SHAPE][part.shapes_at[row] : part.shapes_at[row + 1]].tolist())
        return StoredChunks(self, name, number, row, shape, int(part[col.COUNT][row]))

    def part_of(self, number: int, ordinal: int) -> int:
        """The part of a band that has the chunk of this ordinal."""
        return bisect_right(self.bands[number].parts, ordinal, key=lambda entry: entry.begin) - 1

    def some_chunks(self, part: IndexPart, begin: int, end: int, spans: Iterable[Box]) -> list[Chunk]:
        """Some chunks of a part, by where they are in it; `spans` are their offsets and shapes."""
        places = zip(
            [self._paths[file] for file in part[col.FILE][begin:end].tolist()],
            part[col.AT][begin:end].tolist(),
            part[col.BYTES][begin:end].tolist(),
            repeat(self.rules.descriptors),
            (part.value(col.SHA256, at) for at in range(begin, end)) if self.rules.hashed else repeat(None),
            part[col.NUMBER][begin:end].tolist() if self.rules.coded else repeat(None),
            repeat(None) if self.rules.coded else _crcs(part, begin, end),
        )
        framed = (part[col.KIND][begin:end] == Kind.FRAMED).tolist()
        made = zip(spans, map(Place._make, places), framed, strict=True)
        return [Chunk(offset, shape, place, framed) for (offset, shape), place, framed in made]


def _crcs(part: IndexPart, begin: int, end: int) -> Iterator[bytes]:
    ends = pairwise(part.crcs_at[begin : end + 1])
    return (bytes(part[col.CRCS][CRC_BYTES * one : CRC_BYTES * two]) for one, two in ends)


def _refuse(part: IndexPart, rows: Array, what: str) -> None:
    """Raise MetadataError for the first of some items, if there is one."""
    if rows.size:
        raise MetadataError(f"the metadata is malformed: {what}", item=part.names[rows[0]][:_SHOWN])


def _products(values: Array, counts: Array) -> Array:
    """The products of so many values each, as floats, which are exact below 2^53, and larger where the products are."""
    import numpy

    made, some = numpy.ones(counts.size), counts > 0
    if some.any():
        begins = numpy.cumsum(counts, dtype="i8") - counts
        with numpy.errstate(over="ignore", invalid="ignore"):  # of what is far too large
            made[some] = numpy.multiply.reduceat(values.astype("f8"), begins[some])
    return made


def _more(part: IndexPart, row: int) -> tuple[Path | None, dict[str, Any]]:
    """The path of an item, and properties of a tensor."""
    if not (text := part.texts[row]):
        return None, {}
    content = fields.loads(text, "what a part says of an item")
    fields.exact(content, set(), _TEXTS if part[col.DTYPE][row] else frozenset({"path"}), "an item")
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
        self._number = number
        self._row = row
        self.shape = shape
        self._count = count

    @cached_property
    def _all(self) -> tuple[Chunk, ...]:
        boxes, row, parts = self.check(), self._row, map(self._part, self._places)
        found = [(part, part.chunks_at[row], part.chunks_at[row + 1]) for part in parts]
        with collector_paused():
            spans = iter(boxes.spans())
            made = tuple(
                chunk
                for part, begin, end in found
                for chunk in self._table.some_chunks(part, begin, end, islice(spans, end - begin))
            )
        if len(made) > 1 and self._table.rules.coded:
            numbers = [(part[col.FILE][begin:end], part[col.NUMBER][begin:end]) for part, begin, end in found]
            with located(item=self._name[:_SHOWN]):
                self._table.check_numbers(numbers)
        return made

    def check(self) -> Boxes:
        """Check them as a whole; raises MetadataError. Returns where they are in the tensor."""
        table, places = self._table, self._places
        table.fetch(self._number, places.start, places.stop)
        with located(item=self._name[:_SHOWN]):
            boxes = self._boxes(places)
            (check_tiles if table.rules.rank is None else check_apart)(self.shape, boxes, table.work)
            if not boxes.rise():
                fields.bad("two chunks have the same offset, or they do not rise")
        return boxes

    def spans(self) -> list[Box]:
        """The offset and shape of each, checked as a whole, without a look at where they are stored."""
        return self.check().spans()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._all)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, int) or "_all" in vars(self) or not 0 <= key < self._count:
            return self._all[key]
        place = self._table.part_of(self._number, key)
        part = self._part(place)
        at = part.chunks_at[self._row] + key - part.begin
        offset, shape = map(tuple, self._box(place, key - part.begin))
        return self._table.some_chunks(part, at, at + 1, [(offset, shape)])[0]

    def __eq__(self, other: object) -> bool:
        return self._all == (other._all if isinstance(other, StoredChunks) else other)

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return f"<{self._count} chunks>"

    def overlapping(self, begins: Ints, ends: Ints) -> list[tuple[int, Span]] | None:
        """The numbers, offsets and shapes of those that reach into a box; None if it takes all to tell."""
        import numpy

        if not self._count or len(begins) != len(self.shape) or not self.shape or not all(map(lt, begins, ends)):
            return None
        places = self._near(begins[0], ends[0])
        offsets, sizes = self._boxes(places)
        reach = [
            (at < end) & (at + size > begin)
            for at, size, begin, end in zip(offsets.T, sizes.T, begins, ends, strict=True)
        ]
        inside = numpy.flatnonzero(numpy.logical_and.reduce(reach))
        found = Boxes(offsets[inside], sizes[inside])
        stops = found.offsets + found.sizes
        lower = numpy.maximum(found.offsets, begins)
        shared = Boxes(lower - begins, numpy.minimum(stops, ends) - lower)
        try:
            check_tiles([end - begin for begin, end in zip(begins, ends, strict=True)], shared)
        except MetadataError:
            return None  # not a grid: another chunk may reach into it
        if (stops > self.shape).any():
            return None
        numbers = inside + self._part(places.start).begin
        return [*zip(numbers.tolist(), found.spans(), strict=True)]

    # -- parts -------------------------------------------------------------------------------------------------

    @cached_property
    def _places(self) -> range:
        """The parts of the band that have some of these."""
        entries = self._table.bands[self._number].parts
        return range(max(bisect_left(entries, self._count, key=lambda entry: entry.begin), 1))

    def _part(self, place: int) -> IndexPart:
        return self._table.part(self._number, place)

    def _boxes(self, places: range) -> Boxes:
        """Those in some parts."""
        import numpy

        if (alike := self._table.alike(self._number, places)) is not None:
            return Boxes(alike.offsets[self._row], alike.sizes[self._row])
        parts, row = [*map(self._part, places)], self._row
        count = min(self._count, parts[-1].begin + int(parts[-1].here[row])) - parts[0].begin
        sides = (
            [part[column][part.numbers_at[row] : part.numbers_at[row + 1]] for part in parts]
            for column in (col.OFFSET, col.SIZES)
        )
        return Boxes(*(numpy.concatenate(side, dtype="i8").reshape(count, len(self.shape)) for side in sides))

    def _near(self, begin: int, end: int) -> range:
        """The parts with the chunks that reach into a span of the first dimension, if the tensor is cut along it as a
        whole: those before begin at the last place that is not behind it.
        """
        most, size = self._places.stop, max(self.shape[0], 1)
        place = self._table.part_of(self._number, min(begin * self._count // size, self._count - 1))
        stop = self._table.part_of(self._number, min(-(-end * self._count // size), self._count) - 1) + 1
        self._table.fetch(self._number, place, stop)
        while place and self._box(place, 0)[0][0] > begin:
            place -= 1
        while place + 1 < most and sum(axis[0] for axis in self._box(place, -1)) <= begin:
            place += 1
        starts = self._part(place)[col.OFFSET][self._numbers(place)][:: len(self.shape)]
        start = starts[max(starts.searchsorted(begin, "right") - 1, 0)]
        while place and (offset := self._box(place, 0)[0])[0] == start and any(offset[1:]):
            place -= 1
        stop = max(stop, place + 1)
        while stop < most and not self._ends_row(stop - 1, end):
            stop += 1
        return range(place, stop)

    def _ends_row(self, place: int, end: int) -> bool:
        """Whether the last chunk in a part is behind a place in the first dimension, or the last before it."""
        offset, sizes = self._box(place, -1)
        first, *others = map(add, offset, sizes)
        return offset[0] >= end or (first >= end and others == [*self.shape[1:]])

    def _box(self, place: int, which: int) -> tuple[list[int], list[int]]:
        """Offset and shape of a chunk in a part, counted from the first, or if it is negative from behind the last."""
        at, ndim = self._numbers(place), len(self.shape)
        begin = (at.start if which >= 0 else at.stop) + which * ndim
        offset, sizes = (self._part(place)[column][begin : begin + ndim] for column in (col.OFFSET, col.SIZES))
        return offset.tolist(), sizes.tolist()

    def _numbers(self, place: int) -> slice:
        part = self._part(place)
        return slice(part.numbers_at[self._row], part.numbers_at[self._row + 1])


class _Slabs:
    """Which tensors of a band are cut along the first dimension alone, and have all their chunks, or `some` of them;
    objects count, too. That is what most are, and it is found out for all of them at once.
    """

    def __init__(self, rows: int, some: bool) -> None:
        import numpy

        self._some = some
        self.good = numpy.full(rows, True)
        self._ends, self._seen, self._lengths = (numpy.zeros(rows, "i8") for _ in range(3))

    def add(self, part: IndexPart) -> None:
        """Take the next part; after the last, `good` says it."""
        import numpy

        ndim, here = part[col.NDIM], part.here
        self._seen += here
        self.good &= (ndim > 0) | (here <= 1)
        for dims in numpy.unique(ndim[(ndim > 0) & (here > 0)]).tolist():
            rows = numpy.flatnonzero((ndim == dims) & (here > 0))
            at, size = (_rows_of(part[column], part.numbers_at, rows, dims) for column in (col.OFFSET, col.SIZES))
            shape = _rows_of(part[col.SHAPE], part.shapes_at, rows, dims)
            each = numpy.repeat(numpy.arange(rows.size), here[rows])
            ends = at[:, 0] + size[:, 0]
            first = numpy.cumsum(here[rows]) - here[rows]
            before = numpy.concatenate([[0], ends[:-1]])
            before[first] = self._ends[rows]
            good = (at[:, 0] >= before) if self._some else (at[:, 0] == before)
            good &= (size[:, 0] > 0) & (at[:, 1:] == 0).all(axis=1)
            good &= (size[:, 1:] == shape[each, 1:]).all(axis=1) & (shape[each, 1:] > 0).all(axis=1)
            self.good[rows] &= numpy.logical_and.reduceat(good, first)
            self._ends[rows] = ends[first + here[rows] - 1]
            self._lengths[rows] = shape[:, 0]
        if part.stop is None:
            whole = self._ends <= self._lengths if self._some else self._ends == self._lengths
            self.good &= (self._seen == part[col.COUNT]) & (self._seen > 0) & whole


def _rows_of(values: Array, begins: list[int], rows: Array, width: int) -> Array:
    """The values of some items, in rows of so many."""
    import numpy

    spans = [slice(begins[row], begins[row + 1]) for row in rows.tolist()]
    picked = [values] if len(spans) == len(begins) - 1 else [values[span] for span in spans]
    return numpy.concatenate(picked, dtype="i8").reshape(-1, width)
