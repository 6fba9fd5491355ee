"""One container, block by block: whatever is wrong with one block, the others are checked, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from streamxf.buffers import Scratch, ScratchPool
from streamxf.checkpoint.scan import walk
from streamxf.coder import StreamCoder
from streamxf.engine import Pipeline
from streamxf.errors import BlockError, CodecError, ContainerError, StreamxfError
from streamxf.format.header import Header
from streamxf.format.parser import Block, ContainerParser
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
    """Check table, footer and every block of a container whose header is intact.

    Workers read the blocks where several threads can read at the same time. What they found is noted when `run` has
    done what the pipeline gives.

    Parameters
    ----------
    coder : StreamCoder or None
        None where blocks cannot be decoded.
    table_digest, check_size
        As for `BlockReader`.
    """
    try:
        blocks = BlockReader(source, header, coder, table_digest, check_size)
    except (StreamxfError, OSError) as error:
        notes.error(error)
        check_along_heads(source, header, coder, notes)
        return
    check = _Check(blocks, coder is not None, notes)
    small = blocks.count == 1 and max(source.length, blocks.size) <= _CHECK_HERE
    for index in range(blocks.count):
        size = blocks.stored_size_of(index) + (blocks.size_of(index) if coder is not None else 0)
        job = check.job(index)
        run(pipeline.put(job(), size) if small else pipeline.submit(job, size))


@dataclass(frozen=True)
class _Check:
    """What workers need for the blocks of one container."""

    blocks: BlockReader
    decoding: bool
    notes: Notes

    def job(self, index: int) -> Callable[[], Then]:
        """A check of one block, which is read here where only one thread can read."""
        if self.blocks.parallel:
            return partial(self._read_and_check, index)
        scratch = _scratch.take()
        try:
            stored = self.blocks.read(index, scratch)
        except (StreamxfError, OSError) as error:
            return partial(partial, self._done, index, error)
        return partial(self._checked, index, stored, scratch)

    def _read_and_check(self, index: int) -> Then:
        scratch = _scratch.take()
        try:
            stored = self.blocks.read(index, scratch)
        except (StreamxfError, OSError) as error:
            return partial(self._done, index, error)
        return self._checked(index, stored, scratch)

    def _checked(self, index: int, stored: memoryview, scratch: Scratch) -> Then:
        try:
            decoded = self.blocks.decode_stored(index, stored, scratch)
            if self.decoding:
                _check_decoded(decoded, self.blocks.size_of(index))
        except (StreamxfError, OSError) as error:
            return partial(self._done, index, error)
        _scratch.give(scratch)
        return partial(self._done, index, None)

    def _done(self, index: int, error: Exception | None) -> None:
        self.notes.findings.blocks += 1
        if error is not None:
            self.notes.error(error, index)


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
