"""An encoder for `streamxf.floatzip/1`, written from docs/format.md, that makes every payload which the page allows;
and what a payload makes use of.

The codec chooses one of few layouts. A decoder has to take all of them, and this makes them on demand, element by
element and without numpy.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zstandard

RAW, ZSTD, PACKED, LEVELLED, FIXED = 0, 1, 2, 3, 5


def kinds(width: int) -> list[tuple[int, int]]:
    """The kinds of planes that elements of `width` bytes may have, as pairs (coding, lane)."""
    if width == 1:
        return [(ZSTD, 1), (PACKED, 1)]
    return [(ZSTD, 1), (PACKED, 1), (LEVELLED, 1), (FIXED, 1), *((RAW, lane) for lane in (1, 2, 4) if lane <= width)]


@dataclass(frozen=True)
class Shape:
    """How to lay a block out.

    `planes` has a pair (coding, lane) for each plane, `base` is that of all packed and fixed ones, `bits` those of
    the latter's codes. `levels` are the rows' and the
    columns' levels of levelled planes, repeated as often as needed, and `period` says how many columns there are.
    """

    width: int
    rotated: bool
    phase: int
    planes: Sequence[tuple[int, int]]
    base: int = 0
    levels: bytes = b"\0"
    period: int = 1
    bits: int = 3


def _frame(plane: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=True).compress(plane)


def forge(data: bytes, shape: Shape, idle_halves: int = 0, frame: Callable[[bytes], bytes] = _frame) -> bytes:
    """Encode `data`, which must have an element; `idle_halves` are the four bits of elements that are listed, and
    `frame` makes the zstd frames.
    """
    width, phase = shape.width, shape.phase
    count = (len(data) - phase) // width
    end = phase + count * width
    elements = [_turn(int.from_bytes(data[at : at + width], "little"), shape) for at in range(phase, end, width)]
    table, raw, coded, below = b"", b"", b"", 0
    for coding, lane in shape.planes:
        plane = b"".join((number >> 8 * below & (1 << 8 * lane) - 1).to_bytes(lane, "little") for number in elements)
        stored = _store(coding, plane, shape, idle_halves, frame)
        table += struct.pack("<BI", coding | (lane.bit_length() - 1) << 2, len(stored))
        raw, coded = (raw + stored, coded) if coding == RAW else (raw, coded + stored)
        below += lane
    layout = 0x40 | phase << 3 | shape.rotated << 2 | width.bit_length() - 1
    head = struct.pack("<BI", layout, len(data)) + table
    return head + bytes(-len(head) % 8) + raw + coded + data[:phase] + data[end:]


def _turn(number: int, shape: Shape) -> int:
    bits = 8 * shape.width
    return (number << 1 | number >> bits - 1) & (1 << bits) - 1 if shape.rotated else number


def _store(coding: int, plane: bytes, shape: Shape, idle: int, frame: Callable[[bytes], bytes]) -> bytes:
    if coding == RAW:
        return plane
    if coding == ZSTD:
        return frame(plane)
    if coding == PACKED:
        return _pack(plane, shape.base, idle, frame)
    if coding == FIXED:
        return _fix(plane, shape.base, shape.bits, idle)
    rows = -(-len(plane) // 64)
    levels = (shape.levels * (rows + shape.period))[: rows + shape.period]
    flat = bytes(value - levels[i // 64] - levels[rows + i % shape.period] & 255 for i, value in enumerate(plane))
    first = frame(levels)
    return struct.pack("<B3xII", 6, shape.period, len(first)) + first + _pack(flat, shape.base, idle, frame)


def _pack(plane: bytes, base: int, idle: int, frame: Callable[[bytes], bytes]) -> bytes:
    distances = [value - base & 255 for value in plane]
    places = [place for place, distance in enumerate(distances) if distance > 15]
    halves = [idle if distance > 15 else distance for distance in distances] + [0] * (len(plane) % 2)
    pairs = bytes(low | high << 4 for low, high in zip(halves[::2], halves[1::2], strict=True))
    head = struct.pack(f"<B3xI{len(places)}I", base, len(places), *places)
    return head + bytes(plane[place] for place in places) + frame(pairs)


def _fix(plane: bytes, base: int, bits: int, idle: int) -> bytes:
    distances = [value - base & 255 for value in plane]
    codes, gaps, values, skipped = [], b"", b"", 0
    for value, distance in zip(plane, distances, strict=True):
        listed = distance >> bits or skipped == 255  # a gap is a byte
        codes.append((idle if distance >> bits else distance) & (1 << bits) - 1)
        if listed:
            gaps, values = gaps + bytes([skipped]), values + bytes([value])
        skipped = 0 if listed else skipped + 1
    codes += [0] * (-len(codes) % 512)
    groups = b""
    for start in range(0, len(codes), 512):
        numbers = [
            sum(code << bits * place for place, code in enumerate(codes[start + k : start + 512 : 64]))
            for k in range(64)
        ]
        groups += b"".join(bytes(number >> 8 * row & 255 for number in numbers) for row in range(bits))
    return struct.pack("<BB2xI", base, bits, len(gaps)) + groups + gaps + values


def features(payload: bytes) -> set[str]:
    """What an intact payload makes use of, in words: its width, its codings, and so on."""
    if payload[0] == 0:
        return {"stored"}
    width = 1 << (payload[0] & 3)
    seen = {f"width {width}", "turned" if payload[0] & 4 else "unturned"} | ({"phase"} if payload[0] & 0x38 else set())
    rows: list[tuple[int, int]] = []
    lanes = 0
    while lanes < width:
        kind, size = struct.unpack_from("<BI", payload, 5 + 5 * len(rows))
        coding, lane = (FIXED, 1) if kind == FIXED else (kind & 3, 1 << (kind >> 2))
        rows.append((coding, size))
        lanes += lane
        seen |= {("raw", "zstd", "packed", "levelled", "", "fixed")[coding], f"lane {lane}"}
    place = -(-(5 + 5 * len(rows)) // 8) * 8 + sum(size for coding, size in rows if coding == RAW)
    for coding, size in rows:
        word = int.from_bytes(payload[place + 4 : place + 8], "little")  # exceptions of a packed plane, else columns
        if coding in (PACKED, FIXED) and word:
            seen.add("exceptions")
        if coding == LEVELLED:
            seen.add("levels of columns" if word > 1 else "levels of rows")
        place += size if coding != RAW else 0
    return seen
