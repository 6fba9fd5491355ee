"""A block as its difference from the block that lies at the same place in an earlier save: which elements changed, and
by how much. docs/format/differences.md is the norm; `_differences.c` does the same faster, and alone encodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamxf.buffers import borrowed
from streamxf.codecs import zstd
from streamxf.codecs.checksum import crc32c_of
from streamxf.codecs.floatzip.kernel import Work
from streamxf.errors import ChecksumError, CodecError

try:
    import streamxf.codecs.floatzip._differences as compiled

    if getattr(compiled, "VERSION", 0) != 1:  # compiled for another version of streamxf
        raise ImportError
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = ["DIFFERENCE", "KINDS", "changes", "compiled", "decode", "encode", "width_of"]

Array = NDArray[Any]

KINDS = {
    **{"float8_e4m3fn": (1, 4), "float8_e5m2": (1, 5), "float16": (2, 5), "bfloat16": (2, 8), "float32": (4, 8)},
    **dict.fromkeys(("int8", "uint8", "bool"), (1, 0)),
}
"""Bytes of an element, and how many bits of exponent follow its sign, by dtype."""

DIFFERENCE = 0x80  # of the first byte of a payload
_HEAD = 6  # bytes: layout, CRC, levels
_MAX_BANDS = 8
_NONE = 31  # in place of k: no gap follows
_OTHER_BASE = "the block beneath a difference is not the one that it was made from, or one of them is damaged"


@dataclass(frozen=True)
class _Layout:
    width: int
    exponent: int

    @classmethod
    def of(cls, payload: memoryview, size: int) -> _Layout:
        if len(payload) < _HEAD or not payload[0] & DIFFERENCE:
            raise CodecError(f"payload of {len(payload)} bytes is no difference")
        layout = cls(1 << (payload[0] & 3), payload[0] >> 2 & 15)
        bits = 8 * layout.width
        if payload[0] & 0x40 or layout.width > 4 or layout.exponent > min(bits - 1, 8):
            raise CodecError(f"difference has the layout {payload[0]:#04x}, which this version does not know")
        if size % layout.width or payload[5] > bits:
            raise CodecError(f"difference of elements of {layout.width} bytes does not fit a block of {size}")
        return layout

    def contexts(self, elements: Array) -> Array:
        below = 8 * self.width - 1 - self.exponent
        return (elements >> below & ((1 << self.exponent) - 1)).astype(np.uint8)


class _Bits:
    """Of each byte the lowest bit comes first."""

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload
        self._bits = np.unpackbits(np.frombuffer(payload, np.uint8), bitorder="little").tobytes()
        self._at = 0

    def take(self, count: int) -> int:
        begin, self._at = self._at, self._at + count
        if self._at > len(self._bits):
            raise CodecError(f"difference ends within its bits, after {len(self._payload)} bytes")
        found = int.from_bytes(self._payload[begin // 8 : (self._at + 7) // 8], "little")
        return found >> begin % 8 & ((1 << count) - 1)

    def number(self) -> int:
        return self.take(self.take(5))

    def gaps(self, k: int, count: int) -> list[int]:
        """The places, among `count`, between which the gaps lie."""
        places = []
        place = -1
        while True:
            one = self._bits.find(1, self._at)
            if one < 0:
                raise CodecError("difference ends within a gap")
            zeros, self._at = one - self._at, one + 1
            place += 1 + (zeros << k) + self.take(k)
            if place >= count:
                break
            places.append(place)
        if place != count:
            raise CodecError(f"difference has a gap that leads {place - count} elements beyond its band")
        return places

    def members(self, contexts: Array) -> Array:
        """Which of the elements that have these contexts belong to the set that comes next."""
        bands: list[tuple[int, int, int, bool]] = []
        low = 0
        while True:
            more = self.take(1)
            cut = self.take(8) if more else 255
            if cut < low or (more and cut == 255) or len(bands) == _MAX_BANDS:
                raise CodecError(f"difference has bands that do not rise, or more than {_MAX_BANDS}")
            bands.append((low, cut, self.take(5), bool(self.take(1))))
            low = cut + 1
            if not more:
                break
        members = np.zeros(len(contexts), np.bool_)
        for low, cut, k, inverted in bands:
            places = np.flatnonzero((contexts >= low) & (contexts <= cut))
            members[places] = inverted
            if k != _NONE:
                members[places[self.gaps(k, len(places))]] = not inverted
        return members

    def live(self, count: int) -> Array:
        """Which elements are in rows that have a change."""
        if not self.take(1):
            return np.ones(count, np.bool_)
        row, before = self.number(), self.number()
        if not before < row <= count:
            raise CodecError(f"difference has rows of {row} elements, {before} before the block, which has {count}")
        rows = self.members(np.zeros(-(-(before + count) // row), np.uint8))
        return np.repeat(rows, row)[before : before + count]

    def finish(self) -> None:
        left = len(self._bits) - self._at
        if left > 7 or self.take(left):
            raise CodecError(f"difference has {left} bits after its last element")


def _changes(payload: memoryview, contexts: Array) -> tuple[Array, Array]:
    """Where something changed, and by how much."""
    levels = payload[5]
    bits = _Bits(payload[_HEAD:])
    places = np.zeros(0, np.int64)
    deltas = np.zeros(0, np.int64)
    if levels:
        places = np.flatnonzero(bits.live(len(contexts)))
        places = places[bits.members(contexts[places])]
        found = contexts[places]
        negative = bits.members(found)
        level = np.ones(len(places), np.int64)
        for number in range(1, levels):
            higher = np.flatnonzero(level == number)
            level[higher[bits.members(found[higher])]] += 1
        low = [bits.take(count) for count in (level - 1).tolist()]
        deltas = (1 << level - 1) + np.array(low, np.int64)
        deltas[negative] *= -1
    bits.finish()
    return places, deltas


def width_of(dtype: str | None) -> int:
    """Bytes of an element."""
    return KINDS.get(dtype or "", (1, 0))[0]


def encode(
    base: memoryview, new: memoryview, dtype: str | None, *, row: int = 0, before: int = 0, contexts: bool = True
) -> memoryview | None:
    """What makes `new` of `base`, or None if that takes half of the block, which then is better stored whole, or if
    there is no kernel. `row` is how many elements a row of the tensor has, and `before` how many of the first one lie
    before the block. Without contexts the difference is a third larger, and `changes` needs no base.
    """
    width, exponent = KINDS.get(dtype or "", (1, 0))
    if compiled is None or len(new) % width or len(new) != len(base) or len(new) > zstd.MAX_WINDOW:
        return None
    out = memoryview(bytearray(len(new) // 2 + 64))
    with borrowed(Work) as work:
        room = work.of(compiled.work_size(len(new)))
        size = compiled.encode(base, new, out, room, width, exponent if contexts else 0, row, before)
    if not size:
        return None
    out[1:5] = crc32c_of(new).to_bytes(4, "little")
    return out[:size]


def _decode_compiled(base: memoryview, payload: memoryview, out: memoryview) -> bool:
    if compiled is None or len(base) > zstd.MAX_WINDOW:
        return False
    with borrowed(Work) as work:
        return compiled.decode(base, payload, out, work.of(compiled.work_size(len(base))))


def decode(base: memoryview, payload: memoryview, out: memoryview) -> None:
    """Fill `out`, of the size of `base`, with what the difference makes of it."""
    size = len(base)
    layout = _Layout.of(payload, size)
    if not _decode_compiled(base, payload, out):
        elements = np.frombuffer(base, f"<u{layout.width}")
        places, deltas = _changes(payload, layout.contexts(elements))
        made = np.frombuffer(out, f"<u{layout.width}")
        made[:] = elements
        made[places] += deltas.astype(made.dtype)
    if crc32c_of(out) != int.from_bytes(payload[1:5], "little"):
        raise ChecksumError(_OTHER_BASE)


def changes(payload: memoryview, size: int) -> tuple[Array, Array] | None:
    """Places and differences, without the base; None if the places depend on its exponents. The differences of several
    payloads add up, modulo what an element can be.
    """
    layout = _Layout.of(payload, size)
    if layout.exponent and payload[5]:
        return None
    places, deltas = _changes(payload, np.zeros(size // layout.width, np.uint8))
    return places, deltas.astype(f"<u{layout.width}")
