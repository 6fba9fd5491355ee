"""`Meter`: what one save or load does, counted by all of its threads.

Each thread counts in a cell of its own, so that a codec call takes no lock; the cells are summed when all is done.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cell:
    """What one thread has counted."""

    items: int = 0  # that are done
    raw_bytes: int = 0  # of them, before the chain
    stored_bytes: int = 0
    io_seconds: float = 0.0  # spent in reads, or in writes, flushes and syncs
    peak_blocks: int = 0  # the most that were in flight at a time
    busy: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # seconds, by the codec's name


class Meter:
    """One accumulator for a save or load; any thread may add to it. Its totals are exact once all have been waited
    for.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._cells: list[Cell] = []
        self.implementations: dict[str, str] = {}  # which one runs of a codec that has several, by the codec's name

    @property
    def cell(self) -> Cell:
        """The calling thread's cell."""
        try:
            cell: Cell = self._local.cell
        except AttributeError:
            cell = self._local.cell = Cell()
            self._cells.append(cell)
        return cell

    def codec(self, name: str, seconds: float) -> None:
        self.cell.busy[name] += seconds

    def io(self, seconds: float) -> None:
        self.cell.io_seconds += seconds

    def item(self, raw_bytes: int, stored_bytes: int) -> None:
        cell = self.cell
        cell.items += 1
        cell.raw_bytes += raw_bytes
        cell.stored_bytes += stored_bytes

    def blocks(self, in_flight: int) -> None:
        cell = self.cell
        cell.peak_blocks = max(cell.peak_blocks, in_flight)

    def total(self) -> Cell:
        """The sum over all threads; of the peaks, the highest."""
        total = Cell()
        for cell in list(self._cells):
            total.items += cell.items
            total.raw_bytes += cell.raw_bytes
            total.stored_bytes += cell.stored_bytes
            total.io_seconds += cell.io_seconds
            total.peak_blocks = max(total.peak_blocks, cell.peak_blocks)
            for name, seconds in list(cell.busy.items()):
                total.busy[name] += seconds
        return total
