"""The parts of a container behind its header: blocks, table and footer; and the one walk along block heads.

docs/format.md, "Block", "Table and footer".

The walk is in the manner of h11: `ContainerParser.feed` takes whatever has arrived, in pieces of any size, and
`ContainerParser.next_event` returns the next header, block or end, or `NEED_DATA`. A block is handed on as it is
stored; whoever decodes the last one must keep it back until the `End` event. After an error the parser stays dead.
"""

from __future__ import annotations

import enum
import hashlib
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import crc32c

from streamxf.errors import BlockError, ContainerError
from streamxf.format import limits
from streamxf.format.header import Header, header_size

LAST = 1 << 31
_WORDS = struct.Struct("<II")


def stage_limit(block_size: int) -> int:
    """E of the format: the most bytes that any codec of a chain may give or take for a block."""
    return block_size + block_size // 16 + 1024


class BlockHead(NamedTuple):
    last: bool
    stored_size: int
    crc: int


def pack_head(header_digest: bytes, index: int, last: bool, payload: memoryview) -> bytes:
    word = (LAST if last else 0) | len(payload)
    return _WORDS.pack(word, _crc(header_digest, index, word, payload))


def parse_head(data: bytes, index: int, limit: int) -> BlockHead:
    """Read the eight bytes before block `index`; raises BlockError if its payload has more than `limit` bytes."""
    word, crc = _WORDS.unpack(data)
    stored_size = word & ~LAST
    if stored_size > limit:
        raise BlockError(
            f"the block's head says it has {stored_size} stored bytes, {limit} are allowed: it is damaged", block=index
        )
    return BlockHead(bool(word & LAST), stored_size, crc)


def check_payload(head: BlockHead, header_digest: bytes, index: int, payload: memoryview) -> None:
    word = (LAST if head.last else 0) | head.stored_size
    if len(payload) != head.stored_size or _crc(header_digest, index, word, payload) != head.crc:
        raise _damaged(index)


def _damaged(index: int) -> BlockError:
    return BlockError("block CRC does not match: its stored bytes are damaged or belong elsewhere", block=index)


def hash_of(head: bytes, payload: memoryview) -> bytes:
    made = hashlib.sha256(head)
    made.update(payload)
    return made.digest()


def _crc(header_digest: bytes, index: int, word: int, payload: memoryview) -> int:
    start = crc32c.crc32c(header_digest[:16] + _WORDS.pack(index, word))
    return int(crc32c.crc32c(payload, start))


_FOOTER = struct.Struct("<QQII8s")
_SIZES_BYTES = 20
_END_BYTES = 8


class Footer(NamedTuple):
    raw_size: int
    container_size: int
    blocks: int
    sizes: bytes
    crc: int

    @classmethod
    def parse(cls, data: bytes, block_size: int) -> Footer:
        if len(data) != limits.FOOTER_BYTES:
            raise ContainerError("the container is truncated: it is too short for its footer")
        raw_size, container_size, blocks, crc, magic = _FOOTER.unpack(data)
        if magic != limits.FOOTER_MAGIC:
            raise ContainerError("the container has no valid end: it is truncated or continued")
        if (
            not 1 <= blocks <= limits.MAX_BLOCKS
            or raw_size > limits.MAX_RAW_SIZE
            or not ((blocks - 1) * block_size < raw_size <= blocks * block_size or (raw_size == 0 and blocks == 1))
        ):
            raise ContainerError(f"the footer contradicts itself: {raw_size} bytes in {blocks} blocks of {block_size}")
        return cls(raw_size, container_size, blocks, data[:_SIZES_BYTES], crc)

    def tail_size(self, hashed: bool) -> int:
        return entry_size(hashed) * self.blocks + limits.FOOTER_BYTES


def entry_size(hashed: bool) -> int:
    return _END_BYTES + (limits.DIGEST_BYTES if hashed else 0)


def pack_tail(header_digest: bytes, ends: Sequence[int], hashes: Sequence[bytes], raw_size: int) -> tuple[bytes, bytes]:
    """Table and footer of blocks that end at `ends`, counted from the container's first byte, and T. `hashes` is empty,
    or has one for each block.
    """
    table = _pack(ends, hashes)
    sizes = struct.pack("<QQI", raw_size, ends[-1] + len(table) + limits.FOOTER_BYTES, len(ends))
    crc = struct.pack("<I", crc32c.crc32c(header_digest[:16] + table + sizes))
    return table + sizes + crc + limits.FOOTER_MAGIC, hashlib.sha256(header_digest + table + sizes).digest()


