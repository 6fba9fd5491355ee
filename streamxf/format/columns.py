"""A part of an index: columns of integers and bytes for files, or chunks of items; docs/format.md, "Parts".

`FILE_COLUMNS` and `ITEM_COLUMNS` declare all columns: a new one is a line there, with a rule for how many values it
has. What a part says of each file, item or column is checked when it is read, without a look at single chunks.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise, repeat
from operator import attrgetter
from typing import Any, NamedTuple

from streamxf.cached import cached_property
from streamxf.codecs import zstd
from streamxf.errors import CodecError, MetadataError
from streamxf.format import limits
from streamxf.format.bare import CRC_BYTES, pieces_of
from streamxf.format.header import Kind
from streamxf.format.items import stored_width
from streamxf.format.sections import bad, count_marks
from streamxf.format.tiling import Box
from streamxf.lazy import numpy

SHOWN = 200  # characters of a name, in errors
_HEAD = struct.Struct("<4sIII")
_ENTRY = struct.Struct("<BBHI")
_WIDTHS = 1, 2, 4, 8
_NO_VALUE = "a value has no bytes, or too many"
_IGNORED = 128  # ids from here on

Array = Any  # numpy's


@dataclass(frozen=True, slots=True)
class Column:
    """What a part has of each file, item or chunk.

    - `width`: bytes of a value; 0 for integers.
    - `count`: the number of values, from the columns before.
    - `ends`: whether they are where strings end, in the column behind.
    """

    id: int
    width: int
    count: Callable[[IndexPart], int] = field(compare=False)
    ends: bool = False


_rows, _chunks = attrgetter("rows"), attrgetter("chunks")  # of a part


def _last(ends: Column) -> Callable[[IndexPart], int]:
    return lambda part: int(part[ends][-1]) if part[ends].size else 0


PATH_ENDS = Column(32, 0, _rows, ends=True)
PATHS = Column(33, 1, _last(PATH_ENDS))
FILE_SIZE = Column(34, 0, _rows)
WRITER = Column(35, limits.WRITER_ID_BYTES, _rows)
KEY = Column(36, limits.WRAPPED_KEY_BYTES, _rows)
FILE_COLUMNS = (PATH_ENDS, PATHS, FILE_SIZE, WRITER, KEY)
_PATHS = PATH_ENDS, PATHS, limits.MAX_PATH

NAME_ENDS = Column(1, 0, _rows, ends=True)
NAMES = Column(2, 1, _last(NAME_ENDS))
MORE_ENDS = Column(3, 0, _rows, ends=True)
MORE = Column(4, 1, _last(MORE_ENDS))
DTYPE = Column(5, 0, _rows)
NDIM = Column(6, 0, _rows)
SHAPE = Column(7, 0, lambda part: part.shapes_at[-1])
COUNT = Column(8, 0, _rows)
CHAIN = Column(9, 0, _rows)
OFFSET = Column(10, 0, lambda part: part.numbers_at[-1])
SIZES = Column(11, 0, lambda part: part.numbers_at[-1])
KIND = Column(12, 0, _chunks)
FILE = Column(13, 0, _chunks)
AT = Column(14, 0, _chunks)
BYTES = Column(15, 0, _chunks)
NUMBER = Column(16, 0, lambda part: part.chunks_at[-1] if part.all_coded else int(numpy.count_nonzero(part.coded)))
FIRST_DIGEST = Column(17, 0, _chunks)
CRCS = Column(18, CRC_BYTES, lambda part: 0 if part.all_coded else part.crcs_at[-1])
BEGIN = Column(19, 0, lambda part: part.values_at[-1] if (part[KIND] == Kind.VALUE).any() else 0)
END = Column(20, 0, BEGIN.count)
BENEATH = Column(21, 0, _chunks)
LOWER = Column(22, 0, lambda part: 3 * int(part[BENEATH].sum(dtype="i8")))  # file, at and bytes of each
INCREMENT_COLUMNS = BENEATH, LOWER
ITEM_COLUMNS = (
    *(NAME_ENDS, NAMES, MORE_ENDS, MORE, DTYPE, NDIM, SHAPE, COUNT, CHAIN),
    *(OFFSET, SIZES, KIND, FILE, AT, BYTES, NUMBER, FIRST_DIGEST, CRCS, BEGIN, END),
)
SAME_IN_BAND = (NAME_ENDS, NAMES, DTYPE, NDIM, SHAPE, COUNT, CHAIN)
DIGEST = Column(40, limits.DIGEST_BYTES, _rows)


class PartEntry(NamedTuple):
    """What the root says of a part: `begin` is the ordinal of its first file or chunk, `at` where it is among parts."""

    begin: int
    at: int
    size: int
    raw: int
    sha256: bytes

    def check(self, data: bytes) -> None:
        """Raise MetadataError unless these are the part's bytes."""
        if hashlib.sha256(data).digest() != self.sha256:
            bad("the digest of a part does not match: the file is damaged")


