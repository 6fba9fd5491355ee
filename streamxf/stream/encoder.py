"""`ContainerEncoder`: one container on its way out, from sources of bytes to blocks that are ready to be written.

It starts no thread and writes no file. `jobs` yields one call for each block, which any thread may make; its result
goes to `framed`, in order, which returns the bytes to write. Whoever owns the file does the writing: a data file of a
save; or `StreamWriter`, a file to write to, whose bytes leave as one container.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol

from typing_extensions import Buffer

from streamxf.buffers import Scratch, Writable, flat_view, scratches, write_all
from streamxf.chain import Chain, StreamCoder
from streamxf.codec import StreamInfo
from streamxf.errors import AbortedError, ChainError, CodecError, ContainerError, ParameterError
from streamxf.format.container import pack_head, pack_tail
from streamxf.format.digests import digest_of
from streamxf.format.header import Header, Identity, Kind
from streamxf.format.limits import DEFAULT_BLOCK_LOG2, MAX_RAW_SIZE, SALT_BYTES
from streamxf.lazy import numpy as np
from streamxf.pipeline import Pipeline
from streamxf.report import Meter

MIN_ROW = 64  # elements
_INPUT = -1  # a block's place in its scratch memory before it is encoded; the steps of a chain count from 0
# Bytes; many encoded blocks of less may wait for their turn, and each would hold scratch memory of the size of a block.
_SMALL = 64 * 1024


class ByteSource(Protocol):
    size: int

    def load(self, start: int, stop: int) -> Load:
        """Begin to load a range; called in the order of the ranges, in one thread."""


@dataclass(slots=True)
class Load:
    """A range of a source that is on its way.

    - `take`: gives the bytes, in memory that stays as it is until `release`, or in what ``scratch(size)`` gives. Called
      once, by any thread.
    - `release`: says that their memory may be used for something else; called once after `take`, even if that raised.
    """

    take: Callable[[Callable[[int], memoryview]], memoryview]
    release: Callable[[], object] | None = None

    @classmethod
    def of(cls, data: memoryview) -> Load:
        """Bytes in memory that stays as it is."""
        return cls(lambda scratch: data)


class MemorySource:
    """Bytes in memory that stays as it is until the container is complete."""

    def __init__(self, data: memoryview) -> None:
        self.size = len(data)
        self.data = data

    def load(self, start: int, stop: int) -> Load:
        return Load.of(self.data[start:stop])


Lower = Any  # the blocks of the container beneath one of differences: a `Beneath`


@dataclass(slots=True)
class Encoded:
    index: int
    last: bool
    head: bytes
    payload: memoryview
    digest: bytes | None
    scratch: Scratch | None
    tag: bytes = field(default=b"", repr=False)

    def release(self) -> None:
        if self.scratch is not None:
            scratches.give(self.scratch)


class ContainerEncoder:
    """One container on its way out.

    - `chain`: renewed already, where it should be.
    - `transforms`: descriptors of stream transforms that the data passed before it came here.
    - `signed`: whether to take the SHA-256 of each block, which a signature needs.
    - `mark`: gives a tag of each block before it is coded, which `tags` then has, in order.
    - `beneath`: what the blocks are stored as differences from, where that pays; needs `mark`.
    - `raw_size`, `stored_size`: bytes of the blocks that were handed out so far, and bytes that were framed so far.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        transforms: tuple[str, ...] = (),
        identity: Identity | None = None,
        published: bool = False,
        signed: bool = False,
        mark: Callable[[memoryview], bytes] | None = None,
        beneath: Lower | None = None,
        block_log2: int = DEFAULT_BLOCK_LOG2,
        meter: Meter | None = None,
    ) -> None:
        if chain.raw:
            raise ChainError("raw is for tensors of checkpoints: here, take codecs, or none")
        base = b"" if beneath is None else beneath.digest
        about = os.urandom(SALT_BYTES), identity, published
        header = Header(block_log2, transforms + chain.bound, *about, base=base)
        self.block_size = 1 << block_log2
        info = StreamInfo(self.block_size, header.salt, header.digest, *encoding_facts(identity))
        self._coder = StreamCoder(chain, info, meter=meter)
        self._header = header
        self._lengths: list[int] = []
        self._signed, self._mark, self.beneath = signed, mark, beneath
        self.tags = bytearray()
        self._digests: list[bytes] = []
        self._tail = b""
        self.raw_size = 0
        self.stored_size = 0

    @property
    def digests(self) -> bytes:
        """Once all was framed, that of header, table and footer; if it is signed those of blocks and all beneath."""
        lower = b"" if self.beneath is None else self.beneath.digests
        return b"".join([digest_of(self._header.pack(self._coder.seal), self._tail), *self._digests, lower])

    @property
    def header_digest(self) -> bytes:
        """H."""
        return self._header.digest

    def jobs(self, source: ByteSource) -> Iterator[tuple[Callable[[], Encoded], int]]:
        size = self.block_size
        for start in range(0, source.size or 1, size):
            stop = min(start + size, source.size)
            yield self.job(source.load(start, stop), stop - start, stop == source.size), stop - start

    def job(self, load: Load, size: int, last: bool) -> Callable[[], Encoded]:
        """The call that encodes the next block; raises ContainerError if the container is full."""
        index = self.raw_size // self.block_size  # all but the last are full
        if self.raw_size + size > MAX_RAW_SIZE:
            raise ContainerError("the stream has more bytes than a container may hold")
        self.raw_size += size
        return partial(_encode, self._coder, load, index, last, self._signed, self._mark, self.beneath)

    def framed(self, block: Encoded) -> list[bytes | memoryview]:
        """The bytes that have to be written for a block; called in the order of the blocks."""
        start = block.head if block.index else self._header.pack(self._coder.seal) + block.head
        self.stored_size += len(start) + len(block.payload)
        self._lengths.append(len(block.payload))
        if block.digest is not None:
            self._digests.append(block.digest)
        self.tags += block.tag
        parts: list[bytes | memoryview] = [start, block.payload]
        if block.last:
            self._tail = pack_tail(self._header.digest, self._lengths, self.raw_size)
            self.stored_size += len(self._tail)
            parts.append(self._tail)
        return parts if len(block.payload) >= _SMALL else [b"".join(parts)]


