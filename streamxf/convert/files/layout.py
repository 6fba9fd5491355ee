"""What stands in a file that is to be written, before any tensor is read: bytes, and runs of tensors' elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from streamxf.buffers import flat_view
from streamxf.formats.contents import Entry
from streamxf.formats.source import Box, Source, boxes_of

_ZEROS = memoryview(bytes(2**20))


@dataclass(frozen=True, slots=True)
class Zeros:
    """Bytes that nothing refers to."""

    size: int


@dataclass(frozen=True, slots=True)
class Run:
    """A tensor's elements.

    Attributes
    ----------
    entry : Entry
    order : tuple of int
        Its dimensions, the one that changes slowest in the file first.
    skipped : int
        Bytes at its beginning that are left out.
    """

    entry: Entry
    order: tuple[int, ...]
    skipped: int = 0

    @classmethod
    def of(cls, entry: Entry) -> Run:
        """All of it, in row-major order."""
        return cls(entry, tuple(range(len(entry.shape))))

    @property
    def size(self) -> int:
        return math.prod(self.entry.shape) * dtype_of(self.entry).itemsize - self.skipped

    def boxes(self, start: int) -> Iterator[tuple[Box, int]]:
        """The boxes from the byte `start` of the run on, each with how many of its bytes come before that."""
        itemsize = dtype_of(self.entry).itemsize
        turned = replace(self.entry, shape=tuple(self.entry.shape[dim] for dim in self.order))
        at = -self.skipped - start
        for box in boxes_of(turned, itemsize):
            size = math.prod(box.lengths) * itemsize
            if at + size > 0:
                yield Box(self.entry, self._turned_back(box.offsets), self._turned_back(box.lengths)), max(0, -at)
            at += size

    def memory(self, part: torch.Tensor) -> memoryview:
        """A box's bytes in the order of the file."""
        return bytes_of(part.permute(self.order).contiguous())

    def _turned_back(self, places: Sequence[int]) -> tuple[int, ...]:
        return tuple(places[self.order.index(dim)] for dim in range(len(places)))


@dataclass(frozen=True, slots=True)
class Woven:
    """A storage that tensors share whose elements lie between each other's. It is put together in memory.

    Attributes
    ----------
    parts : tuple of (Entry, int, tuple of int)
        Tensors, where each begins in the storage, in elements, and its strides. All have the same dtype.
    size : int
        In bytes.
    """

    parts: tuple[tuple[Entry, int, tuple[int, ...]], ...]
    size: int

    def boxes(self) -> Iterator[Box]:
        """Those of all tensors."""
        for entry, _, _ in self.parts:
            yield from boxes_of(entry, dtype_of(entry).itemsize)

    def memory(self, reading: Iterator[torch.Tensor]) -> memoryview:
        """The storage, from the boxes that were read."""
        itemsize = dtype_of(self.parts[0][0]).itemsize
        storage = np.zeros(self.size // itemsize, f"V{itemsize}")
        for entry, start, strides in self.parts:
            for box in boxes_of(entry, itemsize):
                first = start + sum(at * stride for at, stride in zip(box.offsets, strides, strict=True))
                steps = [stride * itemsize for stride in strides]
                place = np.lib.stride_tricks.as_strided(storage[first:], box.lengths, steps)
                place[...] = np.frombuffer(bytes_of(next(reading)), storage.dtype).reshape(box.lengths)
        return storage.view(np.uint8).data


Segment = bytes | Zeros | Run | Woven


@dataclass(frozen=True)
class File:
    """A file that is to be written.

    Attributes
    ----------
    name : str
        Relative to the checkpoint's folder; where the file is the checkpoint, its name.
    segments : tuple of Segment
        One after the other.
    """

    name: str
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(size_of, self.segments))

    def tensors(self) -> Iterator[str]:
        """The names, in the checkpoint, of tensors that are in it."""
        for segment in self.segments:
            if isinstance(segment, Run):
                yield segment.entry.name
            elif isinstance(segment, Woven):
                yield from (entry.name for entry, _, _ in segment.parts)


def size_of(segment: Segment) -> int:
    """A segment's bytes."""
    return len(segment) if isinstance(segment, bytes) else segment.size


def pieces(source: Source, file: File, start: int) -> Iterator[memoryview]:
    """A file's bytes from `start` on; each piece is valid until the next."""
    begun: list[tuple[Segment, int]] = []
    at = -start
    for segment in file.segments:
        size = size_of(segment)
        if at + size > 0:
            begun.append((segment, max(0, -at)))
        at += size
    reading = source.read(_boxes(begun))
    for segment, skip in begun:
        match segment:
            case bytes():
                yield memoryview(segment)[skip:]
            case Zeros():
                for done in range(skip, segment.size, len(_ZEROS)):
                    yield _ZEROS[: segment.size - done]
            case Woven():
                yield segment.memory(reading)[skip:]
            case Run():
                for _, cut in segment.boxes(skip):
                    yield segment.memory(next(reading))[cut:]


def _boxes(segments: Iterable[tuple[Segment, int]]) -> Iterator[Box]:
    for segment, skip in segments:
        if isinstance(segment, Run):
            yield from (box for box, _ in segment.boxes(skip))
        elif isinstance(segment, Woven):
            yield from segment.boxes()


def dtype_of(entry: Entry) -> torch.dtype:
    """Torch's dtype of a tensor."""
    dtype: torch.dtype = getattr(torch, str(entry.dtype))
    return dtype


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    flat = tensor.reshape(-1)
    if not flat.numel():
        return memoryview(b"")
    if flat.numel() == 1:  # whatever stride it has means nothing, but view() insists on 1
        flat = flat.as_strided((1,), (1,))
    return flat_view(flat.view(torch.uint8).numpy().data)
