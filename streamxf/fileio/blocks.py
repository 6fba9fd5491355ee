"""`BlockReader`: a container opened at random, block by block, from any thread."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial

from streamxf.buffers import Scratch, ScratchPool
from streamxf.codec import StreamInfo
from streamxf.coder import StreamCoder, stage_limit
from streamxf.container.blocks import check_payload, parse_head
from streamxf.container.footer import Footer, IndexParser
from streamxf.container.header import Header, header_size
from streamxf.container.limits import BLOCK_HEAD_BYTES, FOOTER_BYTES, HEADER_FIXED_BYTES
from streamxf.errors import BlockError
from streamxf.fileio.source import FileSlice

TAIL_GUESS = 16 * 1024  # bytes; the tail of some 2,000 blocks
CheckSize = Callable[[int], None]

INDEX_STEP = 2**16  # bytes of an index that are read before they are checked

_scratch = ScratchPool(keep=16)


def read_header(source: FileSlice) -> Header:
    """Read and check the header at the start of `source`, before anything is known about keys or codecs.

    Raises
    ------
    ContainerError
        If there is none, or it is damaged.
    """
    size = header_size(source.read_at(0, min(HEADER_FIXED_BYTES, source.length)))
    return Header.parse(source.read_at(0, size))


def stream_info(header: Header) -> StreamInfo:
    """What a header says about its stream."""
    name = header.identity.name if header.identity is not None else None
    return StreamInfo(header.block_size, header.salt, header.digest, name)


class BlockReader:
    """Reads, checks and decodes single blocks of a container; nothing changes, so any thread may.

    Parameters
    ----------
    source : FileSlice
        The container, whole.
    header : Header
        As `read_header` gave it; identity and chain were checked by the caller.
    coder : StreamCoder or None
        Its seal was checked by the caller. Without one, `decode` checks stored bytes alone, and gives nothing.
    check_size : callable, optional
        Is told how many bytes the stream has, by the footer, before anything else is read; raises if it cannot be.

    Attributes
    ----------
    size : int
        Bytes of the stream. Index and footer carry a CRC only, so in a keyed stream nobody vouches for it before the
        last block, whose tag covers that it is the last, was decoded.
    count : int
        Blocks in the stream; at least one.
    block_size : int
        Bytes in every block but the last.
    keyed : bool
        Whether the chain encrypts.
    stored_size : int
        Bytes of the container.
    parallel : bool
        Whether several threads read at the same time.

    Raises
    ------
    ContainerError
        If index or footer are damaged, or contradict the container.
    """

    def __init__(
        self, source: FileSlice, header: Header, coder: StreamCoder | None, check_size: CheckSize | None = None
    ) -> None:
        self._source = source
        self._coder = coder
        self._digest = header.digest
        self._start = header.size
        self._stage_limit = stage_limit(header.block_size)
        self.block_size = header.block_size
        self.keyed = header.keyed
        self.stored_size = source.length
        self.parallel = source.parallel
        footer, self._ends = self._read_tail(check_size)
        self.size = footer.raw_size
        self.count = footer.blocks

    def _read_tail(self, check_size: CheckSize | None) -> tuple[Footer, array[int]]:
        length = self._source.length
        # in one read, where the index is not unusually long: files that fetch ahead would fetch anew for each step back
        end = self._source.read_at(max(0, length - TAIL_GUESS), min(length, TAIL_GUESS))
        footer = Footer.parse(end[-FOOTER_BYTES:], self.block_size)
        if check_size is not None:
            check_size(footer.raw_size)
        index = IndexParser(self._digest, self._start, self._stage_limit)
        if footer.tail_size <= len(end):
            index.feed(end[-footer.tail_size : -FOOTER_BYTES])
        else:
            at, stop = length - footer.tail_size, length - FOOTER_BYTES
            while at < stop:
                index.feed(self._source.read_at(at, min(INDEX_STEP, stop - at)))
                at += INDEX_STEP
        return index.finish(end[-FOOTER_BYTES:], length, self.block_size), index.ends

    def size_of(self, index: int) -> int:
        """Bytes that block `index` decodes to."""
        return min(self.block_size, self.size - index * self.block_size)

    def stored_size_of(self, index: int) -> int:
        """Bytes that block `index` takes in storage."""
        return self._ends[index] - self.begin_of(index)

    def decode(self, index: int, out: memoryview) -> None:
        """Decode block `index` into `out`, which has exactly its size.

        Raises
        ------
        BlockError, CodecError, AuthenticationError
            If it is not as it was stored. What `out` then holds did not pass its checks and must not be used.
        """
        scratch = _scratch.take()
        self.decode_stored(index, self.read(index, scratch), scratch, out)
        _scratch.give(scratch)

    def decoder(self, index: int) -> Callable[[memoryview], None]:
        """A `decode` of block `index` that some thread may call, once.

        Where several threads cannot read at the same time, the block is read here: files that fetch what lies ahead are
        best read in order.
        """
        if self.parallel:
            return partial(self.decode, index)
        scratch = _scratch.take()
        return partial(self._decode_and_give, index, self.read(index, scratch), scratch)

    def _decode_and_give(self, index: int, stored: memoryview, scratch: Scratch, out: memoryview) -> None:
        self.decode_stored(index, stored, scratch, out)
        _scratch.give(scratch)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """Block `index` as it is stored, head and payload: in `scratch`, or where it is in memory already.

        Raises
        ------
        ContainerError
            If the file ends before.
        """
        return self._source.view(self.begin_of(index), self.stored_size_of(index), scratch)

    def decode_stored(
        self, index: int, stored: memoryview, scratch: Scratch, out: memoryview | None = None
    ) -> memoryview:
        """Decode block `index`, which `read` gave; raises as `decode`.

        Parameters
        ----------
        out : memoryview, optional
            Where the block belongs, which has exactly its size. Without it the result lies in `scratch` or `stored`,
            and is at most a block long. Where there is no coder it is empty.
        """
        head = parse_head(bytes(stored[:BLOCK_HEAD_BYTES]), index, self._stage_limit)
        payload = stored[BLOCK_HEAD_BYTES:]
        if head.stored_size != len(payload) or head.last != (index == self.count - 1):
            raise BlockError("block does not end where the index says, or is last where it should not be", block=index)
        check_payload(head, self._digest, index, payload)
        if self._coder is None:
            return memoryview(b"")
        return self._coder.decode(payload, index, head.last, scratch, out)

    def begin_of(self, index: int) -> int:
        """Where block `index` begins in the container; for `count`, where the last one ends."""
        return self._ends[index - 1] if index else self._start
