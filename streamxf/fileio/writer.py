"""`StreamWriter`: a file to write to, whose bytes leave as one container."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn

from typing_extensions import Buffer

from streamxf.buffers import Scratch, ScratchPool, Writable, flat_view, write_all
from streamxf.chain import Chain
from streamxf.codec import StreamInfo
from streamxf.coder import StreamCoder
from streamxf.container.blocks import pack_head
from streamxf.container.footer import pack_tail
from streamxf.container.header import Header, Identity
from streamxf.container.limits import DEFAULT_BLOCK_LOG2, MAX_BLOCKS, SALT_BYTES
from streamxf.engine import Pipeline
from streamxf.errors import AbortedError, ContainerError

_scratch = ScratchPool(keep=16)


class _Encoded(NamedTuple):
    head: bytes
    payload: memoryview
    scratch: Scratch


class StreamWriter(io.RawIOBase):
    """Encodes what is written to it, block by block and in parallel, into one container.

    Only an explicit `close` (or leaving a ``with`` block without an exception) finishes the container. A stream that is
    dropped, that failed, or that crossed a fork is never finished: a truncated stream with a valid end would pass for a
    whole one.

    Parameters
    ----------
    raw : writable
        Where the container goes, from its current position.
    chain : Chain
        Renewed already, where it should be.
    foreign : tuple of str
        Descriptors of stream transforms that the data passed before it came here; they are recorded in the header.
    identity : Identity, optional
        Binds the stream to its item.
    published : bool
        Set by streamxf's own DCP writer.
    dtype : str, optional
        The name of the item's dtype, for codecs that care.
    block_log2 : int
        Blocks hold ``2**block_log2`` bytes; 16 to 24.
    finish : callable, optional
        Called after the container is complete, with whether it is; `close` and `abort` call it once, and only in the
        process that opened the stream.
    """

    def __init__(
        self,
        raw: Writable,
        chain: Chain,
        *,
        foreign: tuple[str, ...] = (),
        identity: Identity | None = None,
        published: bool = False,
        dtype: str | None = None,
        block_log2: int = DEFAULT_BLOCK_LOG2,
        finish: Callable[[bool], Any] | None = None,
    ) -> None:
        super().__init__()
        header = Header(block_log2, foreign + chain.bound, os.urandom(SALT_BYTES), identity, published)
        item = identity.name if identity is not None else None
        self._coder = StreamCoder(chain, StreamInfo(header.block_size, header.salt, header.digest, item, dtype))
        self._header = header.sealed(self._coder.seal)
        self._raw = raw
        self._on_finish = finish
        self._block_size = header.block_size
        self._pid = os.getpid()
        self._pending = bytearray()  # never more than a block: the last block is known only when the stream ends
        self._raw_size = 0
        self._submitted = 0
        self._stored = 0
        self._ends: list[int] = []
        self._pipeline: Pipeline[_Encoded] | None = None
        self._state = "open"
        self._started = False

    # -- writing -----------------------------------------------------------------------------------

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> NoReturn:
        raise io.UnsupportedOperation("the stream was opened for writing")

    def write(self, data: Buffer, /) -> int:
        """Encode `data`; all of it is taken, and its memory may change as soon as the call returns."""
        size = self.write_owned(data)
        if self._pipeline is not None and size > self._block_size:
            self._guard(self._pipeline.settle)
        return size

    def write_owned(self, data: Buffer) -> int:
        """Encode `data`, whose memory stays as it is until the stream is closed.

        This spares a wait at the end of each call.
        """
        self._check_usable()
        view = flat_view(data)
        if len(self._pending) + len(view) <= self._block_size:
            self._raw_size += len(view)
            self._pending += view
        else:
            self._guard(partial(self._feed, view))
        return len(view)

    def _feed(self, view: memoryview) -> None:
        size = self._block_size
        self._raw_size += len(view)
        position = 0
        if self._pending:
            position = min(size - len(self._pending), len(view))
            self._pending += view[:position]
            if position < len(view):
                full, self._pending = self._pending, bytearray()
                self._submit(memoryview(full))
        while len(view) - position > size:
            self._submit(view[position : position + size])
            position += size
        self._pending += view[position:]

    def _submit(self, block: memoryview) -> None:
        if self._submitted >= MAX_BLOCKS - 1:
            raise ContainerError("the stream has more blocks than a container may hold; use larger blocks")
        if self._pipeline is None:
            self._pipeline = Pipeline(self._store)
        job = partial(_encode, self._coder, block, self._submitted, False)
        self._submitted += 1
        self._pipeline.submit(job, self._block_size)

    def _store(self, encoded: _Encoded) -> None:
        start = b"" if self._started else self._header.pack()
        self._started = True
        self._stored += write_all(self._raw, start + encoded.head)
        self._stored += write_all(self._raw, encoded.payload)
        self._ends.append(self._stored)
        _scratch.give(encoded.scratch)

    # -- ending ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the container: encode what is left, write index and footer.

        Raises
        ------
        AbortedError
            If the stream failed or was aborted before, or was opened in another process.
        """
        if self._state == "closed":
            return
        self._check_usable()
        self._guard(self._finish)
        self._end("closed")

    def _finish(self) -> None:
        if self._pipeline is not None:
            self._pipeline.settle()
        last = _encode(self._coder, memoryview(self._pending), self._submitted, True)
        self._store(last)
        self._stored += write_all(self._raw, pack_tail(self._header.digest, self._ends, self._raw_size))

    def abort(self) -> None:
        """Give the stream up: nothing more is written, and what was written has no end, so no reader takes it for
        whole.
        """
        if self._state == "open":
            self._end("aborted")

    def _end(self, state: str) -> None:
        self._state = state
        if self._pipeline is not None:
            self._pipeline.cancel()
        self._pending = bytearray()
        on_finish, self._on_finish = self._on_finish, None
        # a forked child only drops its copy: the draft on disk is still being written by the parent
        if on_finish is not None and self._pid == os.getpid():
            on_finish(state == "closed")

    @property
    def closed(self) -> bool:
        return self._state != "open"

    @property
    def aborted(self) -> bool:
        """Whether the stream ended without being finished."""
        return self._state == "aborted"

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        # io.IOBase would close, which means finish
        if getattr(self, "_state", "closed") == "open":
            if self._pid == os.getpid() and self._raw_size:
                warnings.warn("a stream was dropped without close(), so what was written is lost", ResourceWarning, 2)
            if self._pipeline is not None:
                self._pipeline.abandon()
            self.abort()

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise AbortedError("this stream was opened before a fork and cannot be used in the child process")
        if self._state == "aborted":
            raise AbortedError("the stream failed or was aborted; it cannot be continued")
        if self._state == "closed":
            raise ValueError("write to a closed stream")

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException:
            self.abort()
            raise


def _encode(coder: StreamCoder, block: memoryview, index: int, last: bool) -> _Encoded:
    scratch = _scratch.take()
    payload = coder.encode(block, index, last, scratch)
    return _Encoded(pack_head(coder.stream.header_digest, index, last, payload), payload, scratch)
