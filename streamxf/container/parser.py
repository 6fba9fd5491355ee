"""A container read front to back, for sources that cannot seek: feed it bytes, take out events.

In the manner of h11: `ContainerParser.feed` takes whatever has arrived, in pieces of any size, and
`ContainerParser.next_event` gives the next header, block or end, or `NEED_DATA`. A block is handed on as it is stored;
whoever decodes the last one must keep it back until the `End` event. After an error the parser stays dead.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from streamxf.container.blocks import check_payload, parse_head
from streamxf.container.footer import IndexParser
from streamxf.container.header import Header, header_size
from streamxf.container.limits import BLOCK_HEAD_BYTES, FOOTER_BYTES, HEADER_FIXED_BYTES, MAX_BLOCKS
from streamxf.errors import ContainerError


class NeedData(enum.Enum):
    """The one event that is no event: more bytes are needed."""

    NEED_DATA = enum.auto()


NEED_DATA = NeedData.NEED_DATA


@dataclass(frozen=True, slots=True)
class Block:
    """A stored block whose CRC matches."""

    index: int
    last: bool
    payload: memoryview


@dataclass(frozen=True, slots=True)
class End:
    """Index and footer match the blocks that came before. Nothing may follow."""

    raw_size: int


Event = Header | Block | End


class ContainerParser:
    """Turns bytes that arrive in order into events.

    Parameters
    ----------
    stage_limit : callable
        From the block size to the most bytes that a block may take when stored.
    """

    def __init__(self, stage_limit: Callable[[int], int]) -> None:
        self._limit_for = stage_limit
        self._buffer = bytearray()
        self._step: Callable[[], Event | NeedData] = self._header
        self._position = 0
        self._ends = array("Q")

    def feed(self, data: bytes) -> None:
        """Take the next bytes, of any number."""
        self._buffer += data

    def next_event(self) -> Event | NeedData:
        """The next event, or `NEED_DATA`.

        Raises
        ------
        ContainerError, BlockError
            If the bytes are not a container; from then on always.
        """
        try:
            return self._step()
        except ContainerError as error:
            self._step = _raiser(error)
            raise

    def finish(self) -> None:
        """Say that no more bytes will come.

        Raises
        ------
        ContainerError
            If the container is not complete, or bytes follow it.
        """
        if self._step != self._done:
            raise ContainerError("the container is truncated: its end is missing")
        self._done()

    def _take(self, size: int) -> bytes:
        data = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        self._position += size
        return data

    def _header(self) -> Event | NeedData:
        if len(self._buffer) < HEADER_FIXED_BYTES:
            return NEED_DATA
        size = header_size(bytes(self._buffer[:HEADER_FIXED_BYTES]))
        if len(self._buffer) < size:
            return NEED_DATA
        self._parsed = Header.parse(self._take(size))
        self._header_size = size
        self._limit = self._limit_for(self._parsed.block_size)
        self._step = self._block
        return self._parsed

    def _block(self) -> Event | NeedData:
        index = len(self._ends)
        if len(self._buffer) < BLOCK_HEAD_BYTES:
            return NEED_DATA
        head = parse_head(bytes(self._buffer[:BLOCK_HEAD_BYTES]), index, self._limit)
        if len(self._buffer) < BLOCK_HEAD_BYTES + head.stored_size:
            return NEED_DATA
        if index >= MAX_BLOCKS:
            raise ContainerError("the container has more blocks than the format allows")
        self._take(BLOCK_HEAD_BYTES)
        payload = memoryview(self._take(head.stored_size))
        check_payload(head, self._parsed.digest, index, payload)
        self._ends.append(self._position)
        if head.last:
            self._index = IndexParser(self._parsed.digest, self._header_size, self._limit)
            self._step = self._tail
        return Block(index, head.last, payload)

    def _tail(self) -> Event | NeedData:
        missing = 8 * (len(self._ends) - len(self._index.ends))
        if missing:  # each part is checked when it is there, so that nobody waits for what is wrong already
            size = min(missing, len(self._buffer) // 8 * 8)
            known = len(self._index.ends)
            self._index.feed(self._take(size))
            if self._index.ends[known:] != self._ends[known : known + size // 8]:
                raise ContainerError("the index contradicts the blocks")
            if size < missing:
                return NEED_DATA
        if len(self._buffer) < FOOTER_BYTES:
            return NEED_DATA
        total = self._position + FOOTER_BYTES
        footer = self._index.finish(self._take(FOOTER_BYTES), total, self._parsed.block_size)
        self._step = self._done
        return End(footer.raw_size)

    def _done(self) -> NeedData:
        if self._buffer:
            raise ContainerError("something follows the container's end")
        return NEED_DATA


def _raiser(error: ContainerError) -> Callable[[], Event | NeedData]:
    def again() -> Event | NeedData:
        raise error

    return again
