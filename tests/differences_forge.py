"""An encoder for differences, written from docs/format/differences.md, which makes every payload that the page allows:
each choice that a decoder does not care for is drawn. And blocks, such as training leaves behind.
"""

import random
from collections.abc import Sequence

import crc32c
import numpy as np

LAYOUTS = ((1, 0), (1, 4), (1, 5), (2, 0), (2, 5), (2, 8), (4, 0), (4, 8))  # bytes of an element, bits of its context


def pair(seed: int, size: int | None = None) -> tuple[bytes, bytes, int, int, int, int]:
    """A block and the one after it, with width, bits of contexts, row and what lies before it."""
    rng = np.random.default_rng(seed)
    width, exponent = LAYOUTS[rng.integers(len(LAYOUTS))]
    count = int(rng.integers(0, 3000) if size is None else size)
    kind = np.dtype(f"<u{width}")
    high = 1 << 8 * width
    even = rng.random() < 0.5
    base = (rng.integers(0, high, count) if even else rng.normal(0, high / 8, count).astype(np.int64)).astype(kind)
    shares = np.sort(rng.random(8)) * rng.random() ** 3
    changed = rng.random(count) < shares[(base >> 8 * width - 4) % 8]
    row = int(rng.integers(17, 400)) if rng.random() < 0.5 else 0
    before = int(rng.integers(row)) if row else 0
    if row:
        changed &= np.repeat(rng.random((before + count) // row + 1) < 0.3, row)[before : before + count]
    step = rng.normal(0, 2.0 ** rng.integers(0, 8 * width - 1), count).astype(np.int64)
    new = np.where(changed, base + step.astype(kind), base)
    return base.tobytes(), new.astype(kind).tobytes(), width, exponent, row, before


class Bits:
    """Bits, of which the first is the lowest of the first byte."""

    def __init__(self) -> None:
        self._bits: list[int] = []

    def put(self, value: int, count: int) -> None:
        self._bits += [value >> place & 1 for place in range(count)]

    def count(self, value: int) -> None:
        self.put(value.bit_length(), 5)
        self.put(value, value.bit_length())

    def gap(self, value: int, k: int) -> None:
        self.put(1 << (value >> k), (value >> k) + 1)
        self.put(value, k)

    def members(self, members: Sequence[bool], contexts: Sequence[int], choose: random.Random) -> None:
        cuts = [*sorted(choose.sample(range(255), choose.randrange(8))), 255]
        bands: list[tuple[list[bool], int]] = []
        for low, cut in zip([-1, *cuts], cuts, strict=False):
            inside = [is_in for is_in, context in zip(members, contexts, strict=True) if low < context <= cut]
            inverted = choose.random() < 0.5
            listed = [is_in != inverted for is_in in inside]
            k = 31 if not any(listed) and choose.random() < 0.7 else choose.randrange(max(1, len(inside).bit_length()))
            bands.append((listed, k))
            self.put(cut < 255, 1)
            if cut < 255:
                self.put(cut, 8)
            self.put(k, 5)
            self.put(inverted, 1)
        for listed, k in bands:
            gap = 0
            for is_in in [*listed, True] if k < 31 else []:
                if is_in:
                    self.gap(gap, k)
                gap = 0 if is_in else gap + 1

    def packed(self) -> bytes:
        return np.packbits(self._bits, bitorder="little").tobytes()


def forge(base: bytes, new: bytes, width: int, exponent: int, choose: random.Random, row: int = 0) -> bytes:
    """The difference of `new` from `base`; with rows of `row` elements, some of the first of which may lie before."""
    olds, news = ([int(each) for each in np.frombuffer(block, f"<u{width}")] for block in (base, new))
    half = 1 << 8 * width - 1
    steps = [(after - before + half) % (2 * half) - half for before, after in zip(olds, news, strict=True)]
    contexts = [old >> 8 * width - 1 - exponent & (1 << exponent) - 1 for old in olds]
    levels = max((abs(step).bit_length() for step in steps), default=0)
    head = bytes([0x80 | exponent << 2 | width.bit_length() - 1]) + crc32c.crc32c(new).to_bytes(4, "little")
    bits = Bits()
    if not levels:
        return head + b"\0"
    levels = min(levels + choose.randrange(2), 8 * width)
    live = list(range(len(steps)))
    bits.put(0 < row <= len(steps), 1)
    if 0 < row <= len(steps):
        before = choose.randrange(row)
        rows = [False] * -(-(before + len(steps)) // row)
        for place in live:
            rows[(place + before) // row] |= steps[place] != 0 or choose.random() < 0.001
        bits.count(row)
        bits.count(before)
        bits.members(rows, [0] * len(rows), choose)
        live = [place for place in live if rows[(place + before) // row]]
    bits.members([steps[place] != 0 for place in live], [contexts[place] for place in live], choose)
    left = changed = [place for place in live if steps[place]]
    bits.members([steps[place] < 0 for place in left], [contexts[place] for place in left], choose)
    for level in range(1, levels):
        higher = [abs(steps[place]) >> level != 0 for place in left]
        bits.members(higher, [contexts[place] for place in left], choose)
        left = [place for place, is_in in zip(left, higher, strict=True) if is_in]
    for place in changed:
        bits.put(abs(steps[place]), abs(steps[place]).bit_length() - 1)
    return head + bytes([levels]) + bits.packed()
