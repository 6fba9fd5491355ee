"""The parts of a container behind its header: blocks, table and footer; and the one walk along block heads.

docs/format.md, "Block", "Table and footer".

The walk is in the manner of h11: `ContainerParser.feed` takes whatever has arrived, in pieces of any size, and
`ContainerParser.next_event` returns the next header, block or end, or `NEED_DATA`. A block is handed on as it is
stored; whoever decodes the last one must keep it back until the `End` event. After an error the parser stays dead.
"""

from __future__ import annotations

import enum
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import crc32c

from streamxf.codecs.checksum import crc32c_of
from streamxf.errors import BlockError, ContainerError
from streamxf.format import limits
from streamxf.format.digests import check_block, digest_of
from streamxf.format.header import Header, header_size

LAST = 1 << 31
_WORDS = struct.Struct("<II")


def stage_limit(block_size: int) -> int:
    """E of the format: the most bytes that any codec of a chain may give or take for a block."""
    return block_size + block_size // 16 + 1024


def pack_head(header_digest: bytes, index: int, last: bool, payload: memoryview) -> bytes:
    word = (LAST if last else 0) | len(payload)
    covered = crc32c.crc32c(header_digest[:16] + _WORDS.pack(index, word))
    return _WORDS.pack(word, crc32c_of(payload, covered))


def parse_head(data: bytes, index: int, limit: int) -> tuple[bool, int]:
    """Whether block `index`, behind these bytes, is the last, and its payload's size; BlockError if it cannot be."""
    word, _ = _WORDS.unpack(data)
    last, stored_size = bool(word & LAST), word & ~LAST
    if not (stored_size or (last and not index)) or stored_size > limit:
        raise BlockError(
            f"the block's head says it has {stored_size} stored bytes, {limit} are allowed: it is damaged", block=index
        )
    return last, stored_size


def _damaged(index: int) -> BlockError:
    return BlockError("block CRC does not match: its stored bytes are damaged or belong elsewhere", block=index)


_FOOTER = struct.Struct("<QI8s")
_LONE_TAIL = struct.Struct("<IQI8s")  # the length of an only block, and the footer
LENGTH_BYTES = 4


