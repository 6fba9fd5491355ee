"""The items of an index by name, and the parts that have them, read and checked when they are asked for.

How chunks tile a tensor is checked where it is used, or by `ItemTable.check`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, groupby, islice, pairwise, product, repeat
from operator import add, lt, sub
from typing import Any, NamedTuple, Self

from streamxf.budget import Steps
from streamxf.buffers import collector_paused
from streamxf.cached import cached_property
from streamxf.errors import MetadataError, StreamxfError, located
from streamxf.format import columns as col
from streamxf.format import limits
from streamxf.format.columns import SHOWN, Array, IndexPart, ItemRules, PartEntry
from streamxf.format.header import Kind
from streamxf.format.items import Chunk, Item, ObjectItem, Path, Place, TensorItem, beyond_limits
from streamxf.format.sections import array, bad, exact, integer, loads, mapping, string
from streamxf.format.tiling import Box, Boxes, Ints, check_apart, check_tiles, work_for
from streamxf.lazy import numpy, pattern

_REMEMBERED = 2**25, 2**27  # bytes that parts take in memory, at least and at most, if all are as large as the largest
_ROW = 256  # of these, about, for each item in a part
_AT_ONCE = 2**23  # bytes of parts, as they are stored, that are read in one request
_AT_MOST = 16  # parts that are read together where all are looked at, if they have no more bytes than that
_KEYS = pattern(rb'\{"path":\["[ !#-\[\]-~]*"(?:,"[ !#-\[\]-~]*")*\]\}')  # a path as most are, without escapes
_TWICE = "two items, or chunks, have one writer and number"
_TEXTS = frozenset({"path", "properties"})
_TOGETHER = 2**22  # offsets and sizes of chunks that are compared, read from the parts of a band at once
_SIDES = col.OFFSET, col.SIZES
_NEXT = 64  # items of a band that are compared with one, which are likely to have the same chunks
_ANSWERS, _KEPT = 16, 2**18  # boxes that were looked up, and about how many chunks in them together


class Band(NamedTuple):
    first: str
    last: str
    rows: int
    parts: tuple[PartEntry, ...]


class ItemParts:
    """The parts of all bands, by band and place there; for any thread, without a lock, which a fork could leave taken.

    - `files`: paths, and the size and writer of each, in the order in which chunks count them.
    - `read`: gives bytes of the parts, from a position, so many.
    """

    def __init__(
        self, rules: ItemRules, bands: Sequence[Band], files: Mapping[str, Any], read: Callable[[int, int], bytes]
    ) -> None:
        self.rules = rules
        self.bands = bands
        self._paths = [*files]
        self._read = read
        self.on_error: list[Callable[[Exception], None]] = []  # they add to an error, or raise what explains it
        self.beside: Any = None  # what reads from the same file, which stays open until both are gone
        self._known: OrderedDict[tuple[int, int], IndexPart] = OrderedDict()
        memory = min(max(32 * sum(part.size for band in bands for part in band.parts), _REMEMBERED[0]), _REMEMBERED[1])
        largest = max((part.raw + _ROW * band.rows for band in bands for part in band.parts), default=1)
        self._most = max(1, memory // largest)  # of these
        self.answers: dict[Any, tuple[list[int], list[tuple[int, Box]]]] = {}  # by what was asked, with whose they are
        self._heads: dict[int, IndexPart] = {}
        self.files = files
        self._owners: dict[tuple[bytes, int | None], tuple[Any, ...]] = {}  # the chunks that were given away
        self.tiled: set[tuple[int, int]] = set()  # band and row of items whose chunks were checked as a whole
        self._lately = 0.0  # how far behind the begin of its band the last part that was asked for is
        columns = col.ITEM_COLUMNS + col.INCREMENT_COLUMNS * rules.increment
        self._first = [column for column in columns if rules.signed or column is not col.FIRST_DIGEST]
        self._further = [column for column in self._first if column not in (col.MORE_ENDS, col.MORE)]

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # other threads may be at work on it

    @cached_property
    def work(self) -> Steps:
        """What may be spent on comparing chunks."""
        return work_for(sum(part.size for band in self.bands for part in band.parts))

    def part(self, number: int, place: int) -> IndexPart:
        """A part of a band."""
        return self._known.get((number, place)) or self.fetch(number, place, place + 1)[0]

    def head(self, number: int) -> IndexPart:
        """What all parts of a band say of its items, from any of them: the one that was needed of the band before."""
        parts = self.bands[number].parts
        return self._heads.get(number) or self.part(number, min(round(self._lately * len(parts)), len(parts) - 1))

    def fetch(self, number: int, begin: int, end: int) -> list[IndexPart]:
        """Parts of a band; what is not known is read in as few requests as may be."""
        entries, known = self.bands[number].parts, self._known
        found = {place: known.get((number, place)) for place in range(begin, end)}
        self._lately = begin / len(entries)
        missing = [place for place, part in found.items() if part is None]
        while missing:
            run = 1
            while run < len(missing) and missing[run] == missing[0] + run and run * entries[missing[0]].size < _AT_ONCE:
                run += 1
            first, last = entries[missing[0]], entries[missing[run - 1]]
            with self.explained():
                data = self._read(first.at, last.at + last.size - first.at)
                for place in missing[:run]:
                    at = entries[place].at - first.at
                    found[place] = self._taken(number, place, data[at : at + entries[place].size])
            missing = missing[run:]
        with suppress(KeyError):  # other threads make room, too
            while len(known) > self._most:
                known.popitem(last=False)
        return [part for part in found.values() if part is not None]

    def each(self, number: int, begin: int = 0, end: int | None = None) -> Iterator[IndexPart]:
        """Parts of a band one after the other, few of which are in memory at a time."""
        entries = self.bands[number].parts[:end]
        if len(entries) == begin + 1:  # as of most bands
            yield self.part(number, begin)
            return
        while begin < len(entries):
            sizes = accumulate(entry.raw for entry in entries[begin : begin + _AT_MOST])
            stop = begin + max(1, bisect_right([*sizes], _AT_ONCE))
            yield from self.fetch(number, begin, stop)
            begin = stop

    @contextmanager
    def explained(self, item: str | None = None) -> Iterator[None]:
        """Errors about this index say where they are: in which file, and in which item."""
        try:
            with located(item=None if item is None else item[:SHOWN]):
                yield
        except (StreamxfError, OSError) as error:
            for tell in self.on_error:
                tell(error)
            raise

    def _taken(self, number: int, place: int, data: bytes) -> IndexPart:
        band = self.bands[number]
        entry, stop = band.parts[place], band.parts[place + 1].begin if place + 1 < len(band.parts) else None
        columns = self._further if place else self._first
        part = IndexPart.parse(data, entry, columns, band.rows, stop, self.rules.coded)
        if (head := self._heads.get(number)) is not None:
            _check_same_items(head, part)
        else:
            if not part.names or (part.names[0], part.names[-1]) != (band.first, band.last):
                bad("a band has other items than the root says")
            self.rules.check_items(part)
        self.rules.check_chunks(part)
        if col.BENEATH.id in part.columns:
            self.rules.check_lower(part)
        if head is None and len(band.parts) > 1:
            made = IndexPart(part.rows, 0, columns={c.id: part[c].copy() for c in col.SAME_IN_BAND})
            _check_same_items(self._heads.setdefault(number, made), part)  # another thread's may have come first
        self._known[number, place] = part
        return part

    def more(self, number: int, row: int) -> tuple[Path | None, dict[str, Any]]:
        """The path of an item, and properties of a tensor."""
        part = self.part(number, 0)
        if not (text := part.texts[row]):
            return None, {}
        if _KEYS.fullmatch(text) and text.count(b'","') < limits.MAX_STEPS:
            return tuple(text[10:-3].decode().split('","')), {}
        with self.explained(part.names[row]):
            return _parsed(text, bool(part[col.DTYPE][row]))

    def part_of(self, number: int, ordinal: int) -> int:
        """The part of a band that has the chunk of this ordinal."""
        return bisect_right(self.bands[number].parts, ordinal, key=lambda entry: entry.begin) - 1

    def some_chunks(self, part: IndexPart, begin: int, end: int, spans: Iterable[Box]) -> list[Chunk]:
        """Some chunks of a part, by where they are in it; `spans` are their offsets and shapes."""
        descriptors: Iterable[Any] = repeat(self.rules.descriptors[0])
        numbers: Iterable[Any] = part.numbers_of[begin:end].tolist()
        crcs: Iterable[Any] = repeat(None)
        if len(self.rules.descriptors) > 1:
            chains = numpy.repeat(part[col.CHAIN], part.here)[begin:end].tolist()
            descriptors = [self.rules.descriptors[chain] for chain in chains]
        if not part.all_coded:
            crcs = [crc if number < 0 else None for number, crc in zip(numbers, part.crcs(begin, end), strict=True)]
            numbers = [None if number < 0 else number for number in numbers]
        places = zip(
            [self._paths[file] for file in part[col.FILE][begin:end].tolist()],
            part[col.AT][begin:end].tolist(),
            part[col.BYTES][begin:end].tolist(),
            descriptors,
            part[col.FIRST_DIGEST][begin:end].tolist() if self.rules.signed else repeat(None),
            numbers,
            crcs,
            part.beneath(begin, end, self._paths),
            part.spans_of_values(begin, end),
            strict=False,
        )
        framed = (part[col.KIND][begin:end] == Kind.FRAMED).tolist()
        made = zip(spans, map(Place._make, places), framed, strict=True)
        return [Chunk(offset, shape, place, framed) for (offset, shape), place, framed in made]

    def compare(self, name: str, chunks: Iterable[Chunk]) -> None:
        """Check that no other chunk that somebody was given has the writer and number of one of an item's."""
        for chunk in (chunk for chunk in chunks if chunk.place.number is not None):
            place, owner = chunk.place, (name, chunk.offset) if chunk.place.span is None else chunk.place[:3]
            key = self.files[place.file].writer, place.number
            if self._owners.setdefault(key, owner) != owner:
                bad(_TWICE)


