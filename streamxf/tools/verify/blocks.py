"""Containers block by block: whatever is wrong with one block, the others are checked, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from streamxf.buffers import Scratch, ScratchPool
from streamxf.checkpoint.scan import walk
from streamxf.coder import StreamCoder
from streamxf.engine import Pipeline
from streamxf.errors import BlockError, ContainerError, StreamxfError
from streamxf.format.container import Block, ContainerParser
from streamxf.format.header import Header
from streamxf.stream.container import BlockReader
from streamxf.stream.source import FileSlice
from streamxf.tools.verify.report import Notes

_CHECK_HERE = 128 * 1024  # bytes of a stream that is checked sooner than a worker is told to
_WHOLE = -2  # the scratch memory's place for a decoded block; the other places are -1 and up
_decoded = ScratchPool(keep=16)


class Outcome(NamedTuple):
    """What came of a block; `note` has to be told, in the thread that collects."""

    notes: Notes
    block: int
    error: Exception | None


def note(outcomes: Iterable[Outcome]) -> None:
    """Note what came of blocks."""
    for notes, block, error in outcomes:
        notes.findings.blocks += 1
        if error is not None:
            notes.error(error, block)


def check_blocks(
    source: FileSlice,
    header: Header,
    coder: StreamCoder | None,
    notes: Notes,
    pipeline: Pipeline[Outcome],
    table_digest: bytes | None = None,
    check_size: Callable[[int], None] | None = None,
) -> None:
    """Check table, footer and every block of a container whose header is intact; without a coder, all but the content.

    Workers read the blocks where several threads can read at the same time. What the pipeline still gives is for
    `note`. `table_digest` and `check_size` are those of `BlockReader`.
    """
    try:
        blocks = BlockReader(source, header, coder, table_digest, check_size)
    except (StreamxfError, OSError) as error:
        notes.error(error)
        check_along_heads(source, header, coder, notes)
        return
    small = blocks.count == 1 and max(source.length, blocks.size) <= _CHECK_HERE
    for index in range(blocks.count):
        size = blocks.size_of(index) if coder is not None else 0
        try:
            job = partial(_check, notes, index, blocks.decoder(index), size)
        except (StreamxfError, OSError) as error:
            job = partial(Outcome, notes, index, error)
        held = size + blocks.stored_size_of(index)
        note(pipeline.put(job(), held) if small else pipeline.submit(job, held))


def _check(notes: Notes, index: int, decode: Callable[[memoryview], None], size: int) -> Outcome:
    scratch = _decoded.take()
    try:
        decode(scratch.take(0, size))
    except (StreamxfError, OSError) as error:
        return Outcome(notes, index, error)
    _decoded.give(scratch)
    return Outcome(notes, index, None)


def check_along_heads(source: FileSlice, header: Header, coder: StreamCoder | None, notes: Notes) -> None:
    """Go from block to block by the lengths in their heads, because there is no table to find them by."""
    scratch, index = Scratch(), 0
    try:
        for event in walk(source, ContainerParser(lenient=True)):
            if isinstance(event, Block):
                note([Outcome(notes, event.index, _error_in(event, header, coder, scratch))])
                index = event.index + 1
                if event.last:
                    return
    except ContainerError as error:
        where = "the positions of this block and of those after it are unknown"
        notes.error(BlockError(f"{where}: {error.message}"), index)
    except (StreamxfError, OSError) as error:
        notes.error(error, index)


def _error_in(block: Block, header: Header, coder: StreamCoder | None, scratch: Scratch) -> Exception | None:
    if block.error is None and coder is not None:
        out = None if block.last else scratch.take(_WHOLE, header.block_size)
        try:
            coder.decode(block.payload, block.index, block.last, scratch, out)
        except StreamxfError as error:
            return error
    return block.error