class Footer(NamedTuple):
    raw_size: int
    crc: int

    @classmethod
    def parse(cls, data: bytes) -> Footer:
        if len(data) != limits.FOOTER_BYTES:
            raise ContainerError("the container is truncated: it is too short for its footer")
        raw_size, crc, magic = _FOOTER.unpack(data)
        if magic != limits.FOOTER_MAGIC:
            raise ContainerError("the container has no valid end: it was truncated or appended to")
        if raw_size > limits.MAX_RAW_SIZE:
            raise ContainerError(f"the footer says {raw_size} bytes, {limits.MAX_RAW_SIZE} are allowed")
        return cls(raw_size, crc)

    def blocks(self, header: Header) -> int:
        return max(1, -(-self.raw_size // header.block_size))


def tail_size(blocks: int) -> int:
    """Bytes of table and footer."""
    return LENGTH_BYTES * blocks + limits.FOOTER_BYTES


def pack_tail(header_digest: bytes, lengths: Sequence[int], raw_size: int) -> bytes:
    """Table and footer of blocks whose payloads have `lengths`."""
    covered = _swapped(array("I", lengths)).tobytes() + struct.pack("<Q", raw_size)
    crc = struct.pack("<I", crc32c.crc32c(header_digest[:16] + covered))
    return covered + crc + limits.FOOTER_MAGIC


def lone_block(stored: memoryview, header: Header) -> tuple[memoryview, int] | None:
    """The payload of a container with one block, and the bytes that it decodes to; None for all others, and if anything
    behind the header is wrong. All but these two is known, so nothing has to be parsed.
    """
    begin, end = header.size + limits.BLOCK_HEAD_BYTES, len(stored) - _LONE_TAIL.size
    if not begin <= end <= begin + stage_limit(header.block_size):
        return None
    payload, (length, raw_size, crc, magic) = stored[begin:end], _LONE_TAIL.unpack_from(stored, end)
    known = length == len(payload) and raw_size <= header.block_size and magic == limits.FOOTER_MAGIC
    if not known or crc != crc32c.crc32c(header.digest[:16] + stored[end : end + 12]):
        return None
    right = stored[header.size : begin] == pack_head(header.digest, 0, True, payload)
    return (payload, raw_size) if right else None


class Table:
    """A container's table, read in pieces, and refused at the first piece with an entry that cannot be. So a container
    that is mostly a hole, with a table as large as itself, fails at the first zeros.

    - `ends`: where each block's payload ends, from the container's first byte, as far as they were read.
    """

    def __init__(self, header: Header) -> None:
        self.ends = array("Q")
        self._header = header
        self._limit = stage_limit(header.block_size)
        self._crc = crc32c.crc32c(header.digest[:16])

    def feed(self, data: bytes) -> None:
        """Take the next entries, whole ones; raises ContainerError if one of them is impossible."""
        self._crc = crc32c.crc32c(data, self._crc)
        lengths = _swapped(array("I", data))
        if max(lengths) > self._limit or (0 in lengths and len(self.ends) + len(lengths) > 1):
            raise ContainerError("the table is malformed: blocks are too long, or have no bytes")
        end = self.ends[-1] if self.ends else self._header.size
        for length in lengths:
            end += limits.BLOCK_HEAD_BYTES + length
            self.ends.append(end)

    def finish(self, footer: Footer, container_size: int) -> None:
        """Compare the table with the footer behind it; ContainerError if damaged, or not that of the container."""
        blocks, size = footer.blocks(self._header), self.ends[-1] + tail_size(len(self.ends))
        if len(self.ends) != blocks or container_size != size:
            raise ContainerError(
                f"the footer says {blocks} blocks, and the table a container of {size} bytes; this one has "
                f"{len(self.ends)} in {container_size}: it was truncated or appended to"
            )
        sizes = struct.pack("<Q", footer.raw_size)
        if crc32c.crc32c(sizes, self._crc) != footer.crc:
            raise ContainerError("the CRC of table and footer does not match: they are damaged, or another container's")

    def edges(self, raw_size: int) -> bytes:
        """The SHA-256 of the container's header, table and footer, once all was read."""
        begins = [self._header.size, *self.ends[:-1]]
        lengths = [end - begin - limits.BLOCK_HEAD_BYTES for begin, end in zip(begins, self.ends, strict=True)]
        return digest_of(self._header.pack(), pack_tail(self._header.digest, lengths, raw_size))


def _swapped(lengths: array[int]) -> array[int]:
    """Little-endian integers as this machine has them, or the other way round."""
    if sys.byteorder == "big":
        lengths.byteswap()
    return lengths


_LOST_AFTER = 8  # damaged blocks in a row: then these bytes are not block heads


class NeedData(enum.Enum):
    NEED_DATA = enum.auto()


NEED_DATA = NeedData.NEED_DATA


@dataclass(frozen=True, slots=True)
class Block:
    """A stored block; a lenient parser sets `error` if it is damaged."""

    index: int
    last: bool
    payload: memoryview
    error: BlockError | None = None


@dataclass(frozen=True, slots=True)
class End:
    """Table and footer match the blocks that came before; `edges` as of `Table`."""

    raw_size: int
    edges: bytes
    blocks: int


Event = Header | Block | End


class ContainerParser:
    """Turns bytes that arrive in order into events.

    - `lenient`: whether a block whose CRC does not match is an event, too, for tools that look for damage: its head
      says where the next block is, unless it is the head that is damaged. Several in a row are an error, too.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self._lenient = lenient
        self._error: ContainerError | None = None
        self._damaged = 0
        self._buffer = bytearray()
        self._step: Callable[[], Event | NeedData] = self._header
        self.position = 0  # where the last event ended, counted from the container's first byte
        self._ends = array("Q")

    def feed(self, data: bytes | memoryview) -> None:
        self._buffer += data

    def next_event(self) -> Event | NeedData:
        """The next event, or `NEED_DATA`. Raises ContainerError, BlockError for other bytes; from then on always."""
        if self._error is not None:
            raise self._error
        try:
            return self._step()
        except ContainerError as error:
            self._error = error
            raise

    @property
    def rest(self) -> bytes:
        """Bytes that were fed and not used; after the `End` event, those after the container."""
        return bytes(self._buffer)

    def finish(self) -> None:
        """Say that no more bytes will come; raises ContainerError if the container has no end, or bytes follow it."""
        if self._step != self._done:
            raise ContainerError("the container is truncated: its end is missing")
        if self._buffer:
            raise ContainerError("there is data behind the container's end")

    def _take(self, size: int) -> bytes:
        data = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        self.position += size
        return data

    def _header(self) -> Event | NeedData:
        if len(self._buffer) < limits.HEADER_FIXED_BYTES:
            return NEED_DATA
        size = header_size(bytes(self._buffer[: limits.HEADER_FIXED_BYTES]))
        if len(self._buffer) < size:
            return NEED_DATA
        header = self._parsed = Header.parse(self._take(size))
        self._limit = stage_limit(header.block_size)
        self._table = Table(header)
        self._step = self._block
        return header

    def _block(self) -> Event | NeedData:
        index = len(self._ends)
        if len(self._buffer) < limits.BLOCK_HEAD_BYTES:
            return NEED_DATA
        stored = bytes(self._buffer[: limits.BLOCK_HEAD_BYTES])
        last, stored_size = parse_head(stored, index, self._limit)
        if len(self._buffer) < limits.BLOCK_HEAD_BYTES + stored_size:
            return NEED_DATA
        if index << self._parsed.block_log2 >= limits.MAX_RAW_SIZE:
            raise ContainerError("the container has more blocks than the format allows")
        self._take(limits.BLOCK_HEAD_BYTES)
        payload = memoryview(self._take(stored_size))
        error = self._damage(stored, index, last, payload)
        self._ends.append(self.position)
        if last:
            self._step = self._tail
        return Block(index, last, payload, error)

    def _damage(self, head: bytes, index: int, last: bool, payload: memoryview) -> BlockError | None:
        if head == pack_head(self._parsed.digest, index, last, payload):
            self._damaged = 0
            return None
        self._damaged += 1
        if not self._lenient or self._damaged > _LOST_AFTER:
            raise _damaged(index)
        return _damaged(index)

    def _tail(self) -> Event | NeedData:
        # each part of the table is checked as soon as it is there
        known = len(self._table.ends)
        count = min(len(self._ends) - known, len(self._buffer) // LENGTH_BYTES)
        if count:
            self._table.feed(self._take(count * LENGTH_BYTES))
            stop = known + count
            if self._table.ends[known:] != self._ends[known:stop]:
                raise ContainerError("the table contradicts the blocks")
        if len(self._table.ends) < len(self._ends) or len(self._buffer) < limits.FOOTER_BYTES:
            return NEED_DATA
        footer = Footer.parse(self._take(limits.FOOTER_BYTES))
        self._table.finish(footer, self.position)
        self._step = self._done
        return End(footer.raw_size, self._table.edges(footer.raw_size), len(self._ends))

    def _done(self) -> NeedData:
        return NEED_DATA


def check_stored(
    stored: memoryview, index: int, header: Header, *, last: bool, digests: bytes | None = None, crc: bool = True
) -> memoryview:
    """Check a stored block that was found by the table, and return its payload. Raises BlockError if it does not end
    where the table says, is last where it should not be, or is damaged.

    - `digests`: those of all blocks, where they are known.
    - `crc`: whether to compare the CRC; not before a tag over the same bytes is.
    """
    payload = stored[limits.BLOCK_HEAD_BYTES :]
    head = bytes(stored[: limits.BLOCK_HEAD_BYTES])
    found = parse_head(head, index, stage_limit(header.block_size))
    if found != (last, len(payload)):
        raise BlockError("block does not end where the table says, or is last where it should not be", block=index)
    if crc and head != pack_head(header.digest, index, last, payload):
        raise _damaged(index)
    check_block(digests, index, stored)
    return payload
