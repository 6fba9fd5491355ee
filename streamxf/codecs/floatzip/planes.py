"""Elements to planes and back, by numpy, in parts that stay in cache.

numpy releases the interpreter's lock while it works on a part, and takes it between two operations; parts are as large
as the cache allows, so that workers seldom wait for each other. Left shifts are written as multiplications, which numpy
does at twice the speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PART_BYTES = 256 * 1024

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

    Parameters
    ----------
    elements : array of unsigned integers, shape (n,)
    rotated : bool
        Rotate elements left by one bit first.
    planes : sequence of arrays of unsigned integers, shape (n,)
        Filled. Their item sizes add up to that of `elements`.
    """
    width = elements.itemsize
    first, second = work.parts(width)
    for start in range(0, len(elements), len(first)):
        part = elements[start : start + len(first)]
        moved, shifted = first[: len(part)], second[: len(part)]
        if rotated:
            np.add(part, part, out=moved)
            np.right_shift(part, 8 * width - 1, out=shifted)
            np.bitwise_or(moved, shifted, out=moved)
            part = moved
        below = 0
        for plane in planes:
            source = part if not below else np.right_shift(part, 8 * below, out=shifted)
            np.copyto(plane[start : start + len(part)], source, casting="unsafe")
            below += plane.itemsize


def merge(planes: Sequence[Array], rotated: bool, elements: Array, work: Workspace) -> None:
    """Undo `split`: fill `elements` from the planes."""
    width = elements.itemsize
    first, second = work.parts(width)
    for start in range(0, len(elements), len(first)):
        part = elements[start : start + len(first)]
        moved, shifted = first[: len(part)], second[: len(part)]
        below = width - planes[-1].itemsize
        np.copyto(moved, planes[-1][start : start + len(part)])
        if below:
            np.multiply(moved, moved.dtype.type(1 << 8 * below), out=moved)
        for plane in reversed(planes[:-1]):
            below -= plane.itemsize
            np.copyto(shifted, plane[start : start + len(part)])
            if below:
                np.multiply(shifted, shifted.dtype.type(1 << 8 * below), out=shifted)
            np.bitwise_or(moved, shifted, out=moved)
        if rotated:
            np.right_shift(moved, 1, out=shifted)
            np.multiply(moved, moved.dtype.type(1 << (8 * width - 1)), out=moved)
            np.bitwise_or(moved, shifted, out=part)
        else:
            np.copyto(part, moved)
