"""How a FloatZip block is laid out: its elements, the planes that they were split into, and the table that says so.

The stored form knows widths, a rotation and a phase; it knows no dtypes (docs/format.md, ``streamxf.floatzip/1``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

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
    RAW_4 = 8

    @property
    def lane(self) -> int:
        """How many bytes of each element."""
        return 1 << (self >> 2)

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


def is_wide(block: memoryview) -> bool:
    """Whether the elements of a block that is not stored as it is have several bytes."""
    return bool(block[0] & 3)


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
