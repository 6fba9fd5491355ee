"""Streams that are read: `Blocks`, by blocks; `StreamReader`, a seekable file over them; `PipeReader`, for pipes."""

from __future__ import annotations

import io
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import IO, Any, NoReturn

from typing_extensions import Buffer

from streamxf.budget import Budget
from streamxf.buffers import Scratch, flat_view
from streamxf.chain import StreamCoder
from streamxf.engine import ForkLock
from streamxf.errors import AbortedError, ContainerError, StreamxfError
from streamxf.format.bare import PIECE, check_piece
from streamxf.format.container import NEED_DATA, Block, ContainerParser, End, Event
from streamxf.format.digests import check_block, digest_of
from streamxf.format.header import Header
from streamxf.format.limits import DIGEST_BYTES, MAX_KEY_LINE
from streamxf.format.plain import SEAL_END_BYTES
from streamxf.format.values import values_in
from streamxf.pipeline import Pipeline
from streamxf.report import Meter
from streamxf.storage.reading import FileSlice, Span
from streamxf.torchsave.objects import NODE_BYTES, Framed, find_framed

_CACHED_BLOCKS = 2  # the first and the last: zip files, and so torch.load, go back and forth between them
_UNNAMED = 1024  # bytes that a value counts for which no metadata names, for the time that it takes
_READ_STEP = 64 * 2**20  # bytes; a whole number of blocks of any size


Put = Callable[[int, Callable[[memoryview], None]], None]  # is given a block's index, and what decodes it


