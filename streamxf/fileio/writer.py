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
from streamxf.errors import AbortedError, ContainerError
from streamxf.fileio.gather import Gather, Pieces, give_back, join, keep
from streamxf.fileio.outlet import Outlet
from streamxf.fileio.ring import Loan, Ring, Source
from streamxf.meter import Meter

_scratch = ScratchPool(keep=16)

# Bytes; a last block below this is encoded on the spot: a worker would spend longer on waking up than on the block.
ON_THE_SPOT = 64 * 1024


class _Encoded(NamedTuple):
    number: int
    last: bool
    head: bytes
    payload: memoryview
    scratch: Scratch | None


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
    row : int, optional
        How many elements a row of the item has, if it is a matrix.
    block_log2 : int
        Blocks hold ``2**block_log2`` bytes; 16 to 24.
    finish : callable, optional
        Called when the stream ends, with whether it was closed; `close` and `abort` call it once, and only in the
        process that opened the stream.
    outlet : Outlet, optional
        Shared with other streams that write to `raw`. Then `close` does not wait: the container is complete when the
        outlet has finished, and the streams' containers stand in the order in which they were closed. One stream at a
        time may be open, and one that is given up spoils the outlet.
    stored : callable, optional
        Called when all of the container was written to `raw`, with the bytes that went into it and its own size.
    meter : Meter, optional
        Is told what the codecs took.
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
        row: int | None = None,
        block_log2: int = DEFAULT_BLOCK_LOG2,
        finish: Callable[[bool], Any] | None = None,
        outlet: Outlet | None = None,
        stored: Callable[[int, int], Any] | None = None,
        meter: Meter | None = None,
    ) -> None:
        super().__init__()
        header = Header(block_log2, foreign + chain.bound, os.urandom(SALT_BYTES), identity, published)
        item = identity.name if identity is not None else None
        self._coder = StreamCoder(
            chain, StreamInfo(header.block_size, header.salt, header.digest, item, dtype, row), meter=meter
        )
        self._header = header.sealed(self._coder.seal)
        self._raw = raw
        self._on_finish = finish
        self._on_stored = stored
        self._block_size = header.block_size
        self._pid = os.getpid()
        self._gather = Gather()  # never more than a block: the last block is known only when the stream ends
        self._raw_size = 0
        self._submitted = 0
        self._stored = 0
        self._ends: list[int] = []
        self._shared = outlet is not None
        self._outlet = outlet if outlet is not None else Outlet(meter)
        self._outlet.opened()
        self._state = "open"

    # -- writing -----------------------------------------------------------------------------------

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> NoReturn:
        raise io.UnsupportedOperation("the stream was opened for writing")

    def write(self, data: Buffer, /) -> int:
        """Encode `data`; all of it is taken, and its memory may change as soon as the call returns."""
        self._check_usable()
        view = flat_view(data)
        self._guard(partial(self._feed, view, False))
        return len(view)

    def write_owned(self, data: Buffer) -> int:
        """Encode `data`, whose memory stays as it is until the container is complete.

        This spares a copy, and a wait at the end of each call.
        """
        self._check_usable()
        view = flat_view(data)
        self._guard(partial(self._feed, view, True))
        return len(view)

    def _feed(self, view: memoryview, owned: bool) -> None:
        size = self._block_size
        gather = self._gather
        before = self._submitted
        position = 0
        while gather.size + len(view) - position > size:
            step = size - gather.size
            # until the end of this call it is the caller's own, in any case
            if step:  # an empty piece beside a whole block would have it copied
                gather.add(view[position : position + step], True)
                position += step
            self._submit(gather.take())
        if self._submitted > before and not owned:
            self._outlet.settle()
        gather.add(view[position:], owned)
        self._raw_size += len(view)

    def write_copied(self, source: Source, ring: Ring, *, few: bool = False) -> int:
        """Encode what `source` has, which is copied block by block into buffers of `ring`.

        Copies and codecs run at the same time; a buffer is filled again when its block was encoded.

        Parameters
        ----------
        source : Source
        ring : Ring
            Its buffers have at least the size of a block, and there are two or more.
        few : bool
            Whether to hold no more blocks than keep the workers busy, encoded ones among them.
        """
        self._check_usable()
        self._guard(partial(self._feed_copied, source, ring, few))
        return source.size

    def _feed_copied(self, source: Source, ring: Ring, few: bool) -> None:
        position = 0
        while position < source.size:
            if self._gather.size == self._block_size:
                if few:
                    self._outlet.narrow()
                self._submit(self._gather.take())
            buffer = ring.take()
            filled = self._gather.move_to(buffer.memory)  # so that the block is in one piece
            count = min(self._block_size - filled, source.size - position)
            wait = source.copy(position, count, buffer, filled)
            position += count
            self._raw_size += count
            self._gather.borrow(Loan(ring, buffer, filled + count, wait))

    def _submit(self, pieces: Pieces) -> None:
        if self._submitted >= MAX_BLOCKS - 1:
            raise ContainerError("the stream has more blocks than a container may hold; use larger blocks")
        index, self._submitted = self._submitted, self._submitted + 1
        self._outlet.submit(partial(_encode, self._coder, pieces, index, False), self._block_size, self._store)

    def _store(self, encoded: _Encoded) -> None:
        index, last, head, payload, scratch = encoded
        start = head if index else self._header.pack() + head
        self._ends.append(self._stored + len(start) + len(payload))
        end = pack_tail(self._header.digest, self._ends, self._raw_size) if last else b""
        parts: list[Buffer] = [start, payload, end]
        for part in parts if len(payload) >= ON_THE_SPOT else [b"".join(parts)]:
            self._stored += write_all(self._raw, part)
        if scratch is not None:
            _scratch.give(scratch)
        if last and self._on_stored is not None:
            self._on_stored(self._raw_size, self._stored)

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
        size = self._gather.size
        encode = partial(_encode, self._coder, self._gather.take(), self._submitted, True)
        if self._shared and size > ON_THE_SPOT:
            self._outlet.submit(encode, size, self._store)
        else:  # this thread would only wait otherwise
            self._outlet.put(encode(), size, self._store)
        self._outlet.closed()
        if not self._shared:
            self._outlet.finish()

    def abort(self) -> None:
        """Give the stream up: nothing more is written, and what was written has no end, so no reader takes it for
        whole.
        """
        if self._state == "open":
            try:
                self._outlet.cancel()
            finally:
                self._end("aborted")

    def _end(self, state: str) -> None:
        self._state = state
        self._gather.clear()
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
            self._outlet.abandon()
            self._end("aborted")

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


# No method: a job must not hold its stream, or one that is dropped would not go before its blocks are encoded.
def _encode(coder: StreamCoder, pieces: Pieces, index: int, last: bool) -> _Encoded:
    scratch = _scratch.take()
    try:
        payload = coder.encode(join(pieces, scratch), index, last, scratch)
        head = pack_head(coder.stream.header_digest, index, last, payload)
        payload = keep(payload, pieces, scratch)
    finally:
        give_back(pieces)
    if len(payload) < ON_THE_SPOT:
        # many small ones may wait for their turn, and each would hold scratch memory of the size of a block
        small = memoryview(bytes(payload))
        _scratch.give(scratch)
        return _Encoded(index, last, head, small, None)
    return _Encoded(index, last, head, payload, scratch)