# No method: a job must not hold its encoder, or one that is dropped would not go before its blocks are encoded.
def _encode(
    coder: StreamCoder, load: Load, index: int, last: bool, signed: bool, mark: Any, lower: Lower | None
) -> Encoded:
    scratch = scratches.take()
    try:
        data, tag = load.take(partial(scratch.take, _INPUT)), b""
        if mark is not None:
            if load.release is None:  # the caller's memory: what has the tag is what is coded, whoever writes there
                own = scratch.take(_INPUT, len(data))
                own[:] = data
                data = own
            tag = mark(data)
        beneath = None if lower is None else lower.take(index, tag, data, scratch)
        payload = coder.encode(data, index, last, scratch, None if beneath is None else lambda: beneath)
        if lower is not None:
            lower.give(index, tag, data, beneath)
        if not (payload or (last and not index)):
            raise CodecError("the chain makes no bytes of a block, and a stored block has at least one", block=index)
        head = pack_head(coder.stream.header_digest, index, last, payload)
        digest = digest_of(head, payload) if signed else None
        if len(payload) < _SMALL:
            payload = memoryview(bytes(payload))
            scratches.give(scratch)
            return Encoded(index, last, head, payload, digest, None, tag)
        if load.release is not None and _share(payload, data):
            out = scratch.take(_INPUT, len(payload))
            out[:] = payload
            payload = out
        return Encoded(index, last, head, payload, digest, scratch, tag)
    finally:
        if load.release is not None:
            load.release()


def _share(one: memoryview, other: memoryview) -> bool:
    return np.may_share_memory(np.frombuffer(one, "u1"), np.frombuffer(other, "u1"))


def block_log2_of(block_size: int) -> int:
    log2 = block_size.bit_length() - 1 if type(block_size) is int else 0
    if not 16 <= log2 <= 24 or block_size != 1 << log2:
        raise ParameterError(
            f"block_size={block_size!r}: it must be a power of two from {1 << 16} (64 KiB) to {1 << 24} (16 MiB)"
        )
    return log2


def encoding_facts(identity: Identity | None) -> tuple[str | None, str | None, int | None]:
    """Name, dtype and length of a row, as codecs are told them of a stream that is encoded."""
    return (
        (identity.name, identity.dtype or None, _row_length(identity)) if identity is not None else (None, None, None)
    )


def _row_length(identity: Identity) -> int | None:
    """Elements in a row of a matrix; of kernels or a stack of matrices, in a row that is worth the name."""
    if identity.kind is not Kind.TENSOR or len(identity.shape) < 2 or identity.dtype.startswith("complex"):
        return None
    row = 1
    for length in reversed(identity.shape[1:]):
        row *= length
        if row >= MIN_ROW:
            break
    return row


