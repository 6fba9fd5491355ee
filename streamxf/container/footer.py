"""Index and footer, the container's map for random access; docs/format.md, "Index and footer"."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import crc32c

from streamxf.container.limits import BLOCK_HEAD_BYTES, FOOTER_BYTES, FOOTER_MAGIC, MAX_BLOCKS, MAX_RAW_SIZE
from streamxf.errors import ContainerError

_FOOTER = struct.Struct("<QQII8s")


@dataclass(frozen=True)
class Footer:
    """The last 32 bytes of a container."""

    raw_size: int
    container_size: int
    blocks: int
    crc: int

    @classmethod
    def parse(cls, data: bytes, block_size: int) -> Footer:
        """Read the footer and check it against itself.

        Raises
        ------
        ContainerError
            If the end of the container is not one.
        """
        if len(data) != FOOTER_BYTES:
            raise ContainerError("the container is truncated: there is no room for its footer")
        raw_size, container_size, blocks, crc, magic = _FOOTER.unpack(data)
        if magic != FOOTER_MAGIC:
            raise ContainerError("the container does not end as one: it is truncated, or something was appended")
        if not 1 <= blocks <= MAX_BLOCKS or raw_size > MAX_RAW_SIZE or not _fits(raw_size, blocks, block_size):
            raise ContainerError(f"the footer contradicts itself: {raw_size} bytes in {blocks} blocks of {block_size}")
        return cls(raw_size, container_size, blocks, crc)

    @property
    def tail_size(self) -> int:
        """Bytes of index and footer together."""
        return 8 * self.blocks + FOOTER_BYTES


def pack_tail(header_digest: bytes, ends: Sequence[int], raw_size: int) -> bytes:
    """Index and footer for blocks that end at `ends`, counted from the container's first byte."""
    index = _pack_index(ends)
    sizes = struct.pack("<QQI", raw_size, ends[-1] + len(index) + FOOTER_BYTES, len(ends))
    return index + sizes + struct.pack("<I", crc32c.crc32c(header_digest[:16] + index + sizes)) + FOOTER_MAGIC


class IndexParser:
    """Reads an index in pieces and refuses it at the first entry that cannot be.

    So a container that is mostly a hole, with an index as large as itself, fails at the first zeros.

    Parameters
    ----------
    header_digest : bytes
    header_size : int
        Where the first block begins.
    stage_limit : int
        The most bytes of a stored payload.

    Attributes
    ----------
    ends : array of int
        Where each block's payload ends, from the container's first byte, as far as they were read.
    """

    def __init__(self, header_digest: bytes, header_size: int, stage_limit: int) -> None:
        self.ends = array("Q")
        self._last = header_size
        self._stage_limit = stage_limit
        self._crc = crc32c.crc32c(header_digest[:16])

    def feed(self, data: bytes) -> None:
        """Take the next entries, whole ones.

        Raises
        ------
        ContainerError
            If one of them is impossible.
        """
        ends = array("Q", data)
        if sys.byteorder == "big":
            ends.byteswap()
        last = self._last
        for end in ends:
            if not last + BLOCK_HEAD_BYTES <= end <= last + BLOCK_HEAD_BYTES + self._stage_limit:
                raise ContainerError("the index is not well formed: blocks overlap, leave gaps or are too long")
            last = end
        self._last = last
        self._crc = crc32c.crc32c(data, self._crc)
        self.ends.extend(ends)

    def finish(self, data: bytes, container_size: int, block_size: int) -> Footer:
        """Read the footer, which is exactly `data`, and compare it with the index before it.

        Raises
        ------
        ContainerError
            If they are damaged, or contradict the container.
        """
        footer = Footer.parse(data, block_size)
        if len(self.ends) != footer.blocks or footer.container_size != container_size:
            raise ContainerError(
                f"the footer speaks of {footer.blocks} blocks in a container of {footer.container_size} bytes, this "
                f"one has {len(self.ends)} in {container_size}: it is truncated or continued"
            )
        if crc32c.crc32c(data[:-12], self._crc) != footer.crc:
            raise ContainerError("the CRC of index and footer does not match: they are damaged, or another container's")
        if self._last != container_size - footer.tail_size:
            raise ContainerError("the index does not end where it stands itself")
        return footer


def _pack_index(ends: Sequence[int]) -> bytes:
    index = array("Q", ends)
    if sys.byteorder == "big":
        index.byteswap()
    return index.tobytes()


def _fits(raw_size: int, blocks: int, block_size: int) -> bool:
    return (blocks - 1) * block_size < raw_size <= blocks * block_size or (raw_size == 0 and blocks == 1)