class Table:
    """A container's table, read in pieces, and refused at the first entry that cannot be. So a container that is mostly
    a hole, with a table as large as itself, fails at the first zeros.

    - `ends`: where each block's payload ends, from the container's first byte, as far as they were read.
    - `hashes`: each block's SHA-256, where the container is hashed.
    """

    def __init__(self, header_digest: bytes, header_size: int, block_size: int, hashed: bool) -> None:
        self.ends = array("Q")
        self.hashes: list[bytes] = []
        self.entry_size = entry_size(hashed)
        self._last = header_size
        self._block_size = block_size
        self._limit = limits.BLOCK_HEAD_BYTES + stage_limit(block_size)
        self._hashed = hashed
        self._crc = crc32c.crc32c(header_digest[:16])
        self._header_digest = header_digest
        self._sizes = b""

    def feed(self, data: bytes) -> None:
        """Take the next entries, whole ones; raises ContainerError if one of them is impossible."""
        if self._hashed:
            step = self.entry_size
            ends = _ends_of(b"".join(data[at : at + _END_BYTES] for at in range(0, len(data), step)))
            self.hashes.extend(data[at + _END_BYTES : at + step] for at in range(0, len(data), step))
        else:
            ends = _ends_of(data)
        last = self._last
        for end in ends:
            if not last + limits.BLOCK_HEAD_BYTES <= end <= last + self._limit:
                raise ContainerError("the table is malformed: blocks overlap, leave gaps or are too long")
            last = end
        self._last = last
        self._crc = crc32c.crc32c(data, self._crc)
        self.ends.extend(ends)

    def finish(self, footer: Footer, container_size: int) -> None:
        """Compare the table with the footer behind it; raises ContainerError if they are damaged, or contradict the
        container.
        """
        if len(self.ends) != footer.blocks or footer.container_size != container_size:
            raise ContainerError(
                f"the footer says {footer.blocks} blocks in a container of {footer.container_size} bytes; this one "
                f"has {len(self.ends)} in {container_size}: it is truncated or continued"
            )
        if crc32c.crc32c(footer.sizes, self._crc) != footer.crc:
            raise ContainerError("the CRC of table and footer does not match: they are damaged, or another container's")
        if self._last != container_size - footer.tail_size(self._hashed):
            raise ContainerError("the table does not begin where the last block ends")
        self._sizes = footer.sizes

    @property
    def digest(self) -> bytes:
        """T of the format, once all was read: SHA-256 over header digest, table and sizes."""
        return hashlib.sha256(self._header_digest + _pack(self.ends, self.hashes) + self._sizes).digest()


def _pack(ends: Sequence[int], hashes: Sequence[bytes]) -> bytes:
    made = array("Q", ends)
    if sys.byteorder == "big":
        made.byteswap()
    table = made.tobytes()
    if not hashes:
        return table
    return b"".join(table[_END_BYTES * at : _END_BYTES * (at + 1)] + digest for at, digest in enumerate(hashes))


def _ends_of(data: bytes) -> array[int]:
    ends = array("Q", data)
    if sys.byteorder == "big":
        ends.byteswap()
    return ends


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
    """Table and footer match the blocks that came before; `table_digest` is T of the format."""

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
        self._error: ContainerError | None = None
        self._damaged = 0
        self._buffer = bytearray()
        self._step: Callable[[], Event | NeedData] = self._header
        self.position = 0  # where the last event ended, counted from the container's first byte
        self._ends = array("Q")
        self._hashes: list[bytes] = []

    def feed(self, data: bytes | memoryview) -> None:
        self._buffer += data

    def next_event(self) -> Event | NeedData:
        """The next event, or `NEED_DATA`. Raises ContainerError, BlockError if the bytes are not a container; from then
        on always.
        """
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
        self._table = Table(header.digest, size, header.block_size, header.hashed)
        self._step = self._block
        return header

    def _block(self) -> Event | NeedData:
        index = len(self._ends)
        if len(self._buffer) < limits.BLOCK_HEAD_BYTES:
            return NEED_DATA
        stored = bytes(self._buffer[: limits.BLOCK_HEAD_BYTES])
        head = parse_head(stored, index, self._limit)
        if len(self._buffer) < limits.BLOCK_HEAD_BYTES + head.stored_size:
            return NEED_DATA
        if index >= limits.MAX_BLOCKS:
            raise ContainerError("the container has more blocks than the format allows")
        self._take(limits.BLOCK_HEAD_BYTES)
        payload = memoryview(self._take(head.stored_size))
        error = self._damage(head, index, payload)
        self._ends.append(self.position)
        if self._parsed.hashed:
            self._hashes.append(hash_of(stored, payload))
        if head.last:
            self._step = self._tail
        return Block(index, head.last, payload, error)

    def _damage(self, head: BlockHead, index: int, payload: memoryview) -> BlockError | None:
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
        if len(self._table.ends) < len(self._ends) or len(self._buffer) < limits.FOOTER_BYTES:
            return NEED_DATA
        total = self.position + limits.FOOTER_BYTES
        footer = Footer.parse(self._take(limits.FOOTER_BYTES), self._parsed.block_size)
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
    payload = stored[limits.BLOCK_HEAD_BYTES :]
    head = bytes(stored[: limits.BLOCK_HEAD_BYTES])
    if head != pack_head(header.digest, index, last, payload):
        found = parse_head(head, index, stage_limit(header.block_size))
        if found.stored_size != len(payload) or found.last != last:
            raise BlockError("block does not end where the table says, or is last where it should not be", block=index)
        raise _damaged(index)
    if expected_hash is not None and hash_of(head, payload) != expected_hash:
        raise BlockError("the block's hash does not match the table's: one of them was altered", block=index)
    return payload