@dataclass(eq=False)
class IndexPart:
    """A part that was read: `rows` files, or items with `chunks` chunks from the `begin`-th of each to the `stop`-th;
    None for all. Columns are arrays: of integers, or of the bytes that they have. `chains` says of each chain whether
    its items are in containers.
    """

    rows: int
    chunks: int
    begin: int = 0
    stop: int | None = None
    chains: Array = None
    columns: dict[int, Array] = field(default_factory=dict)

    def __getitem__(self, column: Column) -> Array:
        return self.columns[column.id]

    @cached_property
    def here(self) -> Array:
        """How many chunks of each item are here; of more than there are in all one more, so that no sum overflows."""
        stop = limits.MAX_NUMBER if self.stop is None else self.stop
        return (self[COUNT].astype("i8").clip(0, stop) - self.begin).clip(0, self.chunks + 1)

    @cached_property
    def chunks_at(self) -> Array:
        """Where the chunks of each item begin, and where those of the last one end."""
        return _sums(self.here)

    @cached_property
    def numbers_at(self) -> Array:
        """The same where each chunk has a number for each dimension."""
        return _sums(self[NDIM] * self.here)

    @cached_property
    def coded(self) -> Array:
        """Whether each chunk is in a container."""
        return numpy.repeat(self.chains[self[CHAIN]], self.here)

    @cached_property
    def all_coded(self) -> bool:
        return bool(self.chains[self[CHAIN]][self.here > 0].all())

    @cached_property
    def crcs_at(self) -> Array:
        """The same where each chunk without a container has a CRC for each piece."""
        return _sums(pieces_of(self[BYTES].astype("i8")) * ~self.coded)

    @cached_property
    def numbers_of(self) -> Array:
        """That of each chunk in its container; -1 without one."""
        if self.all_coded:
            return self[NUMBER]
        made = numpy.full(self.chunks, -1, "i8")
        made[self.coded] = self[NUMBER]
        return made

    @cached_property
    def values_at(self) -> Array:
        """The same where each chunk that is a value in a container has a place in its stream."""
        return _sums((self[KIND] == Kind.VALUE) & self.coded)

    @cached_property
    def shapes_at(self) -> Array:
        return _sums(self[NDIM])

    def shape(self, row: int) -> tuple[int, ...]:
        return tuple(self[SHAPE][self.shapes_at[row] : self.shapes_at[row + 1]].tolist())

    def numbers(self, column: Column, row: int) -> Array:
        """Offsets or sizes of an item's chunks, one after the other."""
        return self[column][self.numbers_at[row] : self.numbers_at[row + 1]]

    @cached_property
    def texts(self) -> list[bytes]:
        """What else there is to say of each item."""
        return self._texts(MORE_ENDS, MORE)

    def _texts(self, ends: Column, column: Column) -> list[bytes]:
        data = bytes(self[column])
        return [data[begin:end] for begin, end in pairwise([0, *self[ends].tolist()])]

    @cached_property
    def names(self) -> list[str]:
        """Names of items; paths of files. Raises MetadataError if they are not as readers expect."""
        ends, names, most = (NAME_ENDS, NAMES, limits.MAX_IDENTITY) if COUNT.id in self.columns else _PATHS
        texts = self._texts(ends, names)
        if any(not 1 <= size <= most for size in {*map(len, texts)}):
            bad("a name is empty, or too long")
        try:
            made = [text.decode() for text in texts]
        except UnicodeDecodeError:
            bad("a name is not UTF-8")
        if not all(one < two for one, two in pairwise(made)):  # which compares as their bytes in UTF-8
            bad("names do not rise")
        return made

    def spans(self) -> Iterator[Box]:
        """The offset and shape of each chunk."""
        offsets, sizes = self[OFFSET].tolist(), self[SIZES].tolist()
        rows = (values.tolist() for values in (self.numbers_at, self[NDIM], self.here))
        for at, ndim, here in zip(*rows, strict=False):
            for begin in range(at, at + here * ndim, ndim) if ndim else repeat(at, here):
                yield tuple(offsets[begin : begin + ndim]), tuple(sizes[begin : begin + ndim])

    def crcs(self, begin: int, end: int) -> Iterator[bytes]:
        """Those of some chunks, by where they are here."""
        ends = pairwise(self.crcs_at[begin : end + 1].tolist())
        return (bytes(self[CRCS][CRC_BYTES * one : CRC_BYTES * two]) for one, two in ends)

    def spans_of_values(self, begin: int, end: int) -> Iterable[tuple[int, int] | None]:
        """Where some chunks are in a stream of values, by where they are here; None of what is no value."""
        if not (kinds := self[KIND][begin:end] == Kind.VALUE).any():
            return repeat(None)
        first, last = self.values_at[[begin, end]].tolist()
        found = zip(self[BEGIN][first:last].tolist(), self[END][first:last].tolist(), strict=True)
        each = zip(kinds.tolist(), self.coded[begin:end].tolist(), self[BYTES][begin:end].tolist(), strict=True)
        return [(next(found) if coded else (0, size)) if is_value else None for is_value, coded, size in each]

    def beneath(self, begin: int, end: int, paths: Sequence[str]) -> Iterable[tuple[tuple[str, int, int], ...]]:
        """What lies beneath some chunks, by where they are here: as in `Place`."""
        if BENEATH.id not in self.columns or not (counts := self[BENEATH][begin:end]).any():
            return repeat(())
        lower = self[LOWER][3 * int(self[BENEATH][:begin].sum(dtype="i8")) :].tolist()
        found = ((paths[file], at, size) for file, at, size in zip(*[iter(lower)] * 3, strict=True))
        return [tuple(islice(found, count)) for count in counts.tolist()]

    def value(self, column: Column, row: int) -> bytes:
        """That of a row, where a column has bytes."""
        return bytes(self[column][row * column.width : (row + 1) * column.width])

    @classmethod
    def parse(
        cls,
        data: bytes,
        entry: PartEntry,
        columns: Iterable[Column],
        rows: int | None = None,
        stop: int | None = None,
        chains: Array = None,
    ) -> IndexPart:
        """A part of exactly these columns, from the bytes that `entry` names. Raises MetadataError if it is damaged."""
        entry.check(data)
        raw = memoryview(_decompressed(memoryview(data), entry.raw))
        if len(raw) < _HEAD.size:
            bad("a part is too short")
        magic, count, found, chunks = _HEAD.unpack_from(raw)
        at = _HEAD.size + count * _ENTRY.size
        if magic != limits.PART_MAGIC or at > len(raw) or (rows is not None and rows != found):
            bad("the head of a part")
        made = cls(found, chunks, entry.begin, stop, chains)
        stored = dict[int, tuple[int, int, int]]()
        last = 0
        for number, width, zeros, values in _ENTRY.iter_unpack(raw[_HEAD.size : at]):
            end = at + width * values
            stored[number] = width, at, values
            at = end + -end % 8
            if number <= last or zeros or at > len(raw) or any(raw[end:at]):
                bad("the columns of a part")
            last = number
        if at != len(raw):
            bad("a part has bytes that belong to no column")
        for column in columns:
            width, begin, values = stored.pop(column.id, (0, 0, 0))
            made.columns[column.id] = _column(column, width, raw[begin : begin + width * values])
            if not width or values != column.count(made):
                bad(f"column {column.id} of a part")
            if column is COUNT and made.chunks_at[-1] != chunks:
                bad("the number of chunks in a part")
            if column is CHAIN and made[CHAIN].size and made[CHAIN].max() >= len(chains):
                bad("an item has a chain that there is not")
        if any(number < _IGNORED for number in stored):
            bad("a part has a column that it should not have")
        if entry.size < least_part(found, chunks, made.columns.get(OFFSET.id), made.columns.get(MORE.id, b"")):
            bad(f"a part has more than a writer puts into {entry.size} bytes")
        return made


