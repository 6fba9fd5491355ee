"""`StreamWriter`: a file to write to, whose bytes leave as one container."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

from typing_extensions import Buffer

from streamxf.buffers import Writable, flat_view, write_all
from streamxf.engine import Pipeline
from streamxf.errors import AbortedError
from streamxf.report import Meter
from streamxf.stream.encoder import ContainerEncoder, Encoded, Load


class StreamWriter(io.RawIOBase):
    """Encodes written bytes, block by block and in parallel, into one container.

    Only an explicit `close` (or leaving a ``with`` block without an exception) finishes the container. A stream that is
    dropped, failed, or crossed a fork is never finished: a truncated stream with a valid end would pass for a complete
    one.

    - `seal`: returns the bytes to write after the container, once that is complete.
    - `finish`: called once when the stream ends, with whether it was closed, in the process that opened the stream.
    """

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
        self._encoder = encoder
        self._seal = seal
        self._on_finish = finish
        self._meter = meter
        self._pipeline: Pipeline[Encoded] = Pipeline()
        self._rest = bytearray()  # never more than a block: the last block is known only when the stream ends
        self._pid = os.getpid()
        self._state = "open"

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> NoReturn:
        raise io.UnsupportedOperation("the stream was opened for writing")

    def write(self, data: Buffer, /) -> int:
        """Encode `data`; all of it is taken, and its memory may change as soon as the call returns."""
        self._check_usable()
        view = flat_view(data)
        self._guard(partial(self._feed, view))
        return len(view)

    def _feed(self, view: memoryview) -> None:
        size = self._encoder.block_size
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
        job = self._encoder.job(Load.of(block), len(block), last)
        self._write(self._pipeline.submit(job, len(block)))

    def _write(self, blocks: Iterable[Encoded]) -> None:
        for block in blocks:
            for part in self._encoder.framed(block):
                write_all(self._raw, part)
            block.release()

    def close(self) -> None:
        """Finish the container. Raises AbortedError if the stream failed or was aborted before, or was opened in
        another process.
        """
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
            if self._pid == os.getpid() and (self._rest or self._encoder.raw_size):
                warnings.warn("a stream was dropped without close(), so the written bytes are lost", ResourceWarning, 2)
            self._pipeline.abandon()
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
