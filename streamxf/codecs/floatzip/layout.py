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
_ALIGNMENT = 8
_PADDING = bytes(_ALIGNMENT)


class Coding(IntEnum):
    """How the bytes of a plane are stored."""

    RAW = 0
    ZSTD = 1
    PACKED = 2
    LEVELLED = 3


class Plane(NamedTuple):
    """Some neighbouring bytes of every element.

    - `lane`: how many bytes of each element: 1, 2 or 4 of a raw plane, else 1.
    """

    coding: Coding
    lane: int


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
_KINDS = {log2 << 2: Plane(Coding.RAW, 1 << log2) for log2 in range(3)} | {
    int(coding): Plane(coding, 1) for coding in (Coding.ZSTD, Coding.PACKED, Coding.LEVELLED)
}
"""By the first byte of a plane's entry."""


class PlaneTable(NamedTuple):
    """The table of a block, parsed and checked.

    - `raw_size`: bytes of the block before it was encoded.
    - `planes`: from the lowest bytes of an element to the highest, with stored sizes in bytes.
    - `end`: where the planes' data begins.
    """

    layout: Layout
    raw_size: int
    planes: list[tuple[Plane, int]]
    end: int


def table_size(planes: int) -> int:
    """Bytes of the table of a block with that many planes."""
    return -(-(_HEAD.size + planes * _PLANE.size) // _ALIGNMENT) * _ALIGNMENT


def pack_table(layout: Layout, raw_size: int, planes: Sequence[tuple[Plane, int]], out: memoryview) -> None:
    """Write the table to the start of `out`."""
    first = _PLANES | layout.phase << 3 | layout.rotated << 2 | layout.width.bit_length() - 1
    table = _HEAD.pack(first, raw_size) + b"".join(
        _PLANE.pack(plane.coding | (plane.lane.bit_length() - 1) << 2, size) for plane, size in planes
    )
    end = table_size(len(planes))
    out[:end] = table.ljust(end, b"\0")


def is_wide(block: memoryview) -> bool:
    """Whether the elements of a block that is not stored as it is have several bytes."""
    return bool(block[0] & 3)


def raw_size(block: memoryview, limit: int) -> int:
    """How many bytes a block declares that it decodes to. Raises CodecError if they are more than `limit`, or the block
    is too short to say.
    """
    if len(block) < _HEAD.size:
        raise CodecError(f"FloatZip block of {len(block)} bytes ends within its table")
    size: int = _HEAD.unpack_from(block)[1]
    if size > limit:
        raise CodecError(f"FloatZip block declares {size} bytes, {limit} are allowed here")
    return size


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
    return PlaneTable(layout, size, planes, end)


def _parse_planes(block: memoryview, layout: Layout, count: int) -> tuple[list[tuple[Plane, int]], int]:
    planes: list[tuple[Plane, int]] = []
    position, covered = _HEAD.size, 0
    while covered < layout.width:
        if len(block) < position + _PLANE.size:
            raise CodecError(f"FloatZip block of {len(block)} bytes ends within its table")
        code, size = _PLANE.unpack_from(block, position)
        plane = _KINDS.get(code)
        whole = layout.width == 1 and plane is not None and plane.coding not in (Coding.ZSTD, Coding.PACKED)
        if plane is None or covered + plane.lane > layout.width or whole:
            raise CodecError(f"FloatZip plane of an unknown kind {code:#04x}")
        covered += plane.lane
        if code & 3 == Coding.RAW and size != count * plane.lane:
            raise CodecError(f"FloatZip plane of {size} bytes where {count * plane.lane} belong")
        planes.append((plane, size))
        position += _PLANE.size
    return planes, position