class Blocks(ABC):
    """A stream, readable block by block from any thread; all blocks but the last have `block_size` bytes. `header` and
    `coder` are those of the container that it is from, if any.
    """

    header: Header | None = None
    coder: StreamCoder | None = None

    def __init__(self, size: int, block_size: int) -> None:
        self.size = size
        self.block_size = block_size
        self.count = max(1, -(-size // block_size))

    def size_of(self, index: int) -> int:
        return min(self.block_size, self.size - index * self.block_size)

    def expect(self, *runs: Span) -> None:  # noqa: B027 - not all can begin to fetch
        """Take note that these blocks will be read next, each from a first one to before a last one."""

    @abstractmethod
    def decoder(self, index: int) -> Callable[[memoryview], None]:
        """A function that fills memory of exactly that size with the block; any thread may call it, once."""

    def run(self, first: int, stop: int, put: Put) -> Callable[[], None]:
        """Calls `put` with each of some neighbours and its `decoder`, in any thread, once; they may be read at once."""
        return partial(_put_each, [(index, self.decoder(index)) for index in range(first, stop)], put)


class BareBlocks(Blocks):
    """A stream without a container, with or without CRCs and digests of its pieces, which are its blocks."""

    edges = b""

    def __init__(self, source: FileSlice, crcs: bytes | None = None, digests: bytes | None = None) -> None:
        super().__init__(source.length, PIECE)
        self._source = source
        self.crcs = crcs
        self._digests = digests

    def expect(self, *runs: Span) -> None:
        size = self.block_size
        self._source.expect(*((first * size, min(self.size, stop * size)) for first, stop in runs))

    def stored_size_of(self, index: int) -> int:
        return self.size_of(index)

    def decoder(self, index: int) -> Callable[[memoryview | None], None]:
        """What fills memory with a block, or None to check it alone."""
        start, size = index * self.block_size, self.size_of(index)
        return partial(self._checked, self.range(start, start + size), size, index)

    def _checked(self, fill: Callable[[memoryview], None], size: int, index: int, out: memoryview | None) -> None:
        out = memoryview(bytearray(size)) if out is None else out
        fill(out)
        if self.crcs is not None:
            check_piece(self.crcs, index, out)
        if size:  # an item without bytes has no pieces
            check_block(self._digests, index, out)

    def digest(self, index: int) -> bytes:
        """The SHA-256 of a piece, once that was found intact; raises BlockError."""
        self.decoder(index)(out := memoryview(bytearray(self.size_of(index))))
        return digest_of(out)

    def range(self, start: int, stop: int) -> Callable[[memoryview], None]:
        """What fills memory with these bytes, unchecked."""
        if self._source.parallel:
            return partial(self._source.read_into, start)
        return partial(_copy, self._source.read_at(start, stop - start))


class MemoryBlocks(Blocks):
    """A stream in memory, as one block, or cut into such blocks."""

    def __init__(self, data: memoryview, header: Header | None = None, block_size: int = 0) -> None:
        super().__init__(len(data), block_size or len(data) or 1)
        self.data = data
        self.header = header

    def decoder(self, index: int) -> Callable[[memoryview], None]:
        return partial(_copy, self.block(index))

    def block(self, index: int) -> memoryview:
        return self.data[index * self.block_size :][: self.block_size]


def _put_each(blocks: list[Any], put: Callable[..., None]) -> None:
    for index, decode in blocks:
        put(index, decode)


def _copy(data: bytes | memoryview, out: memoryview) -> None:
    out[:] = data


class CheckedReader(io.RawIOBase):
    """A stream that was opened for reading. Nothing that was not checked is ever handed out. After an error about the
    container the stream stays dead; `error` holds it, because some callers (torch's zip reader) replace the exceptions
    of the files that they read. `finish` is called by `close`.
    """

    def __init__(self, finish: Callable[[], Any] | None, name: str | None) -> None:
        super().__init__()
        self._on_finish = finish
        self._name = name
        self.error: StreamxfError | None = None

    def readable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> NoReturn:
        raise io.UnsupportedOperation("the stream was opened for reading")

    def close(self) -> None:
        if not self.closed:
            super().close()
            on_finish, self._on_finish = self._on_finish, None
            if on_finish is not None:
                on_finish()

    def _check_usable(self) -> None:
        if self.closed:
            raise ValueError("read from a closed stream")
        if self.error is not None:
            raise self.error


class StreamReader(CheckedReader):
    """Decodes a stream at random: seekable, and parallel where a read spans several blocks.

    Threads may share a reader: `readinto_at` knows no position, and each read of those that do advances it in one step.

    - `blocks`: of a container whose `decode_ends` was called; `doubting`: that of the place, if it is one.
    """

    def __init__(
        self,
        blocks: Blocks,
        finish: Callable[[], Any] | None = None,
        name: str | None = None,
        *,
        item: str | None = None,
        meter: Meter | None = None,
        doubting: Callable[[], Any] = nullcontext,
    ) -> None:
        super().__init__(finish, name)
        self._item, self._blocks, self._meter, self._doubting = item, blocks, meter, doubting
        self._block_size, self._position, self.size = blocks.block_size, 0, blocks.size
        self._moving, self._cached = ForkLock(), dict[int, memoryview]()

    def framed(self, dtype: str, shape: tuple[int, ...]) -> Framed:
        """Find the plain tensor in what ``torch.save`` wrote; raises as `find_framed`."""
        return find_framed(self, self.size, dtype, shape)

    def values(self, budget: Budget, named: int = 0) -> Iterator[tuple[str, tuple[int, int]]]:
        """The names of all values in a stream of these, and where they begin and end; `budget` pays as for loading
        them, and more for those beyond as many as metadata has `named`. Raises PolicyError, and as `values_in`.
        """
        data = bytearray(self.size)
        self.readinto_at(0, data)
        for number, (name, begin, end, count) in enumerate(values_in(bytes(data))):
            budget.spend(NODE_BYTES * count + (number >= named) * _UNNAMED, "the stream of values")
            yield name, (begin, end)

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}
        if whence not in base:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        position = base[whence] + offset
        if position < 0:
            raise ValueError("seek to before the start of the stream")
        self._position = position
        return position

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill `buffer` from the current position, or up to the end of the stream; blocks are decoded in parallel."""
        start = end = -1
        try:
            with flat_view(buffer) as out, self._moving.here():
                start = self._position
                end = max(start, min(start + len(out), self.size))
                self._position = end
            return self.readinto_at(start, buffer)
        except BaseException:
            with self._moving.here():
                if self._position == end:  # no other thread has read on
                    self._position = start
            raise

    def readinto_at(self, position: int, buffer: Buffer, /) -> int:
        """Fill `buffer` from `position`, as `readinto`; after an error no thread writes to it, nor is a view held."""
        self._check_usable()
        with flat_view(buffer) as out:
            size = max(0, min(len(out), self.size - position))
            try:
                with self._doubting():
                    self._read(out[:size], position)
            except Exception as error:
                if isinstance(error, StreamxfError):
                    self.error = error.locate(file=self._name, item=self._item)
                _clear_frames(error)
                raise
        return size

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_usable()
        rest = max(0, self.size - self._position)
        wanted = rest if size is None or size < 0 else min(size, rest)
        parts = []
        # without a key nothing vouches for the size, so memory is taken only as blocks are found
        while wanted > 0:
            part = bytearray(min(wanted, _READ_STEP))
            count = self.readinto(part)
            parts.append(memoryview(part)[:count])
            if not count:  # another thread has read on to the end
                break
            wanted -= count
        return b"".join(parts)

    def readall(self) -> bytes:
        return self.read()

    def close(self) -> None:
        super().close()
        self._cached.clear()

    def _read(self, out: memoryview, start: int) -> None:
        if not out:
            return
        stop = start + len(out)
        first, last = start // self._block_size, (stop - 1) // self._block_size
        if first == last:
            self._copy_part(out, start, first)
            return
        self._blocks.expect((first, last + 1))
        with Pipeline[None]() as pipeline:  # which no worker outlives that writes into the caller's buffer
            for index in range(first, last + 1):
                begin = index * self._block_size
                end = begin + self._blocks.size_of(index)
                if begin < start or end > stop or index in self._cached:
                    from_, to = max(begin, start), min(end, stop)
                    self._copy_part(out[from_ - start : to - start], from_, index)
                else:
                    decode = partial(self._blocks.decoder(index), out[begin - start : end - start])
                    pipeline.submit(decode, self._block_size)
            for _ in pipeline.results():
                """Blocks are decoded into their place."""
        if self._meter is not None:
            self._meter.blocks(pipeline.peak_jobs)

    def _copy_part(self, out: memoryview, start: int, index: int) -> None:
        offset = start - index * self._block_size
        out[:] = self._block(index)[offset : offset + len(out)]

    def _block(self, index: int) -> memoryview:
        data = self._cached.get(index)
        if data is None:
            data = memoryview(bytearray(self._blocks.size_of(index)))
            self._blocks.decoder(index)(data)
            with self._moving.here():
                while len(self._cached) >= _CACHED_BLOCKS:
                    del self._cached[next(iter(self._cached))]
                self._cached[index] = data
        return data


def _clear_frames(error: BaseException | None) -> None:
    """Let go of the views of the caller's memory that an error's frames hold. While there is one, memory that was
    mapped or shared cannot be closed, and that failure would hide this one.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def read_all(blocks: Blocks, meter: Meter | None = None) -> bytes:
    if isinstance(blocks, MemoryBlocks):
        return bytes(blocks.data)
    if blocks.count > 1:
        return StreamReader(blocks, meter=meter).read()
    data = bytearray(blocks.size)
    blocks.decoder(0)(memoryview(data))
    return bytes(data)


# -- from front to back --------------------------------------------------------------------------


_CHUNK = 256 * 1024
_MAX_REST = MAX_KEY_LINE + SEAL_END_BYTES  # without digests


class PipeReader(CheckedReader):
    """Decodes a container from front to back.

    - `start`: from the header to the stream's coder, its seal checked.
    - `end`: called with the container's end and the bytes behind it; raises if they are wrong.
    """

    def __init__(
        self,
        raw: IO[bytes],
        start: Callable[[Header], StreamCoder],
        end: Callable[[End, bytes], None],
        finish: Callable[[], Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(finish, name)
        self._raw = raw
        self._check_rest = end
        self._parser = ContainerParser()
        self._scratch = Scratch()
        self._ready = memoryview(b"")
        self._seen = 0
        self._done = False
        event = self._next()
        if not isinstance(event, Header):
            raise ContainerError("the container does not begin with its header")
        self._coder = start(event)

    def readinto(self, buffer: Buffer, /) -> int:
        self._check_usable()
        out = flat_view(buffer)
        try:
            while not self._ready and not self._done and len(out):
                self._advance()
        except StreamxfError as error:
            self.error = error.locate(file=self._name)
            raise
        except BaseException:
            # a part of the bytes was consumed, so the next read would begin elsewhere
            self.error = AbortedError("reading failed before, and a pipe cannot be read again")
            raise
        size = min(len(out), len(self._ready))
        out[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _advance(self) -> None:
        block = self._next()
        assert isinstance(block, Block)  # the parser gives blocks up to the last, which is followed here by the end
        data = self._coder.decode(block.payload, block.index, block.last, self._scratch)
        self._seen += len(data)
        if block.last:
            self._check_end()
        elif len(data) != self._coder.stream.block_size:
            raise ContainerError(f"a block in the middle of the stream decodes to {len(data)} bytes", block=block.index)
        self._ready = memoryview(bytes(data))

    def _check_end(self) -> None:
        end = self._next()
        if not isinstance(end, End) or end.raw_size != self._seen:
            raise ContainerError("the footer's size contradicts the blocks")
        # digests, a seal and one byte more are enough: a source that goes on for ever must not be taken into memory
        most = (1 + end.blocks) * DIGEST_BYTES + _MAX_REST
        while len(rest := self._parser.rest) <= most and (data := self._raw.read(_CHUNK)):
            self._parser.feed(data)
        self._check_rest(end, rest)
        self._done = True

    def _next(self) -> Event:
        while (event := self._parser.next_event()) is NEED_DATA:
            data = self._raw.read(_CHUNK)
            if not data:
                self._parser.finish()
            else:
                self._parser.feed(data)
        assert not isinstance(event, type(NEED_DATA))
        return event
