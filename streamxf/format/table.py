"""The items of an index by name. How chunks tile a tensor is checked where it is used, or by `ItemTable.check`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise

from streamxf.buffers import collector_paused
from streamxf.format import columns as col
from streamxf.format.chunks import StoredChunks
from streamxf.format.columns import Array, IndexPart
from streamxf.format.items import Item, ObjectItem, TensorItem
from streamxf.format.parts import ItemParts

_TOGETHER = 16  # parts that are asked for together where all are read


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
            for begin in range(0, len(band.parts), _TOGETHER):
                parts = self.parts.fetch(number, begin, min(begin + _TOGETHER, len(band.parts)))
                if not begin:  # it has as many items as the root says: that alone may be any number
                    slabs = _Slabs(parts[0].rows, self.parts.rules.rank is not None)
                for part in parts:
                    slabs.add(part)
                    if self.parts.rules.coded:
                        numbers.append((part[col.FILE].copy(), part[col.NUMBER].copy()))
            first = self.parts.part(number, 0)
            for row in range(first.rows) if paths else ():
                self.parts.more(number, row)
            for row in numpy.flatnonzero(~slabs.good).tolist():
                StoredChunks(self.parts, first.names[row], number, row, first).check()
        with self.parts.explained():
            self.parts.check_numbers(numbers)

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
        found = [(part.chunks_at, self.parts.some_chunks(part, 0, part.chunks, part.spans())) for part in parts]
        shapes = parts[0][col.SHAPE].tolist()
        for row, (begin, end) in enumerate(pairwise(parts[0].shapes_at)):
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
        self._ends, self._seen, self._lengths = (numpy.zeros(rows, "i8") for _ in range(3))

    def add(self, part: IndexPart) -> None:
        """Take the next part; after the last, `good` says it."""
        import numpy

        ndim, here = part[col.NDIM], part.here
        self._seen += here
        self.good &= (ndim > 0) | (self._seen <= 1)
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
            self.good &= (self._seen == part[col.COUNT]) & (self._seen > 0) & whole


def _rows_of(values: Array, begins: list[int], rows: Array, width: int) -> Array:
    """The values of some items, in rows of so many."""
    import numpy

    spans = [slice(begins[row], begins[row + 1]) for row in rows.tolist()]
    picked = [values] if len(spans) == len(begins) - 1 else [values[span] for span in spans]
    return numpy.concatenate(picked, dtype="i8").reshape(-1, width)
