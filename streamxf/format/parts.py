"""Parts of an index that have items, read when they are asked for.

What a part says of items and chunks is checked when it is read, as columns: no chunk becomes an object unasked.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise, repeat
from typing import Any, NamedTuple, Self

from streamxf.budget import Steps
from streamxf.cached import cached_property
from streamxf.errors import MetadataError, StreamxfError, located
from streamxf.format import columns as col
from streamxf.format import fields, limits
from streamxf.format.bare import CRC_BYTES
from streamxf.format.columns import Array, IndexPart, PartEntry
from streamxf.format.header import Kind
from streamxf.format.items import ITEMSIZES, Chunk, Path, Place
from streamxf.format.tiling import Box, work_for

SHOWN = 200  # characters of a name, in errors
_REMEMBERED = 2**25, 2**27  # bytes that parts take in memory, at least and at most
_ROW = 256  # of these, about, for each item in a part
_AT_ONCE = 2**23  # bytes of parts, as they are stored, that are read in one request
_TOGETHER = 16  # parts that are read together where all are looked at, if they have no more bytes than that
_KEYS = re.compile(rb'\{"path":\["[ !#-\[\]-~]*"(?:,"[ !#-\[\]-~]*")*\]\}')  # a path as most are, without escapes
_TWICE = "two items, or chunks, have one writer and number"
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


class ItemParts:
    """The parts of all bands, by band and place there; for any thread, without a lock, which a fork could leave taken.

    - `files`: paths, and the size and writer of each, in the order in which chunks count them.
    - `read`: gives bytes of the parts, from a position, so many.
    """

    def __init__(
        self, rules: ItemRules, bands: Sequence[Band], files: Mapping[str, Any], read: Callable[[int, int], bytes]
    ) -> None:
        import numpy

        self.rules = rules
        self.bands = bands
        self._paths = [*files]
        self._sizes = numpy.array([file.size for file in files.values()], "i8")
        self._itemsizes = numpy.array([0, *(ITEMSIZES.get(dtype, 0) for dtype in rules.dtypes)])
        self._read = read
        self.on_error: list[Callable[[Exception], None]] = []  # they add to an error, or raise what explains it
        self._known: OrderedDict[tuple[int, int], IndexPart] = OrderedDict()
        self._memory, self._fetches = 0, 0  # about what these take; how often some came since that was counted
        stored = sum(part.size for band in bands for part in band.parts)
        self._most = min(max(limits.PART_EXPANSION * stored, _REMEMBERED[0]), _REMEMBERED[1])
        self.answers: dict[Any, tuple[list[int], list[tuple[int, Box]]]] = {}  # by what was asked, with whose they are
        self._heads: dict[int, IndexPart] = {}
        self._files = files
        self._owners: dict[tuple[bytes, int | None], tuple[str, Any]] = {}  # the chunks that were given away
        self.tiled: set[tuple[int, int]] = set()  # band and row of items whose chunks were checked as a whole
        self._lately = 0.0  # how far behind the begin of its band the last part that was asked for is
        without = col.CRCS if rules.coded else col.NUMBER
        columns = [column for column in col.ITEM_COLUMNS if column is not without]
        self._first = [column for column in columns if rules.hashed or column is not col.SHA256]
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
        makes_room = bool(missing)
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
        self._fetches += makes_room
        if self._fetches > len(known):  # threads at once may miscount
            self._memory, self._fetches = sum(self._bytes_of(at, part) for at, part in [*known.items()]), 0
        with suppress(KeyError):  # other threads make room, too
            while makes_room and len(known) > 1 and self._memory > self._most:
                freed = self._bytes_of(*known.popitem(last=False))
                self._memory -= freed
        return [part for part in found.values() if part is not None]

    def _bytes_of(self, at: tuple[int, int], part: IndexPart) -> int:
        """About what a known part takes."""
        return self.bands[at[0]].parts[at[1]].raw + _ROW * part.rows

    def each(self, number: int, begin: int = 0, end: int | None = None) -> Iterator[IndexPart]:
        """Parts of a band one after the other, few of which are in memory at a time."""
        entries = self.bands[number].parts[:end]
        if len(entries) == begin + 1:  # as of most bands
            yield self.part(number, begin)
            return
        while begin < len(entries):
            sizes = accumulate(entry.raw for entry in entries[begin : begin + _TOGETHER])
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
        part = IndexPart.parse(data, entry, self._further if place else self._first, band.rows, stop)
        if (head := self._heads.get(number)) is not None:
            _check_same_items(head, part)
        else:
            if not part.names or (part.names[0], part.names[-1]) != (band.first, band.last):
                fields.bad("a band has other items than the root says")
            self._check_items(part)
        self._check_chunks(part)
        if head is None and len(band.parts) > 1:
            made = IndexPart(part.rows, 0, columns={c.id: part[c].copy() for c in col.SAME_IN_BAND})
            _check_same_items(self._heads.setdefault(number, made), part)  # another thread's may have come first
        if (number, place) not in self._known:
            self._memory += self._bytes_of((number, place), part)
        self._known[number, place] = part
        return part

    def _check_items(self, part: IndexPart) -> None:
        import numpy

        dtype, ndim, count = (part[column] for column in (col.DTYPE, col.NDIM, col.COUNT))
        elements = _products(part[col.SHAPE].clip(1), ndim)
        for what, wrong in (
            ("a dtype that there is not", dtype >= self._itemsizes.size),
            ("a shape, or several chunks, and is an object", (dtype == 0) & ((ndim > 0) | (count != 1))),
            ("several chunks, and no dimensions", (ndim == 0) & (count > 1)),
            ("more elements than a tensor can have", elements > limits.MAX_NUMBER),
        ):
            _refuse(part, numpy.flatnonzero(wrong), f"it has {what}")

    def _is_usual(self, part: IndexPart) -> bool:
        """Whether all chunks are tensors' elements in containers, and extremes show that they are within their files.
        That is what most are, and needs no look at single ones.
        """
        if not (self.rules.coded and not self.rules.framed and part.chunks and self._itemsizes[part[col.DTYPE]].all()):
            return False
        files, kinds = part[col.FILE], part[col.KIND]
        first, last = files.min(), files.max()
        if last >= self._sizes.size or not kinds.min() == kinds.max() == Kind.TENSOR:
            return False
        return bool(int(part[col.AT].max()) + int(part[col.BYTES].max()) <= self._sizes[first : int(last) + 1].min())

    def _check_chunks(self, part: IndexPart) -> None:
        import numpy

        if self._is_usual(part):
            return
        files, sizes, kinds = part[col.FILE], part[col.BYTES], part[col.KIND]
        dtype, width = part[col.DTYPE], self._itemsizes.take(part[col.DTYPE])  # of items; what follows is of chunks
        of_items = dtype == 0, (width > 0) & (not self.rules.framed), width
        objects, plain, widths = (numpy.repeat(each, part.here) for each in of_items)
        tensors = kinds == Kind.TENSOR
        known = numpy.where(objects, kinds == Kind.OBJECT, (plain & tensors) | (kinds == Kind.FRAMED))
        _refuse_chunk(part, files >= self._sizes.size, "a chunk is in a file that there is not")
        ends = numpy.add(part[col.AT], sizes, dtype="i8")
        _refuse_chunk(part, ends > self._sizes.take(files), "it reaches beyond the end of its file")
        _refuse_chunk(part, ~known, "a chunk has a kind that it cannot have")
        if not self.rules.coded:
            elements = _products(part[col.SIZES], numpy.repeat(part[col.NDIM], part.here))
            other = tensors & (elements * widths != sizes)
            _refuse_chunk(part, other, "a raw tensor has other bytes than its elements")

    def more(self, number: int, row: int) -> tuple[Path | None, dict[str, Any]]:
        """The path of an item, and properties of a tensor."""
        part = self.part(number, 0)
        if not (text := part.texts[row]):
            return None, {}
        if _KEYS.fullmatch(text) and text.count(b'","') < limits.MAX_STEPS:
            return tuple(text[10:-3].decode().split('","')), {}
        with self.explained(part.names[row]):
            return _more(text, bool(part[col.DTYPE][row]))

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

    def compare(self, name: str, chunks: Iterable[Chunk]) -> None:
        """Check that no other chunk that somebody was given has the writer and number of one of an item's."""
        for chunk in chunks if self.rules.coded else ():
            key, owner = (self._files[chunk.place.file].writer, chunk.place.number), (name, chunk.offset)
            if self._owners.setdefault(key, owner) != owner:
                fields.bad(_TWICE)

    def check_numbers(self, found: Sequence[tuple[Array, Array]]) -> None:
        """Check that no two chunks, given by files and numbers, have one writer and number."""
        import numpy

        if not found:
            return
        ids: dict[bytes, int] = {}
        by_file = numpy.array([ids.setdefault(file.writer, len(ids)) for file in self._files.values()], "u4")
        # numbers of honest writers have few gaps, so that a bit for each is enough
        most, total = numpy.zeros(by_file.size, "i8"), 0
        for files, numbers in found:
            numpy.maximum.at(most, by_file[files], numbers.astype("i8"))
            total += numbers.size
        begins = numpy.cumsum(most + 1) - most - 1
        if float(most.sum()) + most.size < 8 * total + 2**16:
            seen = numpy.zeros(int(most.sum()) + most.size, bool)
            for files, numbers in found:
                seen[begins[by_file[files]] + numbers] = True
            distinct = int(numpy.count_nonzero(seen)) == total
        else:
            files, numbers = (numpy.concatenate(side, dtype="i8") for side in zip(*found, strict=True))
            writers = by_file[files]
            order = numpy.lexsort((numbers, writers))
            distinct = not ((numpy.diff(writers[order]) == 0) & (numpy.diff(numbers[order]) == 0)).any()
        if not distinct:
            fields.bad(_TWICE)


