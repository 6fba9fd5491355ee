"""One container, block by block: whatever is wrong with one block, the others are checked, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from streamxf.buffers import Scratch, ScratchPool
from streamxf.checkpoint.scan import walk
from streamxf.coder import StreamCoder
from streamxf.engine import Pipeline
from streamxf.errors import BlockError, CodecError, ContainerError, StreamxfError
from streamxf.format.container import Block, ContainerParser
from streamxf.format.header import Header
from streamxf.stream.container import BlockReader
from streamxf.stream.source import FileSlice
from streamxf.tools.verify.findings import Notes

_CHECK_HERE = 128 * 1024  # bytes of a stream that is checked sooner than a worker is told to
_scratch = ScratchPool(keep=16)

Then = Callable[[], None]
"""What is left to do in the thread that collects."""


def run(thens: Iterable[Then]) -> None:
    """Do what workers left to do."""
    for then in thens:
        then()


def check_blocks(
    source: FileSlice,
    header: Header,
    coder: StreamCoder | None,
    notes: Notes,
    pipeline: Pipeline[Then],
    table_digest: bytes | None = None,
    check_size: Callable[[int], None] | None = None,
) -> None:
    """Check table, footer and every block of a container whose header is intact; without a coder, all but the content.

    Workers read the blocks where several threads can read at the same time. Their findings are noted when `run` has
    done what the pipeline gives. `table_digest` and `check_size` are those of `BlockReader`.
    """
    try:
        blocks = BlockReader(source, header, coder, table_digest, check_size)
    except (StreamxfError, OSError) as error:
        notes.error(error)
        check_along_heads(source, header, coder, notes)
        return
    small = blocks.count == 1 and max(source.length, blocks.size) <= _CHECK_HERE
    for index in range(blocks.count):
        size = blocks.stored_size_of(index) + (blocks.size_of(index) if coder is not None else 0)
        job = partial(_check, blocks, index, coder is not None, notes, _read(blocks, index))
        run(pipeline.put(job(), size) if small else pipeline.submit(job, size))


_Stored = tuple[memoryview, Scratch] | Exception | None


def _read(blocks: BlockReader, index: int) -> _Stored:
    """A block as it is stored, where only this thread can read; None where workers can."""
    if blocks.parallel:
        return None
    scratch = _scratch.take()
    try:
        return blocks.read(index, scratch), scratch
    except (StreamxfError, OSError) as error:
        return error


def _check(blocks: BlockReader, index: int, decoding: bool, notes: Notes, read: _Stored) -> Then:
    """Check a block, in any thread."""
    error: Exception | None = None
    try:
        if isinstance(read, Exception):
            raise read
        scratch = _scratch.take() if read is None else read[1]
        stored = blocks.read(index, scratch) if read is None else read[0]
        decoded = blocks.decode_stored(index, stored, scratch)
        if decoding:
            _check_decoded(decoded, blocks.size_of(index))
        _scratch.give(scratch)
    except (StreamxfError, OSError) as raised:
        error = raised
    return partial(_note, notes, index, error)


def _note(notes: Notes, index: int, error: Exception | None) -> None:
    notes.findings.blocks += 1
    if error is not None:
        notes.error(error, index)


def _check_decoded(decoded: memoryview, size: int) -> None:
    if len(decoded) != size:
        raise CodecError(f"block decodes to {len(decoded)} bytes where {size} belong")


def check_along_heads(source: FileSlice, header: Header, coder: StreamCoder | None, notes: Notes) -> None:
    """Go from block to block by the lengths in their heads, because there is no table to find them by."""
    scratch = Scratch()
    index = 0
    try:
        for event in walk(source, ContainerParser(lenient=True)):
            if not isinstance(event, Block):
                continue
            notes.findings.blocks += 1
            _check_found(event, header, coder, scratch, notes)
            index = event.index + 1
            if event.last:
                return
    except (StreamxfError, OSError) as error:
        text = error.message if isinstance(error, StreamxfError) else str(error)
        where = "the positions of this block and of those after it are unknown"
        notes.error(BlockError(f"{where}: {text}") if isinstance(error, ContainerError) else error, index)


def _check_found(block: Block, header: Header, coder: StreamCoder | None, scratch: Scratch, notes: Notes) -> None:
    try:
        if block.error is not None:
            raise block.error
        if coder is not None:
            decoded = coder.decode(block.payload, block.index, block.last, scratch)
            if not block.last:
                _check_decoded(decoded, header.block_size)
    except StreamxfError as error:
        notes.error(error, block.index)
