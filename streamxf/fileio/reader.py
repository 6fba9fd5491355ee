"""`StreamReader`: a seekable file to read from, over one container."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from typing_extensions import Buffer

from streamxf.buffers import ScratchPool, flat_view
from streamxf.codec import StreamInfo
from streamxf.coder import StreamCoder, stage_limit
from streamxf.container.blocks import BlockHead, check_payload, parse_head
from streamxf.container.footer import Footer, parse_tail
from streamxf.container.header import Header, header_size
from streamxf.container.limits import BLOCK_HEAD_BYTES, FOOTER_BYTES, HEADER_FIXED_BYTES
from streamxf.engine import Pipeline
from streamxf.errors import BlockError, StreamxfError
from streamxf.fileio.source import FileSlice

_scratch = ScratchPool(keep=16)
_CACHED_BLOCKS = 2  # the first and the last: zip files, and so torch.load, go back and forth between them
_READ_STEP = 64 * 2**20  # bytes; a whole number of blocks of any size


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


class StreamReader(io.RawIOBase):
    """Decodes a container at random: seekable, and parallel where a read spans several blocks.

    Nothing that was not checked is ever handed out. After an error about the container the stream stays dead; `error`
    holds it, because some callers (torch's zip reader) replace the exceptions of the files that they read.

    Parameters
    ----------
    source : FileSlice
        The container, whole.
    header : Header
        As `read_header` gave it; identity and chain were checked by the caller.
    coder : StreamCoder
        Its seal was checked by the caller.
    finish : callable, optional
        Called by `close`.
    name : str, optional
        The file's name, for errors.
    """

    def __init__(
        self,
        source: FileSlice,
        header: Header,
        coder: StreamCoder,
        finish: Callable[[], Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._source = source
        self._coder = coder
        self._on_finish = finish
        self._name = name
        self._block_size = header.block_size
        self._stage_limit = stage_limit(header.block_size)
        self._start = header.size
        self._position = 0
        self._cached: dict[int, memoryview] = {}
        self.error: StreamxfError | None = None
        footer = Footer.parse(source.read_at(max(0, source.length - FOOTER_BYTES), FOOTER_BYTES), header.block_size)
        tail = source.read_at(source.length - footer.tail_size, footer.tail_size)
        footer, self._ends = parse_tail(
            tail, header.digest, self._start, source.length, header.block_size, self._stage_limit
        )
        self.size = footer.raw_size
        if header.keyed:
            # index and footer carry a CRC only: the last block, whose tag covers that it is the last, vouches for the
            # size
            self._block(footer.blocks - 1)

    # -- file interface ----------------------------------------------------------------------------

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}
        if whence not in base:
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        if base[whence] + offset < 0:
            raise ValueError("seek to before the start of the stream")
        self._position = base[whence] + offset
        return self._position

    def write(self, data: Buffer, /) -> NoReturn:
        raise io.UnsupportedOperation("the stream was opened for reading")

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill `buffer` from the current position, with all of it or up to the end of the stream; blocks are decoded in
        parallel, straight into it.
        """
        if self.closed:
            raise ValueError("read from a closed stream")
        if self.error is not None:
            raise self.error
        out = flat_view(buffer)
        size = max(0, min(len(out), self.size - self._position))
        try:
            self._read(out[:size], self._position)
        except StreamxfError as error:
            self.error = error.locate(file=self._name)
            raise
        self._position += size
        return size

    def read(self, size: int | None = -1, /) -> bytes:
        rest = max(0, self.size - self._position)
        wanted = rest if size is None or size < 0 else min(size, rest)
        parts = []
        # without a key nobody vouches for the size, so memory is taken only as blocks turn out to be there
        while True:
            parts.append(bytearray(min(wanted, _READ_STEP)))
            wanted -= self.readinto(parts[-1])
            if wanted <= 0:
                return b"".join(parts)

    def readall(self) -> bytes:
        return self.read()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._cached.clear()
            on_finish, self._on_finish = self._on_finish, None
            if on_finish is not None:
                on_finish()

    # -- blocks ------------------------------------------------------------------------------------

    def _read(self, out: memoryview, start: int) -> None:
        first, last = start // self._block_size, (start + len(out) - 1) // self._block_size
        if first == last or not out:
            if out:
                self._copy_part(out, start, first)
            return
        pipeline: Pipeline[None] = Pipeline(_taken)
        for index in range(first, last + 1):
            begin = index * self._block_size
            size = self._size_of(index)
            if begin >= start and begin + size <= start + len(out):
                self._submit(pipeline, index, out[begin - start : begin - start + size])
        pipeline.settle()
        for index in {first, last}:
            begin = index * self._block_size
            if begin < start or begin + self._size_of(index) > start + len(out):
                from_, to = max(begin, start), min(begin + self._block_size, start + len(out))
                self._copy_part(out[from_ - start : to - start], from_, index)

    def _copy_part(self, out: memoryview, start: int, index: int) -> None:
        offset = start - index * self._block_size
        out[:] = self._block(index)[offset : offset + len(out)]

    def _block(self, index: int) -> memoryview:
        data = self._cached.get(index)
        if data is None:
            head, payload = self._stored(index)
            data = memoryview(bytearray(self._size_of(index)))
            _decode(self._coder, head, payload, index, data)
            while len(self._cached) >= _CACHED_BLOCKS:
                del self._cached[next(iter(self._cached))]
            self._cached[index] = data
        return data

    def _submit(self, pipeline: Pipeline[None], index: int, out: memoryview) -> None:
        cached = self._cached.get(index)
        if cached is not None:
            out[:] = cached
            return
        try:
            head, payload = self._stored(index)
        except BaseException:
            pipeline.cancel()  # workers may still write into the caller's buffer
            raise
        pipeline.submit(partial(_decode, self._coder, head, payload, index, out), self._block_size)

    def _stored(self, index: int) -> tuple[BlockHead, memoryview]:
        start = self._ends[index - 1] if index else self._start
        data = self._source.read_at(start, self._ends[index] - start)
        head = parse_head(data[:BLOCK_HEAD_BYTES], index, self._stage_limit)
        payload = memoryview(data)[BLOCK_HEAD_BYTES:]
        if head.stored_size != len(payload) or head.last != (index == len(self._ends) - 1):
            raise BlockError("block does not end where the index says, or is last where it should not be", block=index)
        return head, payload

    def _size_of(self, index: int) -> int:
        return min(self._block_size, self.size - index * self._block_size)


def _decode(coder: StreamCoder, head: BlockHead, payload: memoryview, index: int, out: memoryview) -> None:
    check_payload(head, coder.stream.header_digest, index, payload)
    scratch = _scratch.take()
    coder.decode(payload, index, head.last, scratch, out)
    _scratch.give(scratch)


def _taken(_: None) -> None:
    """Blocks are decoded into their place, so there is nothing left to do with a result."""
