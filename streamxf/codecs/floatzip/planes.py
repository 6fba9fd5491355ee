"""How a FloatZip block is laid out: its elements, the planes that they are split into, and the table that says so; and,
by numpy, in as few operations as possible: elements to planes and back, and planes to their stored form and back.

The stored form knows widths, a rotation and a phase; it knows no dtypes (docs/format.md, ``streamxf.floatzip/1``).

numpy releases the interpreter's lock while it works and takes it again between two operations, and there workers wait
for each other. So a whole block of the usual size is one part: smaller parts would stay in faster caches, but two
workers then did no more than one. Left shifts are written as multiplications, which numpy does at twice the speed.

The exponents of a layer nearly all lie within sixteen neighbouring values. Packed two to a byte, each pair is one
symbol for zstd's Huffman coder, which so works through half as many symbols and comes closer to the entropy. The few
values outside of the sixteen are stored beside them.

Where time matters more than the last twentieth of the size, all exponents are coded in as many bits, and no entropy
coder is needed: a fixed plane takes hardly longer than copying.

In the moments of an optimizer every row and every column of a matrix has its own scale. A level states it once for a
whole group or column of numbers, so that their exponents need not repeat it; levels are taken off first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import zstandard

from streamxf.buffers import borrowed
from streamxf.codecs import zstd
from streamxf.errors import CodecError

STORED = 0
_PLANES = 1 << 6  # set in the first byte of every block that is not stored as it is
_HEAD = struct.Struct("<BI")
_PLANE = struct.Struct("<BI")
_LONE = struct.Struct("<BIBI6s")  # a table with one plane
_ALIGNMENT = 8
_PADDING = bytes(_ALIGNMENT)


class PlaneKind(IntEnum):
    """How a plane is stored, some neighbouring bytes of every element: one byte, or one, two or four as they are."""

    RAW = 0
    ZSTD = 1
    PACKED = 2
    LEVELLED = 3
    RAW_2 = 4
    FIXED = 5
    RAW_4 = 8

    @property
    def lane(self) -> int:
        """How many bytes of each element."""
        return 1 if self is PlaneKind.FIXED else 1 << (self >> 2)

    @property
    def raw(self) -> bool:
        return not self & 3


class Layout(NamedTuple):
    """How a block consists of elements.

    - `width`: bytes of an element: 1, 2, 4 or 8, little-endian.
    - `rotated`: whether elements are rotated left by one bit before they are split: the sign of a float then stands
      last, and its exponent fills the first byte.
    - `phase`: bytes before the first element, less than `width`.
    """

    width: int
    rotated: bool
    phase: int

    def count(self, size: int) -> int:
        """How many whole elements a block of `size` bytes has."""
        return max(0, size - self.phase) // self.width


_LAYOUTS = {
    _PLANES | phase << 3 | rotated << 2 | log2: Layout(1 << log2, bool(rotated), phase)
    for log2 in range(4)
    for phase in range(1 << log2)
    for rotated in ((0, 1) if log2 else (0,))
}
"""By the first byte of a block."""
_KINDS = {int(kind): kind for kind in PlaneKind}
_OF_BYTES = {int(kind): kind for kind in (PlaneKind.ZSTD, PlaneKind.PACKED)}  # where an element is one byte


class PlaneTable(NamedTuple):
    """A block taken apart by its table, which was checked.

    - `raw_size`: bytes of the block before it was encoded.
    - `planes`: from the lowest bytes of an element to the highest, as they are stored.
    - `edges`: the bytes before the first element and after the last.
    """

    layout: Layout
    raw_size: int
    planes: list[tuple[PlaneKind, memoryview]]
    edges: memoryview


def table_size(planes: int) -> int:
    """Bytes of the table of a block with that many planes."""
    return -(-(_HEAD.size + planes * _PLANE.size) // _ALIGNMENT) * _ALIGNMENT


def pack_table(layout: Layout, raw_size: int, planes: Sequence[tuple[PlaneKind, int]], out: memoryview) -> None:
    """Write the table to the start of `out`."""
    first = _PLANES | layout.phase << 3 | layout.rotated << 2 | layout.width.bit_length() - 1
    table = _HEAD.pack(first, raw_size) + b"".join(_PLANE.pack(kind, size) for kind, size in planes)
    end = table_size(len(planes))
    out[:end] = table.ljust(end, b"\0")


def raw_size(block: memoryview, limit: int) -> int:
    """How many bytes a block says it decodes to. Raises CodecError if more than `limit`, or the block is too short."""
    if len(block) < _HEAD.size:
        raise CodecError(f"FloatZip block of {len(block)} bytes ends within its table")
    size: int = _HEAD.unpack_from(block)[1]
    if size > limit:
        raise CodecError(f"FloatZip block declares {size} bytes, {limit} are allowed here")
    return size


def lone_frame(block: memoryview, limit: int) -> tuple[memoryview, int] | None:
    """The frame of a block that is nothing else, and the bytes that it decodes to; None for all others."""
    first, size, kind, stored, rest = _LONE.unpack_from(block) if len(block) > _LONE.size else (0, 0, 0, 0, b"")
    lone = (first, kind, stored, rest) == (_PLANES, PlaneKind.ZSTD, len(block) - _LONE.size, bytes(6))
    return (block[_LONE.size :], size) if lone and 0 < size <= limit else None


def parse_table(block: memoryview, limit: int) -> PlaneTable:
    """Read the table of an encoded block. Raises CodecError unless `pack_table` can have written it, the block decodes
    to at most `limit` bytes, and the sizes add up to the block's own.
    """
    size = raw_size(block, limit)
    first = block[0]
    layout = _LAYOUTS.get(first)
    if layout is None:
        raise CodecError(f"FloatZip block of an unknown layout {first:#04x}")
    count = layout.count(size)
    if not count:
        raise CodecError(f"FloatZip block of {size} bytes has no whole element of {layout.width} bytes")
    planes, position = _parse_planes(block, layout, count)
    end = table_size(len(planes))
    if block[position:end] != _PADDING[: end - position]:
        raise CodecError("FloatZip table does not end with zeros")
    edges = size - count * layout.width
    if end + sum(size for _, size in planes) + edges != len(block):
        raise CodecError("FloatZip block is not as long as its table says: it was truncated or appended to")
    parts = {}
    for number in sorted(range(len(planes)), key=lambda number: not planes[number][0].raw):  # raw ones come first
        parts[number] = block[end : end + planes[number][1]]
        end += len(parts[number])
    return PlaneTable(layout, size, [(kind, parts[number]) for number, (kind, _) in enumerate(planes)], block[end:])


def _parse_planes(block: memoryview, layout: Layout, count: int) -> tuple[list[tuple[PlaneKind, int]], int]:
    planes: list[tuple[PlaneKind, int]] = []
    kinds = _KINDS if layout.width > 1 else _OF_BYTES
    position, covered = _HEAD.size, 0
    while covered < layout.width:
        if len(block) < position + _PLANE.size:
            raise CodecError(f"FloatZip block of {len(block)} bytes ends within its table")
        code, size = _PLANE.unpack_from(block, position)
        kind = kinds.get(code)
        if kind is None or covered + kind.lane > layout.width:
            raise CodecError(f"FloatZip plane of an unknown kind {code:#04x}")
        covered += kind.lane
        if kind.raw and size != count * kind.lane:
            raise CodecError(f"FloatZip plane of {size} bytes where {count * kind.lane} belong")
        planes.append((kind, size))
        position += _PLANE.size
    return planes, position


PART_BYTES = 1024 * 1024

Array = np.ndarray[Any, np.dtype[Any]]


class Workspace:
    """Memory of one thread for one block: two parts of elements, and planes that are not stored as they are."""

    def __init__(self) -> None:
        self._parts = np.empty((2, PART_BYTES), np.uint8)
        self._planes: dict[int, Array] = {}

    def parts(self, width: int) -> tuple[Array, Array]:
        """Two arrays of elements, `PART_BYTES` each."""
        return self._parts[0].view(f"<u{width}"), self._parts[1].view(f"<u{width}")

    def plane(self, number: int, size: int) -> Array:
        """`size` bytes for a plane; its contents are undefined."""
        plane = self._planes.get(number)
        if plane is None or len(plane) < size:
            plane = self._planes[number] = np.empty(size, np.uint8)
        return plane[:size]


def split(elements: Array, rotated: bool, planes: Sequence[Array], work: Workspace) -> None:
    """Spread the bytes of each element over the planes, the lowest bytes first.

    - `rotated`: rotate elements left by one bit first.
    - `planes`: filled. Their item sizes add up to that of `elements`.
    """
    bits = 8 * elements.itemsize
    first, second = work.parts(elements.itemsize)
    for start in range(0, len(elements), len(first)):
        part = elements[start : start + len(first)]
        stop = start + len(part)
        moved, shifted = first[: len(part)], second[: len(part)]
        below = 0
        for plane in planes:
            out = plane[start:stop]
            if below:
                np.right_shift(part, below - rotated, out=out, casting="unsafe")
            elif rotated:
                np.add(part, part, out=moved)
                np.right_shift(part, bits - 1, out=shifted)
                np.bitwise_or(moved, shifted, out=out, casting="unsafe")
            else:
                np.copyto(out, part, casting="unsafe")
            below += 8 * plane.itemsize


def merge(planes: Sequence[Array], rotated: bool, elements: Array, work: Workspace) -> None:
    """Undo `split`: fill `elements` from the planes."""
    bits = 8 * elements.itemsize
    first, second = work.parts(elements.itemsize)
    kind = elements.dtype  # said each time: an operand's own type may be too narrow for the result
    for start in range(0, len(elements), len(first)):
        part = elements[start : start + len(first)]
        stop = start + len(part)
        moved, shifted = first[: len(part)], second[: len(part)]
        below = bits - 8 * planes[-1].itemsize
        np.multiply(planes[-1][start:stop], 1 << below, out=moved, dtype=kind)
        for plane in reversed(planes[:-1]):
            below -= 8 * plane.itemsize
            source = plane[start:stop]
            if below:
                np.multiply(source, 1 << below, out=shifted, dtype=kind)
                source = shifted
            np.bitwise_or(moved, source, out=moved, dtype=kind)
        if rotated:
            np.right_shift(moved, 1, out=shifted)
            np.multiply(moved, 1 << bits - 1, out=moved, dtype=kind)
            np.bitwise_or(moved, shifted, out=part)
        else:
            np.copyto(part, moved)


WINDOW = 16
MOST_EXCEPTIONS = 1 / 64  # of all values; beyond that, packing costs more than it saves

LANES, FIXED_GROUP, MOST_BITS = 64, 512, 7
MOST_LISTED = 1 / 16  # of all values, in a fixed plane

GROUP_LOG2 = 6
MAX_PERIOD = 1 << 16
_COLUMN_ROWS = 64  # enough rows to estimate a column's level

_PACKED = struct.Struct("<B3xI")
_LEVELLED = struct.Struct("<B3xII")
_FIXED = struct.Struct("<BB2xI")


def huffman() -> zstandard.ZstdCompressor:
    """A compressor that hardly looks for matches, but codes single bytes by their frequency.

    Matching only hurts where bytes are drawn independently, as exponents are. Runs are still found. Negative levels
    would be no faster: they leave bytes uncoded.
    """
    parameters = zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST,
        min_match=7,
        hash_log=6,
        chain_log=6,
        search_log=1,
        window_log=17,
        target_length=0,
        write_content_size=True,
        write_checksum=False,
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def pack_into(values: Array, base: int, out: memoryview, work: Workspace) -> int:
    """Pack `values` around the sixteen from `base` on, compressed, into `out`; returns bytes, 0 for many exceptions."""
    packed = work.plane(-1, (len(values) + 1) // 2)
    exceptions = _pack(values, base, packed, work)
    if len(exceptions) > len(values) * MOST_EXCEPTIONS:
        return 0
    listed = exceptions.astype("<u4").tobytes() + values[exceptions].tobytes()
    start = _PACKED.size + len(listed)
    out[:start] = _PACKED.pack(base, len(exceptions)) + listed
    with borrowed(huffman) as compressor:
        return start + zstd.compress_into(compressor, packed.data, out[start:])


def _pack(values: Array, base: int, packed: Array, work: Workspace) -> Array:
    """Fill `packed` with pairs of distances from `base`, four bits each; return where values are too far from it."""
    first, second = work.parts(1)
    found: list[Array] = []
    for start in range(0, len(values), len(first)):
        part = values[start : start + len(first)]
        codes, other = first[: len(part)], second[: len(part)]
        np.subtract(part, np.uint8(base), out=codes)
        outside = other.view(np.bool_)
        np.greater_equal(codes, WINDOW, out=outside)
        found.append(_places(outside) + start)
        if len(part) % 2:
            codes, other = first[: len(part) + 1], second[: len(part) + 1]
            codes[-1] = 0
        pairs, shifted = codes.view("<u2"), other.view("<u2")
        np.bitwise_and(pairs, 0x0F0F, out=pairs)
        np.right_shift(pairs, 4, out=shifted)
        np.bitwise_or(pairs, shifted, out=packed[start // 2 : start // 2 + len(pairs)], casting="unsafe")
    return np.concatenate(found) if found else np.empty(0, np.intp)


def _places(flags: Array) -> Array:
    """Where flags are set: like numpy's `flatnonzero`, but in half of the time where hardly any are."""
    if len(flags) % 8:
        return np.flatnonzero(flags)
    words = np.flatnonzero(flags.view("<u8") != 0)
    word, byte = np.nonzero(flags.reshape(-1, 8)[words])
    return words[word] * 8 + byte


