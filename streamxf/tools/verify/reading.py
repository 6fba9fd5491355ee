"""How `verify` reads: files whose storage may fail in any way, or hold far less than it says, and containers of which
every block is checked, whatever is wrong with the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from streamxf.buffers import Scratch
from streamxf.chain import StreamCoder
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.scan import walk
from streamxf.engine import Pipeline
from streamxf.errors import BlockError, ContainerError, ForeignError, StreamxfError, is_damage
from streamxf.format.container import Block, ContainerParser
from streamxf.format.header import Header
from streamxf.progress import Progress, Share
from streamxf.proportion import held_bytes
from streamxf.storage.reading import StoredFile
from streamxf.storage.source import Counted, FileSlice, PositionalFile
from streamxf.storage.storage import Storage, storage_errors
from streamxf.stream.container import BlockReader
from streamxf.tools.verify.report import Findings, Notes

_STEP = 2**20
_REMOTE_STEP = 8 * 2**20  # bytes that fsspec fetches at a time; by itself it would hold up to 100 MiB for each file
_CHECK_HERE = 128 * 1024  # bytes of a stream that is checked sooner than a worker is told to
_WHOLE = -2  # the scratch memory's place for a decoded block; the other places are -1 and up


class GivenUp(Exception):
    """The result is not wanted any more: another thread was interrupted, or failed."""


@dataclass
class Call:
    """One call of `verify`, and its findings in the order of the report.

    `failures` are what ends the call, in any thread; `unread` is what the storage failed with, where that does not mean
    damage. `lock` is held while a chain is rebuilt, which may ask a service for its key.
    """

    storage: Storage
    access: Access
    progress: Progress | None
    found: list[Findings] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    unread: list[Exception] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def findings(self, file: str) -> Findings:
        """A place for what is found in one more file."""
        self.found.append(Findings(file))
        return self.found[-1]

    def share(self, size: int) -> Share:
        """The progress that a file of `size` bytes makes."""
        if self.progress is not None:
            self.progress.expect(size)
        return Share(self.progress, size)

    @contextmanager
    def storage_errors(self, label: str) -> Iterator[None]:
        try:
            with storage_errors(label):
                yield
        except (OSError, ForeignError) as error:
            if not is_damage(error):
                self.unread.append(error)
            raise

    @contextmanager
    def open(self, label: str, storage: Storage | None = None, share: Share | None = None) -> Iterator[StoredFile]:
        """Open the file `label` of the folder, or what `storage` is, which has that name in errors."""
        with ExitStack() as stack:
            with self.storage_errors(label):
                place, name = (self.storage, label) if storage is None else (storage, "")
                file = stack.enter_context(place.open(name, step=_REMOTE_STEP))
            access = file.access if share is None else Counted(file.access, share.advance)
            guarded = GuardedAccess(self, access, label, held_bytes(file.raw, file.size))
            yield StoredFile(label, file.size, file.raw, guarded)


class GuardedAccess:
    """Reads by position that raise no errors but Python's and streamxf's, as long as the call goes on. What may be read
    is bounded by the bytes `held` in storage: holes have no end.
    """

    def __init__(self, call: Call, access: PositionalFile, name: str, held: int) -> None:
        self.name = name
        self.parallel = access.parallel
        self._call = call
        self._access = access
        self._budget = call.access.budget(held)

    def read_into(self, position: int, out: memoryview) -> int:
        """Raises OSError, ForeignError, GivenUp, and PolicyError if too much of what is read are holes."""
        if self._call.failures:
            raise GivenUp
        self._budget.spend(len(out), "reading the file")
        with self._call.storage_errors(self.name):
            return self._access.read_into(position, out)

    def expect(self, start: int, stop: int) -> None:
        self._access.expect(start, stop)


def pieces_of(source: FileSlice) -> Iterator[bytes]:
    """A part of a file, piece by piece and in order, which workers read where several threads can."""
    pipeline: Pipeline[bytes] = Pipeline()
    source.expect(0, source.length)
    try:
        for at in range(0, source.length, _STEP):
            read = partial(source.read_at, at, min(_STEP, source.length - at))
            yield from pipeline.submit(read, _STEP) if source.parallel else [read()]
        yield from pipeline.results()
    finally:
        pipeline.cancel()


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
    blocks.expect(0, blocks.count)
    small = blocks.count == 1 and max(source.length, blocks.size) <= _CHECK_HERE
    for index in range(blocks.count):
        try:
            job = partial(_check, notes, index, blocks.decoder(index))
        except (StreamxfError, OSError) as error:
            job = partial(Outcome, notes, index, error)
        held = blocks.stored_size_of(index) + (blocks.size_of(index) if coder is not None else 0)
        note(pipeline.put(job(), held) if small else pipeline.submit(job, held))


def _check(notes: Notes, index: int, decode: Callable[[None], None]) -> Outcome:
    try:
        decode(None)
    except (StreamxfError, OSError) as error:
        return Outcome(notes, index, error)
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
