"""What stands in a file that is to be written, before any tensor is read: bytes, and runs of tensors' elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from streamxf.buffers import flat_view
from streamxf.formats.contents import Entry
from streamxf.formats.source import Box, Source, boxes_of

_WINDOW = 2**20  # bytes that are read at once of an item whose parts stand all over a file


@dataclass(frozen=True, slots=True)
class Step:
    """How some bytes of a file are had.

    Attributes
    ----------
    box : Box or None
        What is read for them; None if they are in the window that was read last.
    order : tuple of int
        The dimensions of what is read, the one that changes slowest in the file first.
    start, stop : int
        Which bytes of it.
    window : int or None
        The number of the window, where they are part of one.
    """

    box: Box | None
    order: tuple[int, ...]
    start: int
    stop: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A tensor's elements.

    Attributes
    ----------
    entry : Entry
    order : tuple of int
        Its dimensions, the one that changes slowest in the file first.
    """

    entry: Entry
    order: tuple[int, ...]

    @classmethod
    def of(cls, entry: Entry) -> Run:
        """All of it, in row-major order."""
        return cls(entry, tuple(range(len(entry.shape))))

    @property
    def size(self) -> int:
        return math.prod(self.entry.shape) * dtype_of(self.entry).itemsize

    def steps(self, start: int) -> Iterator[Step]:
        """From the byte `start` on, box by box."""
        itemsize = dtype_of(self.entry).itemsize
        turned = replace(self.entry, shape=tuple(self.entry.shape[dim] for dim in self.order))
        at = -start
        for box in boxes_of(turned, itemsize):
            size = math.prod(box.lengths) * itemsize
            if at + size > 0:
                wanted = Box(self.entry, self._turned_back(box.offsets), self._turned_back(box.lengths))
                yield Step(wanted, self.order, max(0, -at), size)
            at += size

    def _turned_back(self, places: Sequence[int]) -> tuple[int, ...]:
        return tuple(places[self.order.index(dim)] for dim in range(len(places)))


@dataclass(frozen=True, slots=True)
class Cut:
    """Some elements of a row of bytes, whose others stand elsewhere in the file.

    Attributes
    ----------
    entry : Entry
    start, size : int
    """

    entry: Entry
    start: int
    size: int

    def steps(self, start: int, window: int | None) -> Iterator[Step]:
        """From the byte `start` on, window by window; `window` is the one that was read last."""
        at, stop = self.start + start, self.start + self.size
        while at < stop:
            number = at // _WINDOW
            first = number * _WINDOW
            end = min(stop, first + _WINDOW)
            box = Box(self.entry, (first,), (min(_WINDOW, self.entry.shape[0] - first),)) if number != window else None
            yield Step(box, (0,), at - first, end - first, number)
            at, window = end, number


Segment = bytes | Run | Cut


@dataclass(frozen=True)
class File:
    """A file that is to be written.

    Attributes
    ----------
    name : str
        Relative to the checkpoint's folder; where the file is the checkpoint, its name.
    segments : tuple of Segment
        One after the other.
    mode : int or None
        Its permissions, as far as the umask allows them; None for the usual ones.
    """

    name: str
    segments: tuple[Segment, ...]
    mode: int | None = None

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(size_of, self.segments))

    def tensors(self) -> Iterator[str]:
        """The names, in the checkpoint, of tensors that are in it."""
        yield from (segment.entry.name for segment in self.segments if isinstance(segment, Run))


def size_of(segment: Segment) -> int:
    """A segment's bytes."""
    return len(segment) if isinstance(segment, bytes) else segment.size


def pieces(source: Source, file: File, start: int) -> Iterator[memoryview]:
    """A file's bytes from `start` on; each piece is valid until the next."""
    reading = source.read(step.box for step in _steps(file, start) if isinstance(step, Step) and step.box is not None)
    window = memoryview(b"")
    for step in _steps(file, start):
        if not isinstance(step, Step):
            yield step
        elif step.box is None:
            yield window[step.start : step.stop]
        else:
            memory = bytes_of(next(reading).permute(step.order).contiguous())
            window = memory if step.window is not None else window
            yield memory[step.start : step.stop]


def _steps(file: File, start: int) -> Iterator[memoryview | Step]:
    window = None
    at = -start
    for segment in file.segments:
        size, skip = size_of(segment), max(0, -at)
        at += size
        if at <= 0:
            continue
        if isinstance(segment, bytes):
            yield memoryview(segment)[skip:]
        elif isinstance(segment, Run):
            yield from segment.steps(skip)
        else:
            for step in segment.steps(skip, window):
                window = step.window
                yield step


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