class Numbers:
    """The numbers of all chunks in containers, part by part; `writers` are those of files, as chunks count these."""

    def __init__(self, writers: Iterable[bytes]) -> None:
        ids: dict[bytes, int] = {}
        self._by_file = numpy.array([ids.setdefault(writer, len(ids)) for writer in writers], "u4")
        self._found: list[tuple[Array, Array]] = []
        self._values: list[Array] = []

    def add(self, part: IndexPart) -> None:
        """Take note of a part, which need not stay."""
        files, numbers = part[col.FILE].copy() if part.all_coded else part[col.FILE][part.coded], part[col.NUMBER]
        if part[col.END].size:
            values = part[col.KIND][part.coded] == Kind.VALUE
            place = (part[column][part.coded][values] for column in (col.FILE, col.AT, col.BYTES))
            rows = self._by_file[files[values]], numbers[values], *place, part[col.BEGIN], part[col.END]
            self._values.append(numpy.array(rows, "i8"))
            files, numbers = files[~values], numbers[~values]
        self._found.append((files, numbers.copy()))

    def check(self) -> None:
        """Raises MetadataError."""
        if self._values:
            self._found.append(self._containers())
        if self._found and not self._distinct():
            bad(_TWICE)

    def _containers(self) -> tuple[Array, Array]:
        """The files and numbers of containers with values."""
        rows = numpy.concatenate(self._values, 1)
        rows = rows[:, numpy.lexsort((rows[5], rows[1], rows[0]))]
        same = (rows[:2, 1:] == rows[:2, :-1]).all(axis=0)
        if ((rows[2:5, 1:] != rows[2:5, :-1]).any(axis=0) & same).any():
            bad(_TWICE)
        if ((rows[5, 1:] < rows[6, :-1]) & same).any():
            bad("two values overlap in their stream")
        first = numpy.concatenate([[True], ~same])
        return rows[2, first], rows[1, first]

    def _distinct(self) -> bool:
        # numbers of honest writers have few gaps, so that a bit for each is enough
        most, total = numpy.zeros(self._by_file.size, "i8"), 0
        for files, numbers in self._found:
            numpy.maximum.at(most, self._by_file[files], numbers.astype("i8"))
            total += numbers.size
        begins = numpy.cumsum(most + 1) - most - 1
        if float(most.sum()) + most.size < 8 * total + 2**16:
            seen = numpy.zeros(int(most.sum()) + most.size, bool)
            for files, numbers in self._found:
                seen[begins[self._by_file[files]] + numbers] = True
            return int(numpy.count_nonzero(seen)) == total
        files, numbers = (numpy.concatenate(side, dtype="i8") for side in zip(*self._found, strict=True))
        writers = self._by_file[files]
        order = numpy.lexsort((numbers, writers))
        return not ((numpy.diff(writers[order]) == 0) & (numpy.diff(numbers[order]) == 0)).any()