@dataclass(eq=False)
class ItemRules:
    """What an index says of all items, and checks of what a part says of them: as columns, no chunk becomes an object.

    - `rank`: whose rank-local metadata it stands in.
    - `descriptors`: by chain, those of each `Place`.
    - `coded`: by chain, whether items are in containers.
    - `framed`: whether all tensors are, behind stream transforms.
    - `signed`: whether there are digests.
    - `sizes`: bytes of each file, in the order in which chunks count them.
    """

    rank: int | None
    descriptors: tuple[tuple[str, ...], ...]
    coded: Any
    framed: bool
    signed: bool
    dtypes: tuple[str, ...]
    sizes: Any
    increment: bool = False

    def __post_init__(self) -> None:
        self.sizes, self.coded = numpy.array(self.sizes, "i8"), numpy.array(self.coded, bool)
        self._itemsizes = numpy.array([0, *map(stored_width, self.dtypes)])

    def check_items(self, part: IndexPart) -> None:
        dtype, ndim, count = (part[column] for column in (DTYPE, NDIM, COUNT))
        elements = _products(part[SHAPE].clip(1), ndim)
        for what, wrong in (
            ("a dtype that there is not", dtype >= self._itemsizes.size),
            ("a shape, or several chunks, and is an object", (dtype == 0) & ((ndim > 0) | (count != 1))),
            ("several chunks, and no dimensions", (ndim == 0) & (count > 1)),
            ("more elements than a tensor can have", elements > limits.MAX_NUMBER),
        ):
            _refuse(part, numpy.flatnonzero(wrong), f"it has {what}")

    def _is_usual(self, part: IndexPart) -> bool:
        """Whether all chunks are elements in containers, and extremes show that they lie in their files, as most do."""
        if self.framed or not (part.chunks and part.all_coded and self._itemsizes[part[DTYPE]].all()):
            return False
        files, kinds = part[FILE], part[KIND]
        first, last = files.min(), files.max()
        if last >= self.sizes.size or not kinds.min() == kinds.max() == Kind.TENSOR:
            return False
        return bool(int(part[AT].max()) + int(part[BYTES].max()) <= self.sizes[first : int(last) + 1].min())

    def check_lower(self, part: IndexPart) -> None:
        """Check what lies beneath differences, which are tensors in containers."""
        wrong = (part[BENEATH] > 0) & ~(part.coded & (part[KIND] == Kind.TENSOR))
        _refuse_chunk(part, wrong, "a chunk is a difference that cannot be one")
        files, at, sizes = part[LOWER].astype("i8").reshape(-1, 3).T
        if (files >= self.sizes.size).any() or (at + sizes > self.sizes.take(files)).any():
            bad("a container beneath a difference is in no file, or reaches beyond its end")

    def check_chunks(self, part: IndexPart) -> None:
        if self._is_usual(part):
            return
        files, sizes, kinds = part[FILE], part[BYTES], part[KIND]
        dtype, width = part[DTYPE], self._itemsizes.take(part[DTYPE])  # of items; what follows is of chunks
        of_items = dtype == 0, (width > 0) & (not self.framed), width
        objects, plain, widths = (numpy.repeat(each, part.here) for each in of_items)
        tensors = kinds == Kind.TENSOR
        values = (kinds == Kind.VALUE) & (not self.framed)
        known = numpy.where(objects, (kinds == Kind.OBJECT) | values, (plain & tensors) | (kinds == Kind.FRAMED))
        _refuse_chunk(part, files >= self.sizes.size, "a chunk is in a file that there is not")
        ends = numpy.add(part[AT], sizes, dtype="i8")
        _refuse_chunk(part, ends > self.sizes.take(files), "it reaches beyond the end of its file")
        _refuse_chunk(part, ~known, "a chunk has a kind that it cannot have")
        if part[END].size:
            begins, stops = part[BEGIN].astype("i8"), part[END].astype("i8")
            wrong = (begins >= stops) | (stops - begins > limits.MAX_VALUE) | (stops > limits.MAX_VALUES)
            _refuse_chunk(part, numpy.flatnonzero(values & part.coded)[wrong], _NO_VALUE)
        if not part.all_coded:
            bare = values & ~part.coded
            _refuse_chunk(part, bare & ((sizes < 1) | (sizes > limits.MAX_VALUE)), _NO_VALUE)
            elements = _products(part[SIZES], numpy.repeat(part[NDIM], part.here))
            other = tensors & ~part.coded & (elements * widths != sizes)
            _refuse_chunk(part, other, "a raw tensor has other bytes than its elements")


