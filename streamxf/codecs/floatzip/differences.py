"""A block as its difference from the block that lies at the same place in an earlier save: which elements changed, and
by how much. docs/format/differences.md is the norm; `differences.h` does the same faster, and alone encodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from streamxf.codecs.checksum import crc32c_of
from streamxf.codecs.floatzip import kernel
from streamxf.codecs.floatzip.planes import Array
from streamxf.errors import ChecksumError, CodecError

__all__ = ["DIFFERENCE", "changes", "decode", "encode"]

DIFFERENCE, _BANDED = 0x80, 0x04  # of the first byte of a payload
_HEAD = 6  # bytes: layout, CRC, levels
_MAX_BANDS = 6
_SLACK = 64  # bytes that a difference may have above half of its block
_OTHER_BASE = "the block beneath a difference is not the one that it was made from, or one of them is damaged"


@dataclass(frozen=True)
class _Layout:
    width: int
    banded: bool

    @classmethod
    def of(cls, payload: memoryview, size: int) -> _Layout:
        if len(payload) < _HEAD or not payload[0] & DIFFERENCE:
            raise CodecError(f"payload of {len(payload)} bytes is no difference")
        if len(payload) > (most := size // 2 + _SLACK):
            raise CodecError(f"difference of {len(payload)} bytes is too long for a block of {size}: at most {most}")
        layout = cls(1 << (payload[0] & 3), bool(payload[0] & _BANDED))
        if payload[0] & 0x78 or layout.width > 4:
            raise CodecError(f"difference has the layout {payload[0]:#04x}, which this version does not know")
        if size % layout.width or payload[5] > 8 * layout.width:
            raise CodecError(f"difference of elements of {layout.width} bytes does not fit a block of {size}")
        return layout

    def contexts(self, elements: Array) -> Array | None:
        """The 8 bits beneath the highest one."""
        return ((elements << 1) >> 8 * (self.width - 1) & 255).astype(np.uint8) if self.banded else None


class _Bits:
    """Of each byte the lowest bit comes first."""

    def __init__(self, payload: memoryview) -> None:
        self._bits = np.unpackbits(np.frombuffer(payload, np.uint8), bitorder="little").tobytes()
        self._eights = sliding_window_view(np.frombuffer(bytes(payload) + bytes(8), np.uint8), 8)
        self._at = 0

    def _taken(self, begins: Array, counts: Array | int) -> Array:
        """Numbers of so many bits each, at most 32, that begin at these."""
        found: Array = self._eights[begins >> 3].view("<i8")[:, 0] >> (begins & 7) & ((1 << counts) - 1)
        return found

    def take_each(self, counts: Array) -> Array:
        ends = self._at + np.cumsum(counts)
        self.need(int(ends.max(initial=self._at)) - self._at)
        self._at = int(ends.max(initial=self._at))
        return self._taken(ends - counts, counts)

    def need(self, count: int) -> None:
        """Refuse what goes on for fewer bits, before there is memory for more."""
        if count > len(self._bits) - self._at:
            raise CodecError(f"difference ends within its bits, after {len(self._bits) // 8} bytes")

    def take(self, count: int) -> int:
        return int(self.take_each(np.array([count]))[0])

    def number(self) -> int:
        return self.take(self.take(5))

    def listed(self, count: int) -> Array:
        """Which of the elements of a band are listed."""
        left = self.number()
        if not left:
            return np.zeros(0, np.int64)
        k, begin = self.take(5), self._at
        gaps = re.compile(b"\1.{%d}" % k, re.DOTALL).finditer(self._bits, begin)
        ones = np.fromiter((gap.start() for gap in islice(gaps, min(left, count))), np.int64)
        if len(ones) < left:
            raise CodecError(f"difference lists {left} elements of a band that has {count}, or ends within a gap")
        self._at = int(ones[-1]) + 1 + k
        zeros = np.diff(ones, prepend=begin - 1 - k) - 1 - k
        places = np.cumsum((zeros << k) + self._taken(ones + 1, k) + 1) - 1
        if places[-1] >= count:
            raise CodecError(f"difference lists element {places[-1]} of a band that has {count}")
        return places

    def members(self, count: int, contexts: Array | None = None) -> Array:
        """Which of `count` elements, with these contexts, belong to the set that comes next."""
        most = 1 if contexts is None else _MAX_BANDS
        members = np.zeros(count, np.bool_)
        low, more, bands = 0, True, 0
        while more:
            more = bool(self.take(1))
            cut = self.take(8) if more else 255
            bands += 1
            if cut < low or (more and (cut == 255 or bands == most)):
                raise CodecError(f"difference has bands that do not rise, or more than {most} in a set")
            places = None  # all, where there is one band
            if contexts is not None and (low or cut < 255):
                places = np.flatnonzero((contexts >= low) & (contexts <= cut))
            low = cut + 1
            inverted = bool(self.take(1))
            members[slice(None) if places is None else places] = inverted
            listed = self.listed(count if places is None else len(places))
            members[listed if places is None else places[listed]] = not inverted
        return members

    def live(self, count: int) -> Array | None:
        """Which elements are in rows that have a change; None for all."""
        if not self.take(1):
            return None
        row, before = self.number(), self.number()
        if not before < row <= count:
            raise CodecError(f"difference has rows of {row} elements, {before} before the block, which has {count}")
        rows = self.members(-(-(before + count) // row))
        return np.repeat(rows, row)[before : before + count]

    def finish(self) -> None:
        left = len(self._bits) - self._at
        if left > 7 or self.take(left):
            raise CodecError(f"difference has {left} bits after its last element")


def _changes(payload: memoryview, count: int, contexts: Array | None) -> tuple[Array, Array]:
    """Where something changed, of `count` elements, and by how much."""
    bits = _Bits(payload[_HEAD:])
    if not payload[5]:
        bits.finish()
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    def chosen(of: Array | None) -> Array:
        """Which of these places, or of all, belong to the next set; each takes one bit more at least."""
        within = contexts if contexts is None or of is None else contexts[of]
        found = bits.members(count if of is None else len(of), within)
        bits.need(taken + int(np.count_nonzero(found)))
        return np.flatnonzero(found)

    taken = 0
    live = bits.live(count)
    rows = None if live is None else np.flatnonzero(live)
    places = chosen(rows) if rows is None else rows[chosen(rows)]
    taken = len(places)
    level = np.zeros(len(places), np.int64)
    for number in range(payload[5] - 1):
        left = np.flatnonzero(level == number)
        more = left[chosen(places[left])]
        level[more] += 1
        taken += len(more)
    rest = bits.take_each(1 + level)
    bits.finish()
    return places, ((1 << level) + (rest >> 1)) * (1 - 2 * (rest & 1))


def encode(
    base: memoryview, new: memoryview, dtype: str | None, *, row: int = 0, before: int = 0, contexts: bool = True
) -> memoryview | None:
    """What makes `new` of `base`, or None if that takes half of the block, which then is better stored whole, or if
    there is no kernel. `row` is how many elements a row of the tensor has, and `before` how many of the first one lie
    before the block. Without contexts the difference is a third larger, and `changes` needs no base.
    """
    width = kernel.WIDTHS.get(dtype or "", 1)
    if width == 8:  # two elements in place of one
        width, row, before = 4, 2 * row, 2 * before
    if len(new) % width or len(new) != len(base):
        return None
    most, banded = len(new) // 2 + _SLACK - 8, contexts and dtype in kernel.WIDTHS
    made = kernel.encode_difference(base, new, width, most, banded=banded, row=row, before=before)
    if made is not None and not any(made[1:5]):
        made = made[:1] + crc32c_of(new).to_bytes(4, "little") + made[5:]
    return None if made is None else memoryview(made)


def decode(base: memoryview, payload: memoryview, out: memoryview) -> None:
    """Fill `out`, of the size of `base`, with what the difference makes of it."""
    size = len(base)
    layout = _Layout.of(payload, size)
    done = kernel.decode_difference(base, payload, out)
    if not done:
        elements = np.frombuffer(base, f"<u{layout.width}")
        places, deltas = _changes(payload, len(elements), layout.contexts(elements))
        made = np.frombuffer(out, f"<u{layout.width}")
        made[:] = elements
        made[places] += deltas.astype(made.dtype)
    if done < 2 and crc32c_of(out) != int.from_bytes(payload[1:5], "little"):
        raise ChecksumError(_OTHER_BASE)


def changes(payload: memoryview, size: int) -> tuple[Array, Array] | None:
    """Places and differences, without the base; None if they depend on it. The differences of several
    payloads add up, modulo what an element can be.
    """
    layout = _Layout.of(payload, size)
    if layout.banded and payload[5]:
        return None
    places, deltas = _changes(payload, size // layout.width, None)
    return places, deltas.astype(f"<u{layout.width}")
