"""The items of an index by name. How chunks tile a tensor is checked where it is used, or by `ItemTable.check`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate, groupby, pairwise

from streamxf.buffers import collector_paused
from streamxf.format import columns as col
from streamxf.format.chunks import StoredChunks, boxes_in
from streamxf.format.columns import Array, IndexPart
from streamxf.format.items import Item, ObjectItem, TensorItem
from streamxf.format.parts import ItemParts
from streamxf.format.tiling import Boxes

_TOGETHER = 2**22  # offsets and sizes of chunks that are compared, read from the parts of a band at once


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
        import numpy

        numbers = []
        for number, band in enumerate(self.parts.bands):
            slabs = _Slabs(self.parts.part(number, 0).rows, self.parts.rules.rank is not None)
            for part in self.parts.each(number):
                slabs.add(part)
                if self.parts.rules.coded:
                    numbers.append((part[col.FILE].copy(), part[col.NUMBER].copy()))
            for row in range(band.rows) if paths else ():
                self.parts.more(number, row)
            self._check_rows(number, numpy.flatnonzero(~slabs.good).tolist(), slabs.seen)
        with self.parts.explained():
            self.parts.check_numbers(numbers)

    def _check_rows(self, number: int, rows: list[int], counts: Array) -> None:
        """Check the chunks of some items of a band, of as many as may be in one pass through its parts."""
        import numpy

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
        import numpy

        self._some = some
        self.good = numpy.full(rows, True)
        self._ends, self.seen, self._lengths = (numpy.zeros(rows, "i8") for _ in range(3))

    def add(self, part: IndexPart) -> None:
        """Take the next part; after the last, `good` says it."""
        import numpy

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
    import numpy

    spans = [slice(begins[row], begins[row + 1]) for row in rows.tolist()]
    picked = [values] if len(spans) == len(begins) - 1 else [values[span] for span in spans]
    return numpy.concatenate(picked, dtype="i8").reshape(-1, width)
