"""A container read front to back: feed it bytes, take out events. This is the one walk along block heads.

In the manner of h11: `ContainerParser.feed` takes whatever has arrived, in pieces of any size, and
`ContainerParser.next_event` returns the next header, block or end, or `NEED_DATA`. A block is handed on as it is
stored; whoever decodes the last one must keep it back until the `End` event. After an error the parser stays dead.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from streamxf.errors import BlockError, ContainerError
from streamxf.format.block import BlockHead, check_payload, hash_of, parse_head
from streamxf.format.header import Header, header_size
from streamxf.format.limits import BLOCK_HEAD_BYTES, FOOTER_BYTES, HEADER_FIXED_BYTES, MAX_BLOCKS, stage_limit
from streamxf.format.table import Footer, Table, entry_size

_LOST_AFTER = 8  # damaged blocks in a row: then what is taken for their heads is something else


class NeedData(enum.Enum):
    """More bytes are needed before the next event."""

    NEED_DATA = enum.auto()


NEED_DATA = NeedData.NEED_DATA


@dataclass(frozen=True, slots=True)
class Block:
    """A stored block.

    - `error`: what is wrong with it; None if its CRC matches, as always unless the parser is lenient.
    """

    index: int
    last: bool
    payload: memoryview
    error: BlockError | None = None


@dataclass(frozen=True, slots=True)
class End:
    """Table and footer match the blocks that came before.

    - `table_digest`: T of the format.
    """

    raw_size: int
    container_size: int
    table_digest: bytes


Event = Header | Block | End


class ContainerParser:
    """Turns bytes that arrive in order into events.

    - `lenient`: whether a block whose CRC does not match is an event, too, for tools that look for damage: its head
      says where the next block is, unless it is the head that is damaged. Several of them in a row are an error all the
      same.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self._lenient = lenient
        self._damaged = 0
        self._buffer = bytearray()
        self._step: Callable[[], Event | NeedData] = self._header
        self._position = 0
        self._ends = array("Q")
        self._hashes: list[bytes] = []

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes, of any number."""
        self._buffer += data

    def next_event(self) -> Event | NeedData:
        """The next event, or `NEED_DATA`. Raises ContainerError, BlockError if the bytes are not a container; from then
        on always.
        """
        try:
            return self._step()
        except ContainerError as error:
            self._step = _raiser(error)
            raise

    @property
    def complete(self) -> bool:
        """Whether the `End` event was given."""
        return self._step == self._done

    @property
    def position(self) -> int:
        """Where the last event ended, counted from the container's first byte."""
        return self._position

    @property
    def rest(self) -> bytes:
        """Bytes that were fed and not used; once `complete`, those after the container."""
        return bytes(self._buffer)

    def finish(self) -> None:
        """Say that no more bytes will come. Raises ContainerError if the container is not complete, or bytes follow
        it.
        """
        if not self.complete:
            raise ContainerError("the container is truncated: its end is missing")
        if self._buffer:
            raise ContainerError("something follows the container's end")

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
        header = self._parsed = Header.parse(self._take(size))
        self._limit = stage_limit(header.block_size)
        self._table = Table(header.digest, size, header.block_size, header.hashed)
        self._step = self._block
        return header

    def _block(self) -> Event | NeedData:
        index = len(self._ends)
        if len(self._buffer) < BLOCK_HEAD_BYTES:
            return NEED_DATA
        stored = bytes(self._buffer[:BLOCK_HEAD_BYTES])
        head = parse_head(stored, index, self._limit)
        if len(self._buffer) < BLOCK_HEAD_BYTES + head.stored_size:
            return NEED_DATA
        if index >= MAX_BLOCKS:
            raise ContainerError("the container has more blocks than the format allows")
        self._take(BLOCK_HEAD_BYTES)
        payload = memoryview(self._take(head.stored_size))
        error = self._error(head, index, payload)
        self._ends.append(self._position)
        if self._parsed.hashed:
            self._hashes.append(hash_of(stored, payload))
        if head.last:
            self._step = self._tail
        return Block(index, head.last, payload, error)

    def _error(self, head: BlockHead, index: int, payload: memoryview) -> BlockError | None:
        try:
            check_payload(head, self._parsed.digest, index, payload)
        except BlockError as error:
            self._damaged += 1
            # zeros, which a crash may leave, are not the heads of blocks without bytes
            if not self._lenient or self._damaged > _LOST_AFTER or not (payload or head.last):
                raise
            return error
        self._damaged = 0
        return None

    def _tail(self) -> Event | NeedData:
        # each part of the table is checked as soon as it is there
        size = entry_size(self._parsed.hashed)
        known = len(self._table.ends)
        count = min(len(self._ends) - known, len(self._buffer) // size)
        if count:
            self._table.feed(self._take(count * size))
            stop = known + count
            if self._table.ends[known:] != self._ends[known:stop]:
                raise ContainerError("the table contradicts the blocks")
            if self._table.hashes[known:] != self._hashes[known:stop]:
                raise BlockError("a block's hash does not match the table's: one of them was altered")
        if len(self._table.ends) < len(self._ends) or len(self._buffer) < FOOTER_BYTES:
            return NEED_DATA
        total = self._position + FOOTER_BYTES
        footer = Footer.parse(self._take(FOOTER_BYTES), self._parsed.block_size)
        self._table.finish(footer, total)
        self._step = self._done
        return End(footer.raw_size, footer.container_size, self._table.digest)

    def _done(self) -> NeedData:
        return NEED_DATA


def check_stored(
    stored: memoryview, index: int, header: Header, *, last: bool, expected_hash: bytes | None = None
) -> memoryview:
    """Check a stored block that was found by the table, and return its payload. Raises BlockError if it does not end
    where the table says, is last where it should not be, or is damaged.
    """
    start = bytes(stored[:BLOCK_HEAD_BYTES])
    head: BlockHead = parse_head(start, index, stage_limit(header.block_size))
    payload = stored[BLOCK_HEAD_BYTES:]
    if head.stored_size != len(payload) or head.last != last:
        raise BlockError("block does not end where the table says, or is last where it should not be", block=index)
    check_payload(head, header.digest, index, payload)
    if expected_hash is not None and hash_of(start, payload) != expected_hash:
        raise BlockError("the block's hash does not match the table's: one of them was altered", block=index)
    return payload


def _raiser(error: ContainerError) -> Callable[[], Event | NeedData]:
    def again() -> Event | NeedData:
        raise error

    return again
