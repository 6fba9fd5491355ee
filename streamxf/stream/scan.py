"""Containers in a file of which no metadata tells what is in it: they say so themselves.

Nothing in such a file is vouched for, so the time that this takes is bounded by the file's size: each byte is searched
once, and blocks are followed in vain only so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamxf.errors import BlockError, ContainerError, StreamxfError
from streamxf.format.container import Block, ContainerParser, Footer, NeedData, tail_size
from streamxf.format.header import Header, header_size
from streamxf.format.limits import CONTAINER_MAGIC, FOOTER_BYTES, HEADER_FIXED_BYTES, MAX_HEADER, VERSION
from streamxf.storage.reading import FileSlice
from streamxf.stream.container import read_tail

_BEGIN = CONTAINER_MAGIC + bytes([VERSION])
_WINDOW = 2**20
_FIRST_STEP, _LAST_STEP = 2**12, 2**18  # bytes that are fed at a time; few at first, since few may be needed
_IN_VAIN = 16  # times the file that may be read of blocks that lead nowhere
_IN_VAIN_FREE = 64 * 2**20  # bytes that may be in any case


class Found(NamedTuple):
    """A container whose header is intact, of which nothing else was checked; or what is none, which has no `header`.

    - `sure`: whether it is known to end there. If not, other containers may have stood in that place, too.
    - `begun`: whether what is none begins as one, so that its header is damaged.
    """

    at: int
    size: int
    header: Header | None = None
    sure: bool = False
    begun: bool = False


def _blocks(source: FileSlice, parser: ContainerParser, at: int = 0) -> Iterator[Block]:
    """The blocks of the container that begins at `at`; raises as `parser` does, and what reading raises."""
    step = _FIRST_STEP
    while True:
        found = parser.next_event()
        if isinstance(found, NeedData):
            size = min(step, source.length - at)
            if not size:
                parser.finish()  # raises
            parser.feed(source.read_at(at, size))
            at += size
            step = min(2 * step, _LAST_STEP)
        elif isinstance(found, Block):
            yield found
            if found.last:
                return


class Scan:
    """Finds the containers of a file, in order; `source` is all of it. With `writer`, only published ones of that
    process: others are data inside of an item, or a gap. Raises OSError, ContainerError if the file cannot be read.
    """

    def __init__(self, source: FileSlice, writer: bytes | None = None) -> None:
        self._source = source
        self._writer = writer
        self._in_vain = _IN_VAIN * source.length + _IN_VAIN_FREE
        self._window, self._window_at = b"", 0

    def __iter__(self) -> Iterator[Found]:
        at, size = 0, self._source.length
        while at < size:
            self._look_at(at)
            start = at - self._window_at
            header = self._header(self._window[start : start + MAX_HEADER])
            if header is None:
                begun = self._window.startswith(_BEGIN, start)
                end = self._next(at + 1)
                yield Found(at, end - at, begun=begun)
            else:
                known = self._end(at, header)
                end, sure = known if known is not None else self._next(at + header.size), True
                try:
                    if known is None:
                        read_tail(self._source.slice(at, end), header)
                except ContainerError:
                    sure = False
                yield Found(at, end - at, header, sure)
            at = end

    @staticmethod
    def follow(source: FileSlice) -> Iterator[tuple[int, StreamxfError | None]]:
        """The blocks of a container, by the lengths in their heads, and what is wrong with each; raises BlockError."""
        try:
            yield from ((block.index, block.error) for block in _blocks(source, ContainerParser(lenient=True)))
        except ContainerError as error:
            text = f"the positions of this block and of those after it are unknown: {error.message}"
            raise BlockError(text) from error

    def is_foreign(self) -> bool:
        """Whether the file begins neither as a container does, nor as a hole."""
        start = self._source.read_at(0, min(self._source.length, len(CONTAINER_MAGIC)))
        return bool(start.strip(b"\0")) and start != CONTAINER_MAGIC

    def _header(self, start: bytes) -> Header | None:
        try:
            header = Header.parse(start[: header_size(start[:HEADER_FIXED_BYTES])])
        except ContainerError:
            return None
        if self._writer is None:
            return header
        identity = header.identity
        ours = identity is not None and header.published and identity.writer_id == self._writer
        return header if ours else None

    def _end(self, at: int, header: Header) -> int | None:
        """Where a container ends, by the heads of its blocks and its footer; None if these lead astray."""
        if self._in_vain <= 0:
            return None
        parser = ContainerParser(lenient=True)
        try:
            for block in _blocks(self._source, parser, at):
                if block.last:
                    count = block.index + 1
                    end = at + parser.position + tail_size(count)
                    footer = Footer.parse(self._source.read_at(end - FOOTER_BYTES, FOOTER_BYTES))
                    if footer.blocks(header) == count:
                        return end
                    break
        except ContainerError:
            """The next header shows where it ended."""
        self._in_vain -= parser.position + len(parser.rest)
        return None

    def _next(self, start: int) -> int:
        size = self._source.length
        while start < size:
            self._look_at(start)
            window, base = self._window, self._window_at
            # a header that begins before this is all here
            limit = len(window) if base + len(window) == size else len(window) - MAX_HEADER
            at = window.find(_BEGIN, start - base)
            while 0 <= at < limit:
                if self._header(window[at : at + MAX_HEADER]) is not None:
                    return base + at
                at = window.find(_BEGIN, at + 1)
            start = base + limit
        return size

    def _look_at(self, at: int) -> None:
        """Have a window in which a header that begins at `at`, or soon behind it, is whole."""
        size = self._source.length
        end = self._window_at + len(self._window)
        if not self._window_at <= at or min(at + 2 * MAX_HEADER, size) > end:
            self._window = self._source.read_at(at, min(_WINDOW, size - at))
            self._window_at = at
