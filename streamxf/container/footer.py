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


def parse_tail(
    data: bytes, header_digest: bytes, header_size: int, container_size: int, block_size: int, stage_limit: int
) -> tuple[Footer, array[int]]:
    """Read index and footer, which are exactly `data`, and check them against the container's size.

    Returns
    -------
    footer : Footer
    ends : array of int
        Where each block's payload ends, from the container's first byte.

    Raises
    ------
    ContainerError
        If they are damaged, or contradict the container.
    """
    footer = Footer.parse(data[-FOOTER_BYTES:], block_size)
    if len(data) != footer.tail_size or footer.container_size != container_size:
        raise ContainerError(
            f"the footer speaks of a container of {footer.container_size} bytes, this one has {container_size}: it "
            "is truncated or continued"
        )
    index = data[: 8 * footer.blocks]
    if crc32c.crc32c(header_digest[:16] + data[:-12]) != footer.crc:
        raise ContainerError("the CRC of index and footer does not match: they are damaged, or another container's")
    ends = array("Q", index)
    if sys.byteorder == "big":
        ends.byteswap()
    _check_ends(ends, header_size, container_size - footer.tail_size, stage_limit)
    return footer, ends


def _check_ends(ends: array[int], start: int, stop: int, stage_limit: int) -> None:
    for end in ends:
        if not start + BLOCK_HEAD_BYTES <= end <= start + BLOCK_HEAD_BYTES + stage_limit:
            raise ContainerError("the index is not well formed: blocks overlap, leave gaps or are too long")
        start = end
    if start != stop:
        raise ContainerError("the index does not end where it stands itself")


def _pack_index(ends: Sequence[int]) -> bytes:
    index = array("Q", ends)
    if sys.byteorder == "big":
        index.byteswap()
    return index.tobytes()


def _fits(raw_size: int, blocks: int, block_size: int) -> bool:
    return (blocks - 1) * block_size < raw_size <= blocks * block_size or (raw_size == 0 and blocks == 1)
