"""Storages without values for tensors that are to be saved, and what belongs into each.

Tensors of one storage share it again. It goes from the first element that any of them has to the last one; what lies
between and is nobody's is zero. A tensor that has a storage for itself, and does not fill it, gets one that it fills.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from streamxf.convert.files.layout import Run, Segment, Woven, Zeros, dtype_of
from streamxf.convert.origin import View
from streamxf.dcp.tensors.boxes import contiguous_strides
from streamxf.dcp.tensors.payload import untouched_storage
from streamxf.formats.contents import Entry


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in its storage.

    Attributes
    ----------
    entry : Entry
    start : int
        Where it begins, in elements.
    strides : tuple of int
    """

    entry: Entry
    start: int
    strides: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """Whether it has no elements."""
        return not math.prod(self.entry.shape)

    @property
    def stop(self) -> int:
        """Behind its last element."""
        if self.is_empty:
            return self.start
        steps = zip(self.entry.shape, self.strides, strict=True)
        return self.start + sum((size - 1) * stride for size, stride in steps) + 1

    @property
    def order(self) -> tuple[int, ...] | None:
        """The order of dimensions in which its elements follow one another; None if they do not."""
        shape, strides = self.entry.shape, self.strides
        order = tuple(sorted(range(len(shape)), key=lambda dim: (-strides[dim], -shape[dim])))
        expected = 1
        for dim in reversed(order):
            if shape[dim] != 1 and strides[dim] != expected:
                return None
            expected *= shape[dim]
        return order


class Storages:
    """Makes tensors whose memory nobody touches, so that it takes none."""

    def __init__(self) -> None:
        self._segments: dict[int, tuple[Segment, ...]] = {}
        self._kept: list[torch.UntypedStorage] = []  # or another one could get its address

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is one of these."""
        return storage._cdata in self._segments

    def segments(self, storage: torch.UntypedStorage) -> tuple[Segment, ...]:
        """What belongs into one of these."""
        return self._segments[storage._cdata]

    def alone(self, entry: Entry) -> torch.Tensor:
        """A tensor with a storage of its own."""
        place = Place(entry, 0, contiguous_strides(entry.shape))
        return _tensor(self._storage((Run.of(entry),), Run.of(entry).size), place)

    def shared(self, group: Sequence[tuple[Entry, View]]) -> dict[str, torch.Tensor]:
        """Tensors of one storage, by their names. They are of one dtype, and lie in it."""
        places = [Place(entry, view.offset, view.strides) for entry, view in group]
        places = [replace(place, start=0) if place.is_empty else place for place in places]
        solid = {(place.start, place.strides, place.entry.shape): place for place in places if not place.is_empty}
        if len(solid) == 1 and next(iter(solid.values())).order is None:
            places = [replace(place, start=0, strides=contiguous_strides(place.entry.shape)) for place in places]
            parts = [next(place for place in places if not place.is_empty)]
        else:
            parts = list(solid.values())
        low = min((place.start for place in parts), default=0)
        parts = [replace(place, start=place.start - low) for place in parts]
        size = max((place.stop for place in parts), default=0) * dtype_of(group[0][0]).itemsize
        storage = self._storage(_segments(parts, size), size)
        made = {}
        for place, (entry, view) in zip(places, group, strict=True):
            tensor = _tensor(storage, place if place.is_empty else replace(place, start=place.start - low))
            tensor.requires_grad_(view.requires_grad)
            made[entry.name] = torch.nn.Parameter(tensor, view.requires_grad) if view.parameter else tensor
        return made

    def _storage(self, segments: tuple[Segment, ...], size: int) -> torch.UntypedStorage:
        storage = untouched_storage(size)
        self._segments[storage._cdata] = segments
        self._kept.append(storage)
        return storage


def _segments(places: Sequence[Place], size: int) -> tuple[Segment, ...]:
    """What belongs into a storage of `size` bytes."""
    if any(place.order is None for place in places):
        return (Woven(tuple((place.entry, place.start, place.strides) for place in places), size),)
    segments: list[Segment] = []
    at = 0
    for place in sorted(places, key=lambda place: (place.start, -place.stop)):
        itemsize = dtype_of(place.entry).itemsize
        start, stop = place.start * itemsize, place.stop * itemsize
        if stop <= at:
            continue
        if start > at:
            segments.append(Zeros(start - at))
        segments.append(Run(place.entry, place.order or (), max(0, at - start)))
        at = stop
    return tuple(segments)


def _tensor(storage: torch.UntypedStorage, place: Place) -> torch.Tensor:
    made = torch.empty(0, dtype=dtype_of(place.entry), device="cpu")
    return made.set_(storage, place.start, place.entry.shape, place.strides)