def _check_same_items(head: IndexPart, part: IndexPart) -> None:
    pairs = ((head[column], part[column]) for column in col.SAME_IN_BAND)
    if any(one.tobytes() != two.tobytes() and not numpy.array_equal(one, two) for one, two in pairs):
        bad("parts of a band have other items")


def _parsed(text: bytes, is_tensor: bool) -> tuple[Path | None, dict[str, Any]]:
    content = loads(text, "what a part says of an item")
    exact(content, set(), _TEXTS if is_tensor else frozenset({"path"}), "an item")
    properties = mapping(content.get("properties", {}), "properties")
    for member, value in properties.items():
        string(member, "properties"), type(value) is bool or string(value, "properties")
    if "path" not in content:
        return None, properties
    steps = array(content["path"], "path")
    if not 1 <= len(steps) <= limits.MAX_STEPS:
        bad("path")
    most = limits.MAX_STEP
    return tuple(
        string(step, "path") if type(step) is str else integer(step, "path", most) for step in steps
    ), properties


class ItemTable(Mapping[str, Item]):
    """Items by name, in the order of names."""

    def __init__(self, parts: ItemParts) -> None:
        self.parts = parts
        self._lasts = [band.last for band in parts.bands]
        self._recent: tuple[str, Item] | None = None  # who asks for chunks one by one gets one item, which keeps them

    def __len__(self) -> int:
        return sum(band.rows for band in self.parts.bands)

    def __iter__(self) -> Iterator[str]:
        for number in range(len(self.parts.bands)):
            yield from self.parts.head(number).names

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __getitem__(self, name: str) -> Item:
        if (recent := self._recent) is not None and recent[0] == name:
            return recent[1]
        if (found := self._find(name)) is None:
            raise KeyError(name)
        with collector_paused():
            made = self._item(name, *found)
        self._recent = name, made
        return made

    @collector_paused()
    def whole(self) -> dict[str, Item]:
        """All items, read and checked at once, and compared with each other."""
        return {item.name: item for item in self.each()}

    def each(self) -> Iterator[Item]:
        """All items, checked and compared with each other before the first; a band of them is in memory at a time."""
        self.check(paths=False)
        for number in range(len(self.parts.bands)):
            yield from self._items(number)

    def check(self, *, paths: bool = True) -> None:
        """Check every item, and compare them with each other; raises MetadataError if readers would refuse one. `paths`
        and properties are checked wherever an item is made, too.
        """
        numbers = Numbers(file.writer for file in self.parts.files.values())
        for number, band in enumerate(self.parts.bands):
            slabs = _Slabs(self.parts.part(number, 0).rows, self.parts.rules.rank is not None)
            for part in self.parts.each(number):
                slabs.add(part)
                numbers.add(part)
            for row in range(band.rows) if paths else ():
                self.parts.more(number, row)
            self._check_rows(number, numpy.flatnonzero(~slabs.good).tolist(), slabs.seen)
        with self.parts.explained():
            numbers.check()

    def _check_rows(self, number: int, rows: list[int], counts: Array) -> None:
        """Check the chunks of some items of a band, of as many as may be in one pass through its parts."""
        head = self.parts.head(number)
        sizes = accumulate(int(counts[row]) * max(1, int(head[col.NDIM][row])) for row in rows)
        for _, some in groupby(zip(rows, sizes, strict=True), lambda each: each[1] // _TOGETHER):
            last: tuple[tuple[int, ...], Boxes] | None = None
            for row, boxes in boxes_in(self.parts.each(number), {row: head.shape(row) for row, _ in some}):
                chunks = StoredChunks(self.parts, head.names[row], number, row, head)
                if last is None or last[0] != chunks.shape or not all(map(numpy.array_equal, last[1], boxes)):
                    chunks.check(boxes)
                last = chunks.shape, boxes

    def _find(self, name: str) -> tuple[int, int] | None:
        """The band and the row of an item."""
        number = bisect_left(self._lasts, name)
        if number == len(self.parts.bands) or name < self.parts.bands[number].first:
            return None
        names = self.parts.head(number).names
        row = bisect_left(names, name)
        return (number, row) if row < len(names) and names[row] == name else None

    def _items(self, number: int) -> Iterator[Item]:
        """The items of a band with all their chunks, once they are checked."""
        parts = self.parts.fetch(number, 0, len(self.parts.bands[number].parts))
        found = [
            (part.chunks_at.tolist(), self.parts.some_chunks(part, 0, part.chunks, part.spans())) for part in parts
        ]
        shapes = parts[0][col.SHAPE].tolist()
        for row, (begin, end) in enumerate(pairwise(parts[0].shapes_at.tolist())):
            chunks = tuple(chunk for at, made in found for chunk in made[at[row] : at[row + 1]])
            name, dtype = parts[0].names[row], parts[0][col.DTYPE][row]
            path, properties = self.parts.more(number, row)
            if dtype:
                shape = tuple(shapes[begin:end])
                yield TensorItem(name, self.parts.rules.dtypes[dtype - 1], shape, chunks, path, properties)
            else:
                yield ObjectItem(name, chunks[0].place, path)

    def _item(self, name: str, number: int, row: int) -> Item:
        head = self.parts.head(number)
        chunks, dtype = StoredChunks(self.parts, name, number, row, head), head[col.DTYPE][row]
        if not dtype:
            return ObjectItem(name, chunks[0].place, self.parts.more(number, row)[0])
        return TensorItem.stored(name, self.parts.rules.dtypes[dtype - 1], chunks)


class _Slabs:
    """Which tensors of a band are cut along the first dimension alone, and have all their chunks, or `some` of them;
    objects count, too. That is what most are, and it is found out for all of them at once.
    """

    def __init__(self, rows: int, some: bool) -> None:
        self._some = some
        self.good = numpy.full(rows, True)
        self._ends, self.seen, self._lengths = (numpy.zeros(rows, "i8") for _ in range(3))

    def add(self, part: IndexPart) -> None:
        """Take the next part; after the last, `good` says it."""
        ndim, here = part[col.NDIM], part.here
        self.seen += here
        self.good &= (ndim > 0) | (self.seen <= 1)
        for dims in sorted({*ndim[(ndim > 0) & (here > 0)].tolist()}):
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
            self.good &= (self.seen == part[col.COUNT]) & (self.seen > 0) & whole


def _rows_of(values: Array, begins: Array, rows: Array, width: int) -> Array:
    """The values of some items, in rows of so many."""
    spans = [slice(begins[row], begins[row + 1]) for row in rows.tolist()]
    picked = [values] if len(spans) == len(begins) - 1 else [values[span] for span in spans]
    return numpy.concatenate(picked, dtype="i8").reshape(-1, width)


class StoredChunks(Sequence[Chunk]):
    """The chunks of an item, read when asked for: all, checked as a whole, or those in a box, which they may cover."""

    def __init__(self, parts: ItemParts, name: str, number: int, row: int, head: IndexPart) -> None:
        self._parts = parts
        self._name = name
        self._number = number
        self._row = row
        self.shape = head.shape(row)
        self._count = int(head[col.COUNT][row])

    @cached_property
    def _all(self) -> tuple[Chunk, ...]:
        spans = iter(self.spans())
        with collector_paused():
            made = tuple(
                chunk
                for part in self._each()
                for begin, end in [part.chunks_at[self._row : self._row + 2].tolist()]
                for chunk in self._parts.some_chunks(part, begin, end, islice(spans, end - begin))
            )
        with self._parts.explained(self._name):
            self._parts.compare(self._name, made)
        return made

    def check(self, boxes: Boxes) -> None:
        """Check where they are in the tensor, all of them; raises MetadataError."""
        with self._parts.explained(self._name):
            if text := beyond_limits(self.shape):
                raise MetadataError(text)
            (check_tiles if self._parts.rules.rank is None else check_apart)(self.shape, boxes, self._parts.work)
            if not boxes.rise():
                bad("two chunks have the same offset, or they do not rise")

    def spans(self) -> list[Box]:
        """The offset and shape of each, checked as a whole, without a look at where they are stored."""
        boxes, tiled = self._boxes(self._each()), self._parts.tiled
        if (self._number, self._row) not in tiled:
            self.check(boxes)
            rows = self._alike(self._each()) if tiled else [self._row]  # who asks for one may want no other
            tiled.update((self._number, row) for row in rows)
        return boxes.spans()

    def more(self) -> tuple[Path | None, dict[str, Any]]:
        """The item's path and properties."""
        return self._parts.more(self._number, self._row)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._all)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, int) or "_all" in vars(self) or not 0 <= key < self._count:
            return self._all[key]
        place = self._parts.part_of(self._number, key)
        part = self._part(place)
        at = int(part.chunks_at[self._row]) + key - part.begin
        offset, shape = map(tuple, self._box(place, key - part.begin))
        made = self._parts.some_chunks(part, at, at + 1, [(offset, shape)])
        with self._parts.explained(self._name):
            self._parts.compare(self._name, made)
        return made[0]

    def __eq__(self, other: object) -> bool:
        return self._all == (other._all if isinstance(other, StoredChunks) else other)

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return f"<{self._count} chunks>"

    def __reduce__(self) -> Any:
        return tuple, (self._all,)

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def overlapping(self, begins: Ints, ends: Ints) -> list[tuple[int, Box]] | None:
        """The numbers, offsets and shapes of those that reach into a box; None if it takes all to tell."""
        if not self._count or len(begins) != len(self.shape) or not self.shape or not all(map(lt, begins, ends)):
            return None
        places = self._near(max(begins[0], 0), ends[0])
        answers, asked = self._parts.answers, (self._number, places, self.shape, tuple(begins), tuple(ends))
        if (known := answers.get(asked)) is not None and self._row in known[0]:
            return known[1]
        parts = self._parts.fetch(self._number, places.start, places.stop)
        offsets, sizes = self._boxes(parts)
        reach = [
            (at < end) & (at + size > begin)
            for at, size, begin, end in zip(offsets.T, sizes.T, begins, ends, strict=True)
        ]
        inside = numpy.flatnonzero(numpy.logical_and.reduce(reach))
        found = Boxes(offsets[inside], sizes[inside])
        stops = found.offsets + found.sizes
        if (stops > self.shape).any() or not _cover(begins, ends, found.offsets, stops):
            return None  # not a grid: another chunk may reach into it
        made = [*zip((inside + parts[0].begin).tolist(), found.spans(), strict=True)]
        if len(answers) * max(len(made), _KEPT // _ANSWERS) >= _KEPT:
            answers.clear()
        answers[asked] = self._alike(parts), made
        return made

    @cached_property
    def _places(self) -> range:
        """The parts of the band that have some of these."""
        entries = self._parts.bands[self._number].parts
        return range(max(bisect_left(entries, self._count, key=lambda entry: entry.begin), 1))

    def _part(self, place: int) -> IndexPart:
        return self._parts.part(self._number, place)

    def _each(self) -> Iterator[IndexPart]:
        return self._parts.each(self._number, 0, self._places.stop)

    def _boxes(self, parts: Iterable[IndexPart]) -> Boxes:
        """Those in some parts."""
        return next(boxes_in(parts, {self._row: self.shape}))[1]

    def _alike(self, parts: Iterable[IndexPart]) -> list[int]:
        """This item and those of the next few in its band that have its shape, and in some parts the same chunks."""
        head = self._parts.head(self._number)
        rows = [*range(self._row, min(self._row + _NEXT, head.rows))]
        rows = [row for row in rows if (head.shape(row), head[col.COUNT][row]) == (self.shape, self._count)]
        for part, column in product(parts if len(rows) > 1 else (), _SIDES):
            own = part.numbers(column, self._row).tobytes()
            rows = [row for row in rows if part.numbers(column, row).tobytes() == own]
        return rows

    def _near(self, begin: int, end: int) -> range:
        """The parts with the chunks that reach into a span of the first dimension, if the tensor is cut along it as a
        whole: those before begin at the last place that is not behind it.
        """
        most, size = self._places.stop, max(self.shape[0], 1)
        place = self._parts.part_of(self._number, min(begin * self._count // size, self._count - 1))
        stop = self._parts.part_of(self._number, min(-(-end * self._count // size), self._count) - 1) + 1
        self._parts.fetch(self._number, place, stop)
        while place and self._box(place, 0)[0][0] > begin:
            place -= 1
        while place + 1 < most and sum(axis[0] for axis in self._box(place, -1)) <= begin:
            place += 1
        starts = self._part(place).numbers(col.OFFSET, self._row)[:: len(self.shape)]
        start = starts[max(bisect_right(starts, begin) - 1, 0)]
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
        part, ndim = self._part(place), len(self.shape)
        begin = int(part.numbers_at[self._row + (which < 0)]) + which * ndim
        return part[col.OFFSET][begin : begin + ndim].tolist(), part[col.SIZES][begin : begin + ndim].tolist()


def boxes_in(parts: Iterable[IndexPart], shapes: Mapping[int, tuple[int, ...]]) -> Iterator[tuple[int, Boxes]]:
    """The chunks of some items of a band, given by row, in some of its parts."""
    counts, found = dict.fromkeys(shapes, 0), {row: tuple([numpy.zeros(0, "u1")] for _ in _SIDES) for row in shapes}
    for part in parts:
        for row in shapes if part.chunks else ():
            counts[row] += int(part.here[row])
            for side, column in zip(found[row], _SIDES, strict=True):
                side.append(part.numbers(column, row).copy())  # without the part, which need not stay
    for row, shape in shapes.items():
        sides = (numpy.concatenate(side, dtype="i8") for side in found.pop(row))
        yield row, Boxes(*(side.reshape(counts[row], len(shape)) for side in sides))


def _cover(begins: Ints, ends: Ints, offsets: Array, stops: Array) -> bool:
    """Whether the chunks that reach into a box tile it."""
    if len(offsets) == 1:
        return bool((offsets[0] <= begins).all() and (stops[0] >= ends).all())
    lower = numpy.maximum(offsets, begins)
    try:
        check_tiles([*map(sub, ends, begins)], Boxes(lower - begins, numpy.minimum(stops, ends) - lower))
    except MetadataError:
        return False
    return True
