"""`Fill`: one tensor on its way from the blocks of its container into its target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.distributed.checkpoint.planner import ReadItem

from streamxf.dcp.load.stored import Framing, Geometry, StoredTensor
from streamxf.dcp.load.target import Target
from streamxf.dcp.tensors.boxes import Wanted

Step = Callable[[], None]


class Buffers:
    """Memory for decoded blocks, reused; any thread takes and gives."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        try:
            buffer = self._free.pop()
        except IndexError:
            return bytearray(size)
        return buffer if len(buffer) >= size else bytearray(size)

    def give(self, buffer: bytearray) -> None:
        self._free.append(buffer)


@dataclass(eq=False)
class Fill:
    """What is wanted of one stored tensor, and where it goes.

    Attributes
    ----------
    request : ReadItem
    stored : StoredTensor
    framing : Framing
    compared : bool
        Whether the framing has been compared already; if not, that happens block by block.
    wanted : Wanted
        In row-major order, unless all is wanted.
    geometry : Geometry
        As the metadata gives it.
    target : Target
    memory : memoryview or None
        The target's memory, if the wanted bytes go there as they are; else parts of them are copied by `copy_`.
    file : str
        For errors.
    buffers : Buffers
        For blocks that are not decoded into `memory`.
    done : callable
        Called in the loader's thread when all blocks are; is told whether the framing was right.
    """

    request: ReadItem
    stored: StoredTensor
    framing: Framing
    compared: bool
    wanted: Wanted
    geometry: Geometry
    target: Target
    memory: memoryview | None
    file: str
    buffers: Buffers
    done: Callable[[Fill], None]
    matches: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        # the wanted bytes, as positions in the stream
        self.begin = self.framing.start + self.wanted.start * self.geometry.dtype.itemsize
        self.end = self.framing.start + self.wanted.stop * self.geometry.dtype.itemsize
        size = self.stored.reader.block_size
        needed = set(range(self.begin // size, -(-self.end // size)))
        if not self.compared:
            needed.update(self.framing.blocks(self.stored.reader))
        self.blocks = sorted(needed)
        self._left = len(self.blocks)

    @property
    def decoded(self) -> tuple[int, int]:
        """Bytes that the blocks decode to, and that they take in storage."""
        reader = self.stored.reader
        if len(self.blocks) == reader.count:
            return reader.size, reader.stored_size
        return sum(map(reader.size_of, self.blocks)), sum(map(reader.stored_size_of, self.blocks))

    def run(self, index: int, decode: Callable[[memoryview], None]) -> Step:
        """Decode a block and put it where it belongs, as far as any thread may; returns what is left for the loader's,
        which does it in the order of the blocks and items.

        Raises
        ------
        StreamxfError
            If the block is not as it was stored.
        """
        start = index * self.stored.reader.block_size
        size = self.stored.reader.size_of(index)
        if self.memory is not None and self.begin <= start and start + size <= self.end:
            decode(self.memory[start - self.begin : start - self.begin + size])
            return partial(self._finish, True)
        buffer = self.buffers.take(size)
        data = memoryview(buffer)[:size]
        decode(data)
        return self.run_edge(index, data, buffer)

    def run_edge(self, index: int, data: memoryview, buffer: bytearray | None = None) -> Step:
        """The same for a block that was decoded before, into `buffer` if that is to be used again."""
        start = index * self.stored.reader.block_size
        matches = self.compared or self.framing.matches(start, data)
        return partial(self._finish, matches, self._take(start, data), buffer)

    def _take(self, start: int, data: memoryview) -> Step | None:
        begin, end = max(start, self.begin), min(start + len(data), self.end)
        if begin >= end:
            return None
        wanted = data[begin - start : end - start]
        if self.memory is None:
            return partial(self._copy, begin, wanted)
        self.memory[begin - self.begin : end - self.begin] = wanted
        return None

    def _finish(self, matches: bool, step: Step | None = None, buffer: bytearray | None = None) -> None:
        if step is not None:
            step()
        if buffer is not None:
            self.buffers.give(buffer)
        self.matches &= matches
        self._left -= 1
        if not self._left:
            self.done(self)

    def _copy(self, begin: int, data: memoryview) -> None:
        size = self.geometry.dtype.itemsize
        first = (begin - self.framing.start) // size
        elements = torch.frombuffer(data, dtype=torch.uint8).view(self.geometry.dtype)
        for at, outer, inner in self.wanted.parts(first, first + len(elements)):
            shape = [stop - start for start, stop in outer]
            part = elements[at - first : at - first + math.prod(shape)].view(shape)
            from_ = tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(inner, outer, strict=True))
            to = tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(inner, self.wanted.box, strict=True))
            self.target.tensor[to].copy_(part[from_])
