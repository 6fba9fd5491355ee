"""An encoder for differences, written from docs/format/differences.md, which makes every payload that the page allows:
each choice that a decoder does not care for is drawn, and so some payloads are longer than the page allows. And
blocks, such as training leaves behind.
"""

import random
from collections.abc import Sequence
from itertools import pairwise

import crc32c
import numpy as np

LAYOUTS = ((1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1))  # bytes of an element, and whether it is banded


def pair(seed: int, size: int | None = None) -> tuple[bytes, bytes, int, int, int, int]:
    """A block and the one after it, with width, whether it is banded, row and what lies before it."""
    rng = np.random.default_rng(seed)
    width, banded = LAYOUTS[rng.integers(len(LAYOUTS))]
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
    return base.tobytes(), new.astype(kind).tobytes(), width, banded, row, before


class Bits:
    """Bits, of which the first is the lowest of the first byte."""

    def __init__(self) -> None:
        self._bits: list[int] = []

    def put(self, value: int, count: int) -> None:
        self._bits += [value >> place & 1 for place in range(count)]

    def count(self, value: int) -> None:
        self.put(value.bit_length(), 5)
        self.put(value, value.bit_length())

    def members(self, members: Sequence[bool], contexts: Sequence[int], choose: random.Random, most: int) -> None:
        """A set of so many bands."""
        cuts = [*sorted(choose.sample(range(255), choose.randrange(most))), 255]
        for low, cut in zip([-1, *cuts], cuts, strict=False):
            inside = [is_in for is_in, context in zip(members, contexts, strict=True) if low < context <= cut]
            inverted = choose.random() < 0.5
            listed = [place for place, is_in in enumerate(inside) if is_in != inverted]
            self.put(cut < 255, 1)
            if cut < 255:
                self.put(cut, 8)
            self.put(inverted, 1)
            self.count(len(listed))
            k = choose.randrange(choose.choice((2, 32 if choose.random() < 0.1 else 9)))
            if listed:
                self.put(k, 5)
            for before, place in pairwise([-1, *listed]):
                gap = place - before - 1
                self.put(1 << (gap >> k), (gap >> k) + 1)
                self.put(gap, k)

    def packed(self) -> bytes:
        return np.packbits(self._bits, bitorder="little").tobytes()


def forge(base: bytes, new: bytes, width: int, banded: int, choose: random.Random, row: int = 0) -> bytes:
    """The difference of `new` from `base`; with rows of `row` elements, some of the first of which may lie before."""
    olds, news = ([int(each) for each in np.frombuffer(block, f"<u{width}")] for block in (base, new))
    half, most = 1 << 8 * width - 1, 6 if banded else 1
    steps = [(after - before + half) % (2 * half) - half for before, after in zip(olds, news, strict=True)]
    contexts = [(2 * old >> 8 * width - 8) % 256 * banded for old in olds]
    levels = max((abs(step).bit_length() for step in steps), default=0)
    head = bytes([0x80 | banded << 2 | width.bit_length() - 1]) + crc32c.crc32c(new).to_bytes(4, "little")
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
        bits.members(rows, [0] * len(rows), choose, 1)
        live = [place for place in live if rows[(place + before) // row]]
    bits.members([steps[place] != 0 for place in live], [contexts[place] for place in live], choose, most)
    left = changed = [place for place in live if steps[place]]
    for level in range(1, levels):
        higher = [abs(steps[place]) >> level != 0 for place in left]
        bits.members(higher, [contexts[place] for place in left], choose, most)
        left = [place for place, is_in in zip(left, higher, strict=True) if is_in]
    for place in changed:
        bits.put(steps[place] < 0, 1)
        bits.put(abs(steps[place]), abs(steps[place]).bit_length() - 1)
    return head + bytes([levels]) + bits.packed()