def _refuse_chunk(part: IndexPart, wrong: Array, what: str) -> None:
    """Raise MetadataError for the first of some chunks, given by truth values or places, if there is one."""
    if wrong.any() if wrong.dtype == bool else wrong.size:
        _refuse(part, numpy.repeat(numpy.arange(part.rows), part.here)[wrong], what)


def _refuse(part: IndexPart, rows: Array, what: str) -> None:
    """Raise MetadataError for the first of some items, if there is one."""
    if rows.size:
        raise MetadataError(f"the metadata is malformed: {what}", item=part.names[rows[0]][:SHOWN])


def _products(values: Array, counts: Array) -> Array:
    """The products of so many values each, as floats, which are exact below 2^53, and larger where the products are."""
    made, some = numpy.ones(counts.size), counts > 0
    if some.any():
        begins = numpy.cumsum(counts, dtype="i8") - counts
        with numpy.errstate(over="ignore", invalid="ignore"):  # of what is far too large
            made[some] = numpy.multiply.reduceat(values.astype("f8"), begins[some])
    return made


def _column(column: Column, width: int, data: memoryview) -> Array:
    if column.width:
        return numpy.frombuffer(data, "u1") if width in (0, column.width) else bad(f"the width of column {column.id}")
    if width not in (0, *_WIDTHS):
        bad(f"the width of column {column.id}")
    values = numpy.frombuffer(data, f"<u{width or 1}")
    if width == 8:
        if values.size and values.max() > limits.MAX_NUMBER:
            bad("a number is too large")
        values = values.astype("i8")
    if column.ends and (values[1:] < values[:-1]).any():
        bad("the ends of names fall")
    if column is NDIM and values.size and values.max() > limits.MAX_NDIM:
        bad("there are too many dimensions")
    if column is BENEATH and values.size and values.max() > limits.MAX_BENEATH:
        bad("a difference has too many containers beneath")
    return values


