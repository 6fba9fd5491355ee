"""`Streamed`: an item whose bytes come from elsewhere while it is saved, so that it is never held whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from streamxf.dcp.extensions import SaveStream
from streamxf.fileio.outlet import Outlet
from streamxf.fileio.ring import Buffer, Ring, Source
from streamxf.fileio.writer import StreamWriter


@dataclass(frozen=True)
class Streamed:
    """What ``torch.save`` would write for an item.

    Attributes
    ----------
    dtype : torch.dtype or None
        None for what is no tensor.
    shape : tuple of int
    parts : tuple of bytes and Source
        One after the other.
    """

    dtype: torch.dtype | None
    shape: tuple[int, ...]
    parts: tuple[bytes | Source, ...]

    @property
    def size(self) -> int:
        """Of all parts, in bytes."""
        return sum(len(part) if isinstance(part, bytes) else part.size for part in self.parts)


def write_streamed(data: Streamed, target: SaveStream, ring: Ring) -> None:
    """Write an item into its container, whose blocks are read and encoded by workers; raises as `save_tensor`, and
    what the sources raise.
    """
    for part in data.parts:
        if isinstance(part, bytes):
            target.write_owned(memoryview(part))
        elif isinstance(target.stream, StreamWriter):
            target.stream.write_copied(part, ring, few=True)


def write_unchained(data: Streamed, target: SaveStream, outlet: Outlet, block_size: int) -> None:
    """Write an item that passes no codec, or passes foreign extensions first; workers read ahead. Raises as
    `write_streamed`.
    """
    for part in data.parts:
        if isinstance(part, bytes):
            outlet.put(part, len(part), target.write)
            continue
        for size, read in _reads(part, block_size):
            outlet.narrow()
            outlet.submit(read, size, target.write)
    outlet.settle()


def _reads(source: Source, step: int) -> Iterator[tuple[int, Callable[[], bytearray]]]:
    for start in range(0, source.size, step):
        memory = bytearray(min(step, source.size - start))
        wait = source.copy(start, len(memory), Buffer(memoryview(memory), memory), 0)
        yield len(memory), partial(_waited, memory, wait)


def _waited(memory: bytearray, wait: Callable[[], None]) -> bytearray:
    wait()
    return memory
