"""Table and footer, the container's map for random access; docs/format.md, "Table and footer"."""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import crc32c

from streamxf.errors import ContainerError
from streamxf.format.limits import (
    BLOCK_HEAD_BYTES,
    DIGEST_BYTES,
    FOOTER_BYTES,
    FOOTER_MAGIC,
    MAX_BLOCKS,
    MAX_RAW_SIZE,
    stage_limit,
)

_FOOTER = struct.Struct("<QQII8s")
_SIZES_BYTES = 20
_END_BYTES = 8


class Footer(NamedTuple):
    """The last 32 bytes of a container."""

    raw_size: int
    container_size: int
    blocks: int
    sizes: bytes
    crc: int

    @classmethod
    def parse(cls, data: bytes, block_size: int) -> Footer:
        """Read the footer and check it against itself. Raises ContainerError if the end of the container is not one."""
        if len(data) != FOOTER_BYTES:
            raise ContainerError("the container is truncated: there is no room for its footer")
        raw_size, container_size, blocks, crc, magic = _FOOTER.unpack(data)
        if magic != FOOTER_MAGIC:
            raise ContainerError("the container does not end as one: it is truncated, or something was appended")
        if not 1 <= blocks <= MAX_BLOCKS or raw_size > MAX_RAW_SIZE or not _fits(raw_size, blocks, block_size):
            raise ContainerError(f"the footer contradicts itself: {raw_size} bytes in {blocks} blocks of {block_size}")
        return cls(raw_size, container_size, blocks, data[:_SIZES_BYTES], crc)

    def tail_size(self, hashed: bool) -> int:
        """Bytes of table and footer together."""
        return entry_size(hashed) * self.blocks + FOOTER_BYTES


def entry_size(hashed: bool) -> int:
    """Bytes of a table's entry."""
    return _END_BYTES + (DIGEST_BYTES if hashed else 0)


def pack_tail(header_digest: bytes, ends: Sequence[int], hashes: Sequence[bytes], raw_size: int) -> tuple[bytes, bytes]:
    """Table and footer of blocks that end at `ends`, counted from the container's first byte, and T.

    `hashes` is empty, or has one for each block.
    """
    table = _pack(ends, hashes)
    sizes = struct.pack("<QQI", raw_size, ends[-1] + len(table) + FOOTER_BYTES, len(ends))
    crc = struct.pack("<I", crc32c.crc32c(header_digest[:16] + table + sizes))
    return table + sizes + crc + FOOTER_MAGIC, hashlib.sha256(header_digest + table + sizes).digest()


class Table:
    """A container's table, read in pieces, and refused at the first entry that cannot be.

    So a container that is mostly a hole, with a table as large as itself, fails at the first zeros.

    - `header_size`: where the first block begins.
    - `ends`: where each block's payload ends, from the container's first byte, as far as they were read.
    - `hashes`: each block's SHA-256, where the container is hashed.
    """

    def __init__(self, header_digest: bytes, header_size: int, block_size: int, hashed: bool) -> None:
        self.ends = array("Q")
        self.hashes: list[bytes] = []
        self.entry_size = entry_size(hashed)
        self._last = header_size
        self._block_size = block_size
        self._limit = BLOCK_HEAD_BYTES + stage_limit(block_size)
        self._hashed = hashed
        self._crc = crc32c.crc32c(header_digest[:16])
        self._header_digest = header_digest
        self._sizes = b""

    def feed(self, data: bytes) -> None:
        """Take the next entries, whole ones. Raises ContainerError if one of them is impossible."""
        if self._hashed:
            step = self.entry_size
            ends = _ends_of(b"".join(data[at : at + _END_BYTES] for at in range(0, len(data), step)))
            self.hashes.extend(data[at + _END_BYTES : at + step] for at in range(0, len(data), step))
        else:
            ends = _ends_of(data)
        last = self._last
        for end in ends:
            if not last + BLOCK_HEAD_BYTES <= end <= last + self._limit:
                raise ContainerError("the table is malformed: blocks overlap, leave gaps or are too long")
            last = end
        self._last = last
        self._crc = crc32c.crc32c(data, self._crc)
        self.ends.extend(ends)

    def finish(self, footer: Footer, container_size: int) -> None:
        """Compare the table with the footer behind it. Raises ContainerError if they are damaged, or contradict the
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


def _fits(raw_size: int, blocks: int, block_size: int) -> bool:
    return (blocks - 1) * block_size < raw_size <= blocks * block_size or (raw_size == 0 and blocks == 1)
