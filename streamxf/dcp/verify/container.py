"""One container, block by block: whatever is wrong with one block, the others are looked at, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import crc32c

from streamxf.buffers import Scratch, ScratchPool
from streamxf.coder import StreamCoder, stage_limit
from streamxf.container.blocks import check_payload, crc_of_stored, parse_head
from streamxf.container.header import Header
from streamxf.container.limits import BLOCK_HEAD_BYTES
from streamxf.dcp.load.stored import Framing, Geometry
from streamxf.engine import Pipeline
from streamxf.errors import BlockError, CodecError, ContainerError, StreamxfError
from streamxf.fileio.blocks import BlockReader
from streamxf.fileio.source import FileSlice

_LOST_AFTER = 8  # damaged blocks in a row: zeros would be taken for the heads of blocks without end
_CHECK_HERE = 128 * 1024  # bytes of a stream that is checked sooner than a worker is told to
_scratch = ScratchPool(keep=16)

Then = Callable[[], None]
"""What is left to do in the thread that collects."""


class Notes(Protocol):
    """Where the errors of one item go; called in the thread that collects."""

    framed: bool
    """Whether what was decoded had the frame of the tensor that the metadata says, as far as it was looked at."""

    @property
    def counts_crcs(self) -> bool:
        """Whether the CRCs of stored bytes are wanted."""

    def error(self, error: Exception, block: int | None = None) -> None:
        """Record what is wrong."""

    def block(self) -> None:
        """Count a block that was looked at."""

    def crc(self, start: int, size: int, crc: int) -> None:
        """Take the CRC-32C of `size` bytes from `start` of the container."""


def check_blocks(
    source: FileSlice,
    header: Header,
    coder: StreamCoder | None,
    geometry: Geometry | None,
    notes: Notes,
    pipeline: Pipeline[Then],
    check_size: Callable[[int], None] | None,
) -> int:
    """Check index, footer and every block of a container whose header is intact.

    Returns where the last block ends; what was not read as a block begins there. Workers read the blocks where several
    threads can read at the same time.

    Parameters
    ----------
    coder : StreamCoder or None
        None where blocks cannot be decoded.
    geometry : Geometry or None
        Of the tensor that it should hold.
    pipeline : Pipeline
        Its sink makes the calls that it gets.
    check_size : callable or None
        Raises if the stream cannot have as many bytes.
    """
    try:
        blocks = BlockReader(source, header, coder)
    except (StreamxfError, OSError) as error:
        notes.error(error)
        notes.framed = False
        _check_along_heads(source, header, coder, notes)
        return header.size
    if check_size is not None:
        try:
            check_size(blocks.size)
        except ContainerError as error:
            notes.error(error)
    framing = Framing.of(geometry, blocks.size) if geometry is not None else None
    notes.framed = framing is not None
    look = _Look(blocks, header.digest, coder is not None, framing, notes)
    if blocks.count == 1 and max(source.length, blocks.size) <= _CHECK_HERE and pipeline.collect():
        look.at(0, source.parallel)()()
        return blocks.begin_of(1)
    for index in range(blocks.count):
        size = blocks.size_of(index) if coder is not None else 0
        pipeline.submit(look.at(index, source.parallel), size + blocks.stored_size_of(index))
    return blocks.begin_of(blocks.count)


@dataclass(frozen=True)
class _Look:
    """What workers need for the blocks of one container."""

    blocks: BlockReader
    digest: bytes
    decoding: bool
    framing: Framing | None
    notes: Notes

    def at(self, index: int, parallel: bool) -> Callable[[], Then]:
        """A check of one block, which is read here where only one thread can read."""
        if parallel:
            return partial(self._read_and_check, index)
        scratch = _scratch.take()
        try:
            stored = self.blocks.read(index, scratch)
        except (StreamxfError, OSError) as error:
            return partial(partial, self._done, index, error)
        return partial(self._check, index, stored, scratch)

    def _read_and_check(self, index: int) -> Then:
        scratch = _scratch.take()
        try:
            stored = self.blocks.read(index, scratch)
        except (StreamxfError, OSError) as error:
            return partial(self._done, index, error)
        return self._check(index, stored, scratch)

    def _check(self, index: int, stored: memoryview, scratch: Scratch) -> Then:
        blocks = self.blocks
        crc = None
        try:
            decoded = blocks.decode_stored(index, stored, scratch)
            if self.decoding:
                _check_decoded(decoded, blocks.size_of(index))
        except (StreamxfError, OSError) as error:
            if self.notes.counts_crcs:
                crc = crc32c.crc32c(stored)
            return partial(self._done, index, error, len(stored), crc)
        framed = self.framing is not None and self.framing.matches(index * blocks.block_size, decoded)
        if self.notes.counts_crcs:
            crc = crc_of_stored(stored, self.digest, index)
        size = len(stored)
        _scratch.give(scratch)
        return partial(self._done, index, None, size, crc, framed)

    def _done(
        self, index: int, error: Exception | None, size: int = 0, crc: int | None = None, framed: bool = False
    ) -> None:
        notes = self.notes
        notes.block()
        notes.framed = notes.framed and framed
        if crc is not None:
            notes.crc(self.blocks.begin_of(index), size, crc)
        if error is not None:
            notes.error(error, index)


def _check_decoded(decoded: memoryview, size: int) -> None:
    if len(decoded) != size:
        raise CodecError(f"block decodes to {len(decoded)} bytes where {size} belong")


def _check_along_heads(source: FileSlice, header: Header, coder: StreamCoder | None, notes: Notes) -> None:
    """Go from block to block by the lengths in their heads, because there is no index to find them by."""
    at, index, last = header.size, 0, False
    damaged = 0
    scratch = Scratch()
    while not last:
        if damaged == _LOST_AFTER:
            notes.error(
                BlockError(f"nothing tells where this block and the rest are: {_LOST_AFTER} before it are damaged"),
                index,
            )
            return
        try:
            head = parse_head(source.read_at(at, BLOCK_HEAD_BYTES), index, stage_limit(header.block_size))
            stored = source.view(at, BLOCK_HEAD_BYTES + head.stored_size, scratch)
        except (StreamxfError, OSError) as error:
            text = error.message if isinstance(error, StreamxfError) else str(error)
            notes.error(BlockError(f"nothing tells where this block and those behind it are: {text}"), index)
            return
        notes.block()
        try:
            check_payload(head, header.digest, index, stored[BLOCK_HEAD_BYTES:])
            if coder is not None:
                decoded = coder.decode(stored[BLOCK_HEAD_BYTES:], index, head.last, scratch)
                if not head.last:
                    _check_decoded(decoded, header.block_size)
            damaged = 0
        except StreamxfError as error:
            notes.error(error, index)
            damaged += 1
        at += len(stored)
        index, last = index + 1, head.last