def unpack(stored: memoryview, out: Array, work: Workspace) -> None:
    """Fill `out`, of shape (n,), with the values that `pack_into` stored. Raises CodecError if `stored` is damaged."""
    if len(stored) < _PACKED.size or any(stored[1:4]):
        raise CodecError("FloatZip packed plane has a damaged head")
    base, listed = _PACKED.unpack_from(stored)
    start = _PACKED.size + 5 * listed
    if start > len(stored):
        raise CodecError(f"FloatZip packed plane is too short for {listed} exceptions")
    positions = np.frombuffer(stored, "<u4", listed, _PACKED.size)
    values = np.frombuffer(stored, np.uint8, listed, _PACKED.size + 4 * listed)
    count = len(out)
    if listed and (positions[-1] >= count or not np.all(positions[:-1] < positions[1:])):
        raise CodecError("FloatZip packed plane lists exceptions that do not rise or lie outside of it")
    packed = np.frombuffer(inflate(stored[start:], (count + 1) // 2), np.uint8)
    if count % 2 and packed[-1] >= WINDOW:
        raise CodecError("FloatZip packed plane is half a byte too long")
    _unpack(packed, base, out, work)
    out[positions] = values


def _unpack(packed: Array, base: int, out: Array, work: Workspace) -> None:
    first, second = (part.view("<u2") for part in work.parts(1))
    for start in range(0, len(packed), len(first)):
        part = packed[start : start + len(first)]
        pairs, shifted = first[: len(part)], second[: len(part)]
        np.multiply(part, 16, out=shifted, dtype=np.uint16)
        np.bitwise_or(part, shifted, out=pairs)
        np.bitwise_and(pairs, 0x0F0F, out=pairs)
        target = out[2 * start : 2 * (start + len(part))]
        np.add(pairs.view(np.uint8)[: len(target)], np.uint8(base), out=target)


def fix_into(values: Array, base: int, bits: int, out: memoryview, work: Workspace) -> int:
    """Store `values` in `bits` each, as distances from `base`, in `out`; returns bytes, 0 for many exceptions."""
    count, groups = len(values), -(-len(values) // FIXED_GROUP)
    codes = work.plane(-1, groups * FIXED_GROUP)
    np.subtract(values, np.uint8(base), out=codes[:count])
    codes[count:] = 0
    listed = np.flatnonzero(codes >> bits)
    gaps = np.diff(listed, prepend=-1) - 1
    idle = gaps >> 8  # a gap is a byte: where that is not enough, some are listed that need not be
    steps = np.arange(1, idle.sum() + 1) - np.repeat(np.cumsum(idle) - idle, idle)
    listed = np.sort(np.concatenate([listed, np.repeat(listed - gaps - 1, idle) + 256 * steps]))
    if len(listed) > count * MOST_LISTED:
        return 0
    np.bitwise_and(codes, (1 << bits) - 1, out=codes)
    made, rows = np.zeros((groups, bits, LANES), np.uint8), codes.reshape(groups, 8, LANES)
    for number in range(8):
        row, shift = divmod(number * bits, 8)
        made[:, row] |= rows[:, number] << shift
        if shift + bits > 8:
            made[:, row + 1] |= rows[:, number] >> 8 - shift
    gaps = (np.diff(listed, prepend=-1) - 1).astype(np.uint8)
    stored = _FIXED.pack(base, bits, len(listed)) + made.tobytes() + gaps.tobytes() + values[listed].tobytes()
    out[: len(stored)] = stored
    return len(stored)


def unfix(stored: memoryview, out: Array, work: Workspace) -> None:
    """Fill `out`, of shape (n,), with the values that `fix_into` stored. Raises CodecError if `stored` is damaged."""
    if len(stored) < _FIXED.size or any(stored[2:4]):
        raise CodecError("FloatZip fixed plane has a damaged head")
    base, bits, listed = _FIXED.unpack_from(stored)
    count, groups = len(out), -(-len(out) // FIXED_GROUP)
    end = _FIXED.size + groups * LANES * bits
    if not 1 <= bits <= MOST_BITS or len(stored) != end + 2 * listed:
        raise CodecError(f"FloatZip fixed plane is not as long as {listed} exceptions and codes of {bits} bits are")
    rows = np.frombuffer(stored, np.uint8, end - _FIXED.size, _FIXED.size).reshape(groups, bits, LANES)
    codes = work.plane(-1, groups * FIXED_GROUP).reshape(groups, 8, LANES)
    for number in range(8):
        row, shift = divmod(number * bits, 8)
        np.right_shift(rows[:, row], shift, out=codes[:, number])
        if shift + bits > 8:
            codes[:, number] |= rows[:, row + 1] << 8 - shift
    codes &= (1 << bits) - 1
    if codes.ravel()[count:].any():
        raise CodecError("FloatZip fixed plane has codes of more elements than there are")
    np.add(codes.ravel()[:count], np.uint8(base), out=out)
    gaps, values = np.frombuffer(stored, np.uint8, 2 * listed, end).reshape(2, listed)
    places = np.cumsum(gaps, dtype=np.int64) + np.arange(listed)
    if listed and places[-1] >= count:
        raise CodecError("FloatZip fixed plane lists exceptions that lie outside of it")
    out[places] = values


def inflate(frame: memoryview, size: int) -> bytes:
    """Decompress a plane of `size` bytes. Raises CodecError if it is not exactly one frame of that size."""
    declared = zstd.declared_size(frame)
    if declared != size:
        raise CodecError(f"FloatZip plane declares {declared} bytes where {size} belong")
    return zstd.decompress(frame, size)


def level_into(values: Array, period: int, out: memoryview, work: Workspace) -> int:
    """Take levels off `values`, pack the rest, and store both in `out`; returns the bytes written, 0 if the rest cannot
    be packed. `period` is the length of a row, where columns have levels, else 1.
    """
    columns = column_levels(values, period)
    rest = work.plane(-4, len(values))
    _over_rows(np.subtract, values, columns, rest)
    groups = _group_levels(rest)
    _over_groups(np.subtract, rest, groups)
    levels = np.concatenate([groups, columns])
    start = _LEVELLED.size
    with borrowed(huffman) as compressor:
        size = zstd.compress_into(compressor, levels.data, out[start:])
    body = pack_into(rest, 0, out[start + size :], work)
    if not body:
        return 0
    out[:start] = _LEVELLED.pack(GROUP_LOG2, period, size)
    return start + size + body


def unlevel(stored: memoryview, out: Array, work: Workspace) -> None:
    """Fill `out`, of shape (n,), with the values that `level_into` stored. Raises CodecError if `stored` is damaged."""
    if len(stored) < _LEVELLED.size or any(stored[1:4]):
        raise CodecError("FloatZip levelled plane has a damaged head")
    group_log2, period, size = _LEVELLED.unpack_from(stored)
    if group_log2 != GROUP_LOG2 or not 1 <= period <= MAX_PERIOD or _LEVELLED.size + size > len(stored):
        raise CodecError("FloatZip levelled plane has groups, rows or levels of an impossible size")
    count = -(-len(out) // (1 << GROUP_LOG2))
    levels = np.frombuffer(inflate(stored[_LEVELLED.size : _LEVELLED.size + size], count + period), np.uint8)
    unpack(stored[_LEVELLED.size + size :], out, work)
    _over_groups(np.add, out, levels[:count])
    _over_rows(np.add, out, levels[count:], out)


UNDO = {PlaneKind.PACKED: unpack, PlaneKind.LEVELLED: unlevel, PlaneKind.FIXED: unfix}


def greatest_of(groups: Array) -> Array:
    """The greatest value of each group; values are signed differences from something, modulo 256."""
    greatest: Array = groups.view(np.int8).max(axis=1).view(np.uint8)
    return greatest


def column_levels(values: Array, period: int) -> Array:
    """The mean of each column of rows of `period` values, of shape (period,), from some of the rows."""
    rows = values[: len(values) // period * period].reshape(-1, period)
    some = rows[:: max(1, len(rows) // _COLUMN_ROWS)] if period > 1 else rows[:: max(1, len(rows) // 4096)]
    means: Array = np.rint(some.mean(axis=0)).astype(np.uint8)
    return means


def _group_levels(rest: Array) -> Array:
    """The amount to take off each group, so that its greatest value becomes the greatest that can be packed."""
    whole = len(rest) >> GROUP_LOG2 << GROUP_LOG2
    greatest = greatest_of(rest[:whole].reshape(-1, 1 << GROUP_LOG2))
    if whole < len(rest):
        greatest = np.append(greatest, greatest_of(rest[None, whole:]))
    return greatest - np.uint8(WINDOW - 1)


def _over_groups(operation: np.ufunc, values: Array, levels: Array) -> None:
    """Apply `operation` to each group of `values` and its level, in place."""
    whole = len(values) >> GROUP_LOG2 << GROUP_LOG2
    groups = values[:whole].reshape(-1, 1 << GROUP_LOG2)
    operation(groups, levels[: len(groups), None], out=groups)
    if whole < len(values):
        operation(values[whole:], levels[-1], out=values[whole:])


def _over_rows(operation: np.ufunc, values: Array, levels: Array, out: Array) -> None:
    """Apply `operation` to each row of `values` and the columns' levels."""
    whole = len(values) // len(levels) * len(levels)
    operation(values[:whole].reshape(-1, len(levels)), levels, out=out[:whole].reshape(-1, len(levels)))
    operation(values[whole:], levels[: len(values) - whole], out=out[whole:])
