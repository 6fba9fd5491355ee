"""`PipeReader`: the stream of a container that arrives in order and cannot be sought, such as a pipe or a socket.

Blocks are decoded as they arrive, and the last one is held back until table, footer and the end of the source have
checked out: until then the stream may be incomplete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

from typing_extensions import Buffer

from streamxf.buffers import Scratch, flat_view
from streamxf.chain import StreamCoder
from streamxf.errors import AbortedError, ContainerError, StreamxfError
from streamxf.format.container import NEED_DATA, Block, ContainerParser, End, Event
from streamxf.format.header import Header
from streamxf.format.limits import MAX_KEY_LINE
from streamxf.format.plain import SEAL_END_BYTES
from streamxf.stream.reader import CheckedReader

_CHUNK = 256 * 1024
_MAX_REST = MAX_KEY_LINE + SEAL_END_BYTES


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
        # a seal and one byte more are enough: a source that goes on for ever must not be taken into memory
        while len(rest := self._parser.rest) <= _MAX_REST and (data := self._raw.read(_CHUNK)):
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
