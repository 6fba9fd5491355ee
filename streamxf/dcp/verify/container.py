"""One container, block by block: whatever is wrong with one block, the others are looked at, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from streamxf.buffers import Scratch, ScratchPool
from streamxf.coder import StreamCoder, stage_limit
from streamxf.container.blocks import check_payload, parse_head
from streamxf.container.header import Header
from streamxf.container.limits import BLOCK_HEAD_BYTES
from streamxf.dcp.load.stored import Framing, Geometry
from streamxf.engine import Pipeline
from streamxf.errors import BlockError, CodecError, ContainerError, StreamxfError
from streamxf.fileio.blocks import BlockReader
from streamxf.fileio.source import FileSlice

_DECODED = -2  # the scratch memory's place for a decoded block; a chain's steps count from 0, and -1 is taken
_LOST_AFTER = 8  # damaged blocks in a row: zeros would be taken for the heads of blocks without end
_scratch = ScratchPool(keep=16)

Then = Callable[[], None]
"""What is left to do in the thread that collects."""


class Notes(Protocol):
    """Where the errors of one item go; called in the thread that collects."""

    framed: bool
    """Whether what was decoded had the frame of the tensor that the metadata says, as far as it was looked at."""

    def error(self, error: Exception, block: int | None = None) -> None:
        """Record what is wrong."""

    def block(self) -> None:
        """Count a block that was looked at."""


def check_blocks(
    source: FileSlice,
    header: Header,
    coder: StreamCoder | None,
    geometry: Geometry | None,
    notes: Notes,
    pipeline: Pipeline[Then],
    check_size: Callable[[int], None] | None,
) -> None:
    """Check index, footer and every block of a container whose header is intact.

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
    except ContainerError as error:
        notes.error(error)
        notes.framed = False
        _check_along_heads(source, header, coder, notes)
        return
    if check_size is not None:
        try:
            check_size(blocks.size)
        except ContainerError as error:
            notes.error(error)
    framing = Framing.of(geometry, blocks.size) if geometry is not None else None
    notes.framed = framing is not None
    for index in range(blocks.count):
        size = blocks.size_of(index) if coder is not None else 0
        try:
            decode = blocks.decoder(index)
        except (ContainerError, OSError) as error:
            notes.error(error, index)
            continue
        check = partial(_check_block, decode, size, index, framing, index * blocks.block_size, notes)
        pipeline.submit(check, size + blocks.stored_size_of(index))


def _check_block(
    decode: Callable[[memoryview], None],
    size: int,
    index: int,
    framing: Framing | None,
    position: int,
    notes: Notes,
) -> Then:
    scratch = _scratch.take()
    out = scratch.take(_DECODED, size)
    try:
        decode(out)
    except (StreamxfError, OSError) as error:
        return partial(_done, notes, index, error, False)
    framed = framing is not None and framing.matches(position, out)
    _scratch.give(scratch)
    return partial(_done, notes, index, None, framed)


def _done(notes: Notes, index: int, error: Exception | None, framed: bool) -> None:
    notes.block()
    notes.framed = notes.framed and framed
    if error is not None:
        notes.error(error, index)


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
        except (ContainerError, OSError) as error:
            text = error.message if isinstance(error, ContainerError) else str(error)
            notes.error(BlockError(f"nothing tells where this block and those behind it are: {text}"), index)
            return
        notes.block()
        try:
            check_payload(head, header.digest, index, stored[BLOCK_HEAD_BYTES:])
            if coder is not None:
                decoded = coder.decode(stored[BLOCK_HEAD_BYTES:], index, head.last, scratch)
                if not head.last and len(decoded) != header.block_size:
                    raise CodecError(f"block decodes to {len(decoded)} bytes where {header.block_size} belong")
            damaged = 0
        except StreamxfError as error:
            notes.error(error, index)
            damaged += 1
        at += len(stored)
        index, last = index + 1, head.last