class StreamWriter(io.BufferedIOBase):
    """Encodes written bytes, block by block and in parallel, into one container. As with gzip's and lzma's files,
    `tell` counts what was written; there is no `fileno`, through which others would write past the chain.

    Only an explicit `close` (or leaving a ``with`` block without an exception) finishes the container. A stream that is
    dropped, failed, or crossed a fork is never finished: a truncated stream with a valid end would pass for whole.

    - `seal`: returns the bytes to write after the container, once that is complete.
    - `finish`: called once when the stream ends, with whether it was closed, in the process that opened the stream.
    """

    mode = "wb"  # and no `name`: beside a file that has one, Keras writes the weights past the chain

    def __init__(
        self,
        raw: Writable,
        encoder: ContainerEncoder,
        *,
        seal: Callable[[], bytes] | None = None,
        finish: Callable[[bool], Any] | None = None,
        meter: Meter | None = None,
    ) -> None:
        super().__init__()
        self._raw = raw
        self.encoder = encoder
        self._seal = seal
        self._on_finish = finish
        self._meter = meter
        self._pipeline: Pipeline[Encoded] = Pipeline()
        self._rest = bytearray()  # never more than a block: the last block is known only when the stream ends
        self._taken = 0
        self._pid = os.getpid()
        self._state = "open"

    def writable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> NoReturn:
        raise io.UnsupportedOperation("the stream was opened for writing")

    read1 = peek = read

    def tell(self) -> int:
        self._check_usable()
        return self._taken

    def write(self, data: Buffer, /) -> int:
        """Encode `data`; all of it is taken, and its memory may change as soon as the call returns."""
        self._check_usable()
        view = flat_view(data)
        self._guard(partial(self._feed, view))
        self._taken += len(view)
        return len(view)

    def _feed(self, view: memoryview) -> None:
        size = self.encoder.block_size
        position = 0
        submitted = False
        while len(self._rest) + len(view) - position > size:
            if self._rest:
                step = size - len(self._rest)
                self._rest += view[position : position + step]
                block, self._rest = memoryview(self._rest), bytearray()
            else:
                step = size
                block = view[position : position + step]
                submitted = True
            position += step
            self._submit(block, last=False)
        if submitted:  # the caller's own memory is in use
            self._write(self._pipeline.results())
        self._rest += view[position:]

    def _submit(self, block: memoryview, *, last: bool) -> None:
        job = self.encoder.job(Load.of(block), len(block), last)
        self._write(self._pipeline.submit(job, len(block)))

    def _write(self, blocks: Iterable[Encoded]) -> None:
        for block in blocks:
            for part in self.encoder.framed(block):
                write_all(self._raw, part)
            block.release()

    def close(self) -> None:
        """Finish the container. Raises AbortedError if the stream failed, was aborted, or is another process's."""
        if self._state == "closed":
            return
        self._check_usable()
        self._guard(self._finish)
        self._end("closed")

    def _finish(self) -> None:
        self._submit(memoryview(self._rest), last=True)
        self._write(self._pipeline.results())
        if self._seal is not None:
            write_all(self._raw, self._seal())
        if self._meter is not None:
            self._meter.blocks(self._pipeline.peak_jobs)

    def abort(self) -> None:
        """Give the stream up: the written bytes have no end, so no reader takes them for a complete stream."""
        if self._state == "open":
            try:
                self._pipeline.cancel()
            finally:
                self._end("aborted")

    def _end(self, state: str) -> None:
        self._state = state
        self._rest = bytearray()
        on_finish, self._on_finish = self._on_finish, None
        # a forked child only drops its copy: the draft on disk is still being written by the parent
        if on_finish is not None and self._pid == os.getpid():
            on_finish(state == "closed")

    @property
    def closed(self) -> bool:
        return self._state != "open"

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        # io.IOBase would close, which means finish
        if getattr(self, "_state", "closed") == "open":
            if self._pid == os.getpid() and (self._rest or self.encoder.raw_size):
                warnings.warn("a stream was dropped without close(), so the written bytes are lost", ResourceWarning, 2)
            self._pipeline.abandon()
            self._end("aborted")

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise AbortedError("this stream was opened before a fork and cannot be used in the child process")
        if self._state == "aborted":
            raise AbortedError("the stream failed or was aborted; it cannot be continued")
        if self._state == "closed":
            raise ValueError("I/O operation on a closed stream")

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException:
            self.abort()
            raise
