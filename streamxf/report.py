"""`SaveReport` and `LoadReport`: counts and times of a save or load in this process; and the `Meter` behind them.

Each thread counts in its own cell, so that a codec call takes no lock; the cells are summed at the end.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any, ClassVar, Literal, Self

from streamxf.errors import escaped
from streamxf.wording import rate_text, size_text


@dataclass(slots=True)
class Cell:
    """The counts of one thread."""

    items: int = 0  # that are done
    raw_bytes: int = 0  # of them, before the chain
    stored_bytes: int = 0
    io_seconds: float = 0.0  # spent in reads, or in writes, flushes and syncs
    peak_blocks: int = 0  # the most that were in flight at a time
    busy: Any = field(default_factory=Counter)  # seconds, by the codec's name
    patterns: Counter[str] = field(default_factory=Counter)  # of items, by the pattern whose chain they passed
    unchanged: int = 0  # shards that an earlier save has
    unchanged_bytes: int = 0
    differences: int = 0  # shards that are stored as differences from those of an earlier save
    differences_bytes: int = 0
    differences_stored: int = 0
    whole: Counter[str] = field(default_factory=Counter)  # other shards, by the reason


class Meter:
    """One accumulator for a save or load, for any thread. Its totals are exact once all have been waited for."""

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

    def io(self, seconds: float) -> None:
        self.cell.io_seconds += seconds

    def item(self, raw_bytes: int, stored_bytes: int, pattern: str = "") -> None:
        cell = self.cell
        cell.items += 1
        cell.raw_bytes += raw_bytes
        cell.stored_bytes += stored_bytes
        cell.patterns[pattern] += 1

    def blocks(self, in_flight: int) -> None:
        self.cell.peak_blocks = max(self.cell.peak_blocks, in_flight)

    def total(self) -> Cell:
        """The sum over all threads; of the peaks, the highest."""
        total = Cell()
        for cell, name in product([*self._cells], (each.name for each in fields(Cell))):
            counted, so_far = getattr(cell, name), getattr(total, name)
            if isinstance(so_far, Counter):
                so_far.update(dict(counted))
            else:
                setattr(total, name, max(so_far, counted) if name == "peak_blocks" else so_far + counted)
        return total


@dataclass(frozen=True)
class Report:
    """Counts and times of this process; other ranks have their own reports.

    - `items`: for a load, the requested ones: several parts of one tensor count as several.
    - `raw_bytes`: the items' bytes before the chain: the elements of tensors, and ``torch.save``'s bytes for everything
      else; with an empty chain or stream transforms also for tensors.
    - `stored_bytes`: their bytes in storage; for a part of a tensor, its proportion.
    - `wall_seconds`: from the first item to the last byte.
    - `codec_seconds`: seconds spent in each codec, by its name, summed over all threads. With several workers the sum
      may exceed `wall_seconds`. What one call does for a codec and the checksum behind it counts for the codec.
    - `io_seconds`: seconds spent in calls of the file system, summed over all threads.
    - `peak_blocks`: the most blocks that one file of a save, or a load, had in flight at a time. Items that are so
      small that the calling thread does them do not count.
    - `implementations`: which ran, by the names of codecs with several: of `FloatZip` ``"compiled"`` or ``"numpy"``.
    """

    items: int
    raw_bytes: int
    stored_bytes: int
    wall_seconds: float
    codec_seconds: Mapping[str, float]
    io_seconds: float
    peak_blocks: int
    implementations: Mapping[str, str] = field(default_factory=dict)

    what: ClassVar[str]

    @classmethod
    def of(cls, meter: Meter, wall_seconds: float) -> Self:
        """The report of a save or load that is over."""
        total = meter.total()
        counts = total.items, total.raw_bytes, total.stored_bytes
        ran = dict(meter.implementations)
        return cls(*counts, wall_seconds, dict(total.busy), total.io_seconds, total.peak_blocks, ran)

    @property
    def ratio(self) -> float:
        """Stored bytes for each raw byte; 1.0 where there were none."""
        return self.stored_bytes / self.raw_bytes if self.raw_bytes else 1.0

    @property
    def throughput(self) -> float:
        """Raw bytes in a second."""
        return self.raw_bytes / self.wall_seconds if self.wall_seconds else 0.0

    def to_dict(self) -> dict[str, int | float]:
        """The report as a flat dictionary of numbers, for experiment trackers; the keys name the units."""
        return {
            "items": self.items,
            "raw_bytes": self.raw_bytes,
            "stored_bytes": self.stored_bytes,
            "stored_per_raw_byte": self.ratio,
            "wall_seconds": self.wall_seconds,
            "throughput_bytes_per_second": self.throughput,
            "peak_blocks": self.peak_blocks,
            "busy_seconds/io": self.io_seconds,
            **{f"busy_seconds/{name}": seconds for name, seconds in self.codec_seconds.items()},
        }

    def __str__(self) -> str:
        rows = [
            ("items", f"{self.items:,}", ""),
            ("raw", size_text(self.raw_bytes), ""),
            ("stored", size_text(self.stored_bytes), f"{self.ratio:.3f} of raw"),
            ("wall", f"{self.wall_seconds:,.3f} s", f"{rate_text(self.throughput)} of raw"),
            *(
                (f"busy in {name}", f"{seconds:,.3f} s", self.implementations.get(name, ""))
                for name, seconds in self.codec_seconds.items()
            ),
            ("busy in I/O", f"{self.io_seconds:,.3f} s", ""),
            ("blocks in flight", f"{self.peak_blocks}", "at most"),
            *self._more_rows(),
        ]
        first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        lines = [f"{label:<{first}}  {value:>{second}}  {note}".rstrip() for label, value, note in rows]
        return "\n".join([f"{self.what} of this process", *lines])

    def _more_rows(self) -> list[tuple[str, str, str]]:
        return []


@dataclass(frozen=True)
class SaveReport(Report):
    """Report of a save in this process; the attributes are those of `Report`, and more.

    - `stock`: whether torch's own readers can read the metadata that this process published; None if it published none.
    - `patterns`: if there is a chain for each of several patterns of names, how many items of this process each had.
    - `compared`: whether what ranks have under the same names was compared, in the process that published; None if it
      saved alone. Plans that come from a cache, and planners with methods of their own, give nothing to compare.
    - `unchanged`, `unchanged_bytes`: how many shards of tensors were as in the base of an incremental save, and so not
      stored again, and their bytes before the chain; they count in `items` and `raw_bytes`, too.
    - `differences`, `differences_bytes`, `differences_stored`: how many were stored as their differences from the base,
      their bytes before the chain, and in storage.
    - `whole`: how many others there were, by the reason for which they were stored.
    """

    stock: bool | None = None
    compared: bool | None = None
    patterns: Mapping[str, int] = field(default_factory=dict)
    unchanged: int = 0
    unchanged_bytes: int = 0
    differences: int = 0
    differences_bytes: int = 0
    differences_stored: int = 0
    whole: Mapping[str, int] = field(default_factory=dict)

    what: ClassVar[str] = "Save"

    @classmethod
    def of(cls, meter: Meter, wall_seconds: float) -> Self:
        total = meter.total()
        counts = "unchanged", "unchanged_bytes", "differences", "differences_bytes", "differences_stored"
        more: dict[str, Any] = {name: getattr(total, name) for name in counts}
        patterns = dict(total.patterns) if len(total.patterns) > 1 else {}
        return replace(super().of(meter, wall_seconds), patterns=patterns, whole=dict(total.whole), **more)

    def _more_rows(self) -> list[tuple[str, str, str]]:
        rows = [(f"items by chain of {escaped(pattern)}", f"{count:,}", "") for pattern, count in self.patterns.items()]
        if self.unchanged or self.whole:
            rows.append(("as in the base", f"{self.unchanged:,}", size_text(self.unchanged_bytes)))
        if self.differences:
            sizes = f"{size_text(self.differences_bytes)} in {size_text(self.differences_stored)}"
            rows.append(("as differences", f"{self.differences:,}", sizes))
        rows += [("stored whole", f"{count:,}", reason) for reason, count in self.whole.items()]
        rows += [("torch's own readers", "no", "`streamxf stock` lets them")] if self.stock is False else []
        return [*rows, ("ranks' values", "", "not compared")] if self.compared is False else rows


@dataclass(frozen=True)
class LoadReport(Report):
    """Report of a load in this process; the attributes are those of `Report`, and more.

    - `left`: the names of items that neither this rank's plan nor its state has. Another rank may have loaded them.
    - `read`: ``"once"`` if other ranks read for this one, or it for them, else ``"each"``.
    - `reason`: why each rank read for itself, although the reader has ``read="once"``.
    - `received_bytes`: of tensors, before the chain, that other ranks read; `stored_bytes` has what this one read.
    """

    left: tuple[str, ...] = ()
    read: Literal["each", "once"] = "each"
    reason: str = ""
    received_bytes: int = 0

    what: ClassVar[str] = "Load"

    def _more_rows(self) -> list[tuple[str, str, str]]:
        shown = ", ".join(map(escaped, self.left[:3])) + (", ..." if len(self.left) > 3 else "")
        rows = [("items left out", f"{len(self.left):,}", shown)] if self.left else []
        if self.read == "once":
            rows.append(("received", size_text(self.received_bytes), "from other ranks"))
        return [*rows, ("read by each", "", self.reason)] if self.reason else rows