def _sums(values: Array) -> Array:
    made = numpy.zeros(len(values) + 1, "i8")
    values.cumsum(dtype="i8", out=made[1:])
    return made


def _decompressed(data: memoryview, size: int) -> bytes:
    try:
        if zstd.declared_size(data) != size:
            bad("a part has another size than the root says")
        return zstd.decompress(data, size)
    except CodecError as error:
        raise MetadataError(f"a part of the metadata is damaged: {error.message}") from None


class TooLarge(MetadataError):
    """What would be in one part has no room there."""


def least_part(rows: int, chunks: int, offsets: Array | None, more: Array | bytes) -> int:
    """The fewest stored bytes of a part of so many items and chunks, or of files, which have no offsets."""
    if offsets is None:
        return limits.FILE_BYTES * rows
    return limits.ITEM_BYTES * rows + limits.CHUNK_BYTES * chunks + len(offsets) + count_marks(bytes(more))


def pack_part(
    rows: int, chunks: int, columns: Mapping[Column, Sequence[int] | bytes], begin: int
) -> tuple[bytes, dict[str, Any]]:
    """A part as it is stored, and what the root says of it. Raises MetadataError if it would be too large."""
    directory, stored = [], []
    for column, values in sorted(columns.items(), key=lambda each: each[0].id):
        packed, width = (bytes(values), column.width) if column.width else _packed(values)
        directory.append(_ENTRY.pack(column.id, width, 0, len(packed) // width))
        stored.append(packed + bytes(-len(packed) % 8))
    raw = b"".join([_HEAD.pack(limits.PART_MAGIC, len(columns), rows, chunks), *directory, *stored])
    least = least_part(rows, chunks, columns.get(OFFSET), bytes(columns.get(MORE, b"")))
    packed = zstd.compress_to(raw, least)
    if max(len(raw), len(packed)) > limits.MAX_PART:
        raise TooLarge(
            f"a part of the index would have {len(raw)} bytes, {limits.MAX_PART} are allowed; save fewer items, or "
            "shorter names and paths"
        )
    sha256 = hashlib.sha256(packed).hexdigest()
    return packed, {"from": begin, "bytes": len(packed), "raw": len(raw), "sha256": sha256}


def _packed(values: Sequence[int] | bytes) -> tuple[bytes, int]:
    made = numpy.array(values, "u8")
    most = int(made.max()) if made.size else 0
    width = next(width for width in _WIDTHS if most < 1 << 8 * width)
    return made.astype(f"<u{width}").tobytes(), width
