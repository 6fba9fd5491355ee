"""The containers of a data file, found without metadata: from header to header, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamxf.coder import stage_limit
from streamxf.container.blocks import parse_head
from streamxf.container.footer import Footer
from streamxf.container.header import Header, Identity, header_size
from streamxf.container.limits import (
    BLOCK_HEAD_BYTES,
    FOOTER_BYTES,
    HEADER_FIXED_BYTES,
    MAGIC,
    MAX_BLOCKS,
    MAX_HEADER,
)
from streamxf.errors import ContainerError
from streamxf.fileio.source import FileSlice

_WINDOW = 4 * 2**20
_FREE_STEPS = 2**16


@dataclass(frozen=True)
class Found:
    """A container whose header is whole; nothing else of it was checked.

    Attributes
    ----------
    offset, length : int
        Where it stands in its file.
    header : Header
    identity : Identity
    """

    offset: int
    length: int
    header: Header
    identity: Identity


@dataclass(frozen=True)
class Gap:
    """A piece of a file that may have held items of which nothing is known."""

    offset: int
    length: int


def scan(source: FileSlice, writer: bytes) -> Iterator[Found | Gap]:
    """Find the containers that the process `writer` published, in the order of the file.

    Containers of others are passed over as what they are: data inside of an item, or a gap.
    """
    at = 0
    # as many blocks as the file can have: headers that share a run of blocks would have it followed from each of them
    steps = source.length // (BLOCK_HEAD_BYTES + 1) + _FREE_STEPS
    while at < source.length:
        header = _header_at(source, at, writer)
        if header is None:
            after = _next(source, at + 1, writer)
            yield Gap(at, after - at)
            at = after
            continue
        found, identity = header
        end, used = _end_of(source, at, found, steps)
        steps -= used
        if end is None:  # a block's head or the end is damaged: the next header shows where it ended
            end = _next(source, at + found.size, writer)
            if not _ends_at(source, at, found, end):
                yield Gap(at, end - at)  # other items may have stood there, too
        yield Found(at, end - at, found, identity)
        at = end


def _header_at(source: FileSlice, at: int, writer: bytes) -> tuple[Header, Identity] | None:
    try:
        data = source.read_at(at, min(MAX_HEADER, source.length - at))
        header = Header.parse(data[: header_size(data[:HEADER_FIXED_BYTES])])
    except ContainerError:
        return None
    identity = header.identity
    return (header, identity) if identity is not None and header.published and identity.writer_id == writer else None


def _end_of(source: FileSlice, at: int, header: Header, steps: int) -> tuple[int | None, int]:
    """Where a container ends, by the lengths of its blocks and its footer; None if these contradict each other, or are
    more than `steps`. And how many blocks were looked at.
    """
    limit = stage_limit(header.block_size)
    position = at + header.size
    index = 0
    try:
        for index in range(min(steps, MAX_BLOCKS)):
            head = parse_head(source.read_at(position, BLOCK_HEAD_BYTES), index, limit)
            position += BLOCK_HEAD_BYTES + head.stored_size
            if head.last:
                end = position + 8 * (index + 1) + FOOTER_BYTES
                return end if _ends_at(source, at, header, end) else None, index + 1
            if not head.stored_size:  # no codec makes nothing of a whole block, and zeros are what crashes leave
                break
    except ContainerError:
        pass
    return None, index + 1


def _ends_at(source: FileSlice, at: int, header: Header, end: int) -> bool:
    try:
        footer = Footer.parse(source.read_at(end - FOOTER_BYTES, FOOTER_BYTES), header.block_size)
    except ContainerError:
        return False
    return footer.container_size == end - at


def _next(source: FileSlice, start: int, writer: bytes) -> int:
    """Where the next header stands; the end of the file if there is none."""
    while start < source.length:
        window = source.read_at(start, min(_WINDOW, source.length - start))
        at = window.find(MAGIC)
        while at >= 0:
            if _header_at(source, start + at, writer) is not None:
                return start + at
            at = window.find(MAGIC, at + 1)
        if start + len(window) >= source.length:
            break
        start += len(window) - len(MAGIC) + 1
    return source.length
