"""Elements to planes and back, by numpy, in as few operations as possible.

numpy releases the interpreter's lock while it works and takes it again between two operations, and there workers wait
for each other. So a whole block of the usual size is one part: smaller parts would stay in faster caches, but two
workers then did no more than one. Left shifts are written as multiplications, which numpy does at twice the speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PART_BYTES = 1024 * 1024

Array = NDArray[Any]


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