def _crcs(part: IndexPart, begin: int, end: int) -> Iterator[bytes]:
    ends = pairwise(part.crcs_at[begin : end + 1].tolist())
    return (bytes(part[col.CRCS][CRC_BYTES * one : CRC_BYTES * two]) for one, two in ends)


def _check_same_items(head: IndexPart, part: IndexPart) -> None:
    import numpy

    pairs = ((head[column], part[column]) for column in col.SAME_IN_BAND)
    if any(one.tobytes() != two.tobytes() and not numpy.array_equal(one, two) for one, two in pairs):
        fields.bad("parts of a band have other items")


def _refuse_chunk(part: IndexPart, wrong: Array, what: str) -> None:
    import numpy

    if wrong.any():
        _refuse(part, numpy.repeat(numpy.arange(part.rows), part.here)[wrong], what)


def _refuse(part: IndexPart, rows: Array, what: str) -> None:
    """Raise MetadataError for the first of some items, if there is one."""
    if rows.size:
        raise MetadataError(f"the metadata is malformed: {what}", item=part.names[rows[0]][:SHOWN])


def _products(values: Array, counts: Array) -> Array:
    """The products of so many values each, as floats, which are exact below 2^53, and larger where the products are."""
    import numpy

    made, some = numpy.ones(counts.size), counts > 0
    if some.any():
        begins = numpy.cumsum(counts, dtype="i8") - counts
        with numpy.errstate(over="ignore", invalid="ignore"):  # of what is far too large
            made[some] = numpy.multiply.reduceat(values.astype("f8"), begins[some])
    return made


def _more(text: bytes, is_tensor: bool) -> tuple[Path | None, dict[str, Any]]:
    content = fields.loads(text, "what a part says of an item")
    fields.exact(content, set(), _TEXTS if is_tensor else frozenset({"path"}), "an item")
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
