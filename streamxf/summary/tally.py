"""`Tally`: sums over items."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from streamxf.formats.contents import Entry, Part


@dataclass(slots=True)
class Tally:
    """What some items come to.

    Attributes
    ----------
    tensors, objects : int
        How many items; those that are no tensors are objects.
    elements : int
        Of the tensors.
    raw_bytes, stored_bytes : int
        Of the tensors, as they are in memory and as they are stored.
    object_bytes : int
        Of the objects, as they are stored; what they take in memory only decoding them tells.
    """

    tensors: int = 0
    objects: int = 0
    elements: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    object_bytes: int = 0

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Tally:
        """What `entries` come to."""
        tally = cls()
        for entry in entries:
            tally.add(entry, entry.parts)
        return tally

    @property
    def items(self) -> int:
        """Tensors and objects."""
        return self.tensors + self.objects

    @property
    def ratio(self) -> float | None:
        """Stored over raw bytes, of the tensors; None where there are no raw bytes."""
        return self.stored_bytes / self.raw_bytes if self.raw_bytes else None

    def add(self, entry: Entry, parts: Iterable[Part]) -> None:
        """Count an item, by those of its parts that count here."""
        stored = sum(part.stored_bytes for part in parts)
        if not entry.is_tensor:
            self.objects += 1
            self.object_bytes += stored
            return
        elements = sum(math.prod(part.shape) for part in parts)
        self.tensors += 1
        self.elements += elements
        self.raw_bytes += raw_of(entry, elements)
        self.stored_bytes += stored

    def merge(self, other: Tally) -> None:
        """Count what `other` has counted."""
        self.tensors += other.tensors
        self.objects += other.objects
        self.elements += other.elements
        self.raw_bytes += other.raw_bytes
        self.stored_bytes += other.stored_bytes
        self.object_bytes += other.object_bytes

    def as_dict(self) -> dict[str, int | float | None]:
        """For JSON."""
        return {
            "tensors": self.tensors,
            "objects": self.objects,
            "elements": self.elements,
            "raw_bytes": self.raw_bytes,
            "stored_bytes": self.stored_bytes,
            "object_bytes": self.object_bytes,
            "ratio": self.ratio,
        }


def raw_of(entry: Entry, elements: int) -> int:
    """The bytes of so many of a tensor's elements."""
    whole = math.prod(entry.shape)
    return (entry.raw_bytes or 0) * elements // whole if whole else 0
