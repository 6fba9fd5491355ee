"""`Tally`: sums over items."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from streamxf.format.items import ITEMSIZES, Item, ObjectItem


@dataclass(slots=True)
class Tally:
    """Sums over some items.

    Attributes
    ----------
    tensors, objects : int
        How many items; those that are not tensors are objects.
    elements : int
        Of the tensors.
    raw_bytes, stored_bytes : int
        Of the tensors, as they are in memory and as they are stored.
    object_bytes : int
        Of the objects, as they are stored; their size in memory is not known without decoding them.
    """

    tensors: int = 0
    objects: int = 0
    elements: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    object_bytes: int = 0

    @classmethod
    def of(cls, items: Iterable[Item]) -> Tally:
        """The sums of `items`."""
        tally = cls()
        for item in items:
            tally.add(item)
        return tally

    @property
    def items(self) -> int:
        """Tensors and objects."""
        return self.tensors + self.objects

    @property
    def ratio(self) -> float | None:
        """Stored over raw bytes, of the tensors; None where there are no raw bytes."""
        return self.stored_bytes / self.raw_bytes if self.raw_bytes else None

    def add(self, item: Item, chain: tuple[str, ...] | None = None) -> None:
        """Count an item, or only what is stored through one chain."""
        if isinstance(item, ObjectItem):
            self.objects += 1
            self.object_bytes += item.stored_bytes
            return
        chunks = item.chunks if chain is None else [each for each in item.chunks if each.place.chain == chain]
        elements = sum(math.prod(chunk.shape) for chunk in chunks)
        self.tensors += 1
        self.elements += elements
        self.raw_bytes += elements * ITEMSIZES.get(item.dtype, 0)
        self.stored_bytes += sum(chunk.place.size for chunk in chunks)

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
        return {**asdict(self), "ratio": self.ratio}
