"""`Digest`: the CRC-32C of a file, put together from those of its pieces, in whatever order they come."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from streamxf.container.combine import combined


class _Run(NamedTuple):
    """Bytes of the file that stand one behind the other, and their CRC."""

    start: int
    stop: int
    crc: int


class Digest:
    """What is known of a file's CRC. Neighbours are joined, so it holds no more than the file has holes."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def add(self, start: int, size: int, crc: int) -> None:
        """Take a piece. One that lies over another is left out: each byte counts once."""
        runs = self._runs
        made = _Run(start, start + size, crc)
        at = bisect_right(runs, start, key=lambda run: run.start)
        if not size or (at and runs[at - 1].stop > start) or (at < len(runs) and runs[at].start < made.stop):
            return
        first, last = at, at
        if at and runs[at - 1].stop == start:
            first -= 1
            made = _joined(runs[first], made)
        if at < len(runs) and runs[at].start == made.stop:
            last += 1
            made = _joined(made, runs[at])
        runs[first:last] = [made]

    def gaps(self, size: int) -> list[tuple[int, int]]:
        """Where the pieces are that are missing from a file of `size` bytes: their starts and ends."""
        ends = [0, *(run.stop for run in self._runs)]
        starts = [*(run.start for run in self._runs), size]
        return [(start, stop) for start, stop in zip(ends, starts, strict=True) if start < stop]

    def text(self, size: int) -> str | None:
        """The digest of a file of `size` bytes, as a manifest has it; None while pieces are missing."""
        if self.gaps(size):
            return None
        crc = self._runs[0].crc if self._runs else 0
        return f"crc32c:{crc:08x}"


def _joined(one: _Run, other: _Run) -> _Run:
    return _Run(one.start, other.stop, combined(one.crc, other.crc, other.stop - other.start))
