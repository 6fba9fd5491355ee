"""The chunks of an item of an index, read from its parts when they are asked for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from operator import add, lt, sub
from typing import Any, Self

from streamxf.buffers import collector_paused
from streamxf.cached import cached_property
from streamxf.errors import MetadataError
from streamxf.format import columns as col
from streamxf.format import fields
from streamxf.format.columns import Array, IndexPart
from streamxf.format.items import Chunk, Path
from streamxf.format.parts import ItemParts
from streamxf.format.tiling import Box, Boxes, Ints, check_apart, check_tiles

_SIDES = col.OFFSET, col.SIZES
_NEXT = 64  # items of a band that are compared with one, which are likely to have the same chunks
_ANSWERS, _KEPT = 16, 2**18  # boxes that were looked up, and about how many chunks in them together


class StoredChunks(Sequence[Chunk]):
    """The chunks of an item, read when they are asked for: all of them, and checked as a whole, or those that overlap a
    box, and whether they cover it.
    """

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
            (check_tiles if self._parts.rules.rank is None else check_apart)(self.shape, boxes, self._parts.work)
            if not boxes.rise():
                fields.bad("two chunks have the same offset, or they do not rise")

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
        import numpy

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

    # -- parts -------------------------------------------------------------------------------------------------

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
    import numpy

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
    import numpy

    if len(offsets) == 1:
        return bool((offsets[0] <= begins).all() and (stops[0] >= ends).all())
    lower = numpy.maximum(offsets, begins)
    try:
        check_tiles([*map(sub, ends, begins)], Boxes(lower - begins, numpy.minimum(stops, ends) - lower))
    except MetadataError:
        return False
    return True
