"""What stands before each stored block; docs/format.md, "Block"."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c

from streamxf.container.combine import shifted
from streamxf.container.limits import BLOCK_HEAD_BYTES
from streamxf.errors import BlockError

LAST = 1 << 31
_WORDS = struct.Struct("<II")
_INDEX = struct.Struct("<I")
_WORD = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class BlockHead:
    """The eight bytes before a block's payload."""

    last: bool
    stored_size: int
    crc: int


def pack_head(header_digest: bytes, index: int, last: bool, payload: memoryview) -> bytes:
    """The eight bytes that stand before `payload`."""
    word = (LAST if last else 0) | len(payload)
    return _WORDS.pack(word, _crc(header_digest, index, word, payload))


def parse_head(data: bytes, index: int, limit: int) -> BlockHead:
    """Read the eight bytes before block `index`, whose payload may have up to `limit` bytes.

    Raises
    ------
    BlockError
        If its length is over the limit.
    """
    word, crc = _WORDS.unpack(data)
    stored_size = word & ~LAST
    if stored_size > limit:
        raise BlockError(
            f"block says it has {stored_size} stored bytes, {limit} are allowed: its head is damaged", block=index
        )
    return BlockHead(bool(word & LAST), stored_size, crc)


def check_payload(head: BlockHead, header_digest: bytes, index: int, payload: memoryview) -> None:
    """Compare a block's CRC with its payload and place.

    Raises
    ------
    BlockError
        If it does not match.
    """
    word = (LAST if head.last else 0) | head.stored_size
    if len(payload) != head.stored_size or _crc(header_digest, index, word, payload) != head.crc:
        raise BlockError("block CRC does not match: its stored bytes are damaged or belong elsewhere", block=index)


def crc_of_stored(stored: memoryview, header_digest: bytes, index: int) -> int:
    """The CRC-32C of a block as it is stored, head and payload, once `check_payload` has passed.

    It takes no look at the payload: what that counts is in the block's own CRC.
    """
    head = bytes(stored[:BLOCK_HEAD_BYTES])
    word, crc = _WORDS.unpack(head)
    instead = crc32c.crc32c(head) ^ _start(header_digest, index, word)
    return shifted(instead, len(stored) - BLOCK_HEAD_BYTES) ^ int(crc)


def _crc(header_digest: bytes, index: int, word: int, payload: memoryview) -> int:
    return int(crc32c.crc32c(payload, _start(header_digest, index, word)))


def _start(header_digest: bytes, index: int, word: int) -> int:
    return int(crc32c.crc32c(header_digest[:16] + _INDEX.pack(index) + _WORD.pack(word)))
