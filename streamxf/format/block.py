"""What stands before each stored block; docs/format.md, "Block"."""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

import crc32c

from streamxf.errors import BlockError

LAST = 1 << 31
_WORDS = struct.Struct("<II")


class BlockHead(NamedTuple):
    """The eight bytes before a block's payload."""

    last: bool
    stored_size: int
    crc: int


def pack_head(header_digest: bytes, index: int, last: bool, payload: memoryview) -> bytes:
    """The eight bytes that stand before `payload`."""
    word = (LAST if last else 0) | len(payload)
    return _WORDS.pack(word, _crc(header_digest, index, word, payload))


def parse_head(data: bytes, index: int, limit: int) -> BlockHead:
    """Read the eight bytes before block `index`, whose payload may have up to `limit` bytes. Raises BlockError if its
    length is over the limit.
    """
    word, crc = _WORDS.unpack(data)
    stored_size = word & ~LAST
    if stored_size > limit:
        raise BlockError(
            f"the block's head says it has {stored_size} stored bytes, {limit} are allowed: it is damaged", block=index
        )
    return BlockHead(bool(word & LAST), stored_size, crc)


def check_payload(head: BlockHead, header_digest: bytes, index: int, payload: memoryview) -> None:
    """Compare a block's CRC with its payload and place. Raises BlockError if it does not match."""
    word = (LAST if head.last else 0) | head.stored_size
    if len(payload) != head.stored_size or _crc(header_digest, index, word, payload) != head.crc:
        raise BlockError("block CRC does not match: its stored bytes are damaged or belong elsewhere", block=index)


def hash_of(head: bytes, payload: memoryview) -> bytes:
    """The SHA-256 of a stored block, as a hashed container's table has it."""
    made = hashlib.sha256(head)
    made.update(payload)
    return made.digest()


def _crc(header_digest: bytes, index: int, word: int, payload: memoryview) -> int:
    start = crc32c.crc32c(header_digest[:16] + _WORDS.pack(index, word))
    return int(crc32c.crc32c(payload, start))
