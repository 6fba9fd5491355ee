"""`Meter`: what one save or load does, counted by all of its threads.

Each thread counts in a cell of its own, so that a codec call takes no lock; the cells are summed when all is done.
"""

from __future__ import annotations

import threading
from collections import defaultdict


class Cell:
    """What one thread has counted.

    - `items`, `raw_bytes`, `stored_bytes`: items that are done, their bytes before the chain, and in storage.
    - `io_seconds`: spent in reads, or in writes, flushes and syncs.
    - `peak_blocks`: the most blocks that were in flight at a time.
    - `busy`: seconds spent in each codec, by its name.
    """

    __slots__ = ("busy", "io_seconds", "items", "peak_blocks", "raw_bytes", "stored_bytes")

    def __init__(self) -> None:
        self.items = 0
        self.raw_bytes = 0
        self.stored_bytes = 0
        self.io_seconds = 0.0
        self.peak_blocks = 0
        self.busy: defaultdict[str, float] = defaultdict(float)


class Meter:
    """One accumulator for a save or load; any thread may add to it.

    - `implementations`: of the codecs that have several, which one runs, by the codec's name.

    The totals are exact once every thread that adds has been waited for.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._cells: list[Cell] = []
        self.implementations: dict[str, str] = {}

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
        """Add time that a codec took for one block."""
        self.cell.busy[name] += seconds

    def io(self, seconds: float) -> None:
        """Add time that reading or writing took."""
        self.cell.io_seconds += seconds

    def item(self, raw_bytes: int, stored_bytes: int) -> None:
        """Count an item that is done: its bytes before the chain, and in storage."""
        cell = self.cell
        cell.items += 1
        cell.raw_bytes += raw_bytes
        cell.stored_bytes += stored_bytes

    def blocks(self, in_flight: int) -> None:
        """Note how many blocks were in flight at a time."""
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
