"""`Coverage`: what of a data file was read for the digest over all of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import crc32c

from streamxf.buffers import ScratchPool
from streamxf.dcp.verify.container import Then
from streamxf.dcp.verify.datafile import DataFile
from streamxf.dcp.verify.digest import Digest
from streamxf.engine import Pipeline
from streamxf.errors import ContainerError, StreamxfError

Fail = Callable[[Exception], None]

_STEP = 2**20
_READ_HERE = 64 * 1024  # bytes that are read sooner than a worker is told to
_scratch = ScratchPool(keep=16)


class Coverage:
    """A file's digest, and reads of what nobody else reads.

    Parameters
    ----------
    file : DataFile
    pipeline : Pipeline
        Its sink makes the calls that it gets.

    Attributes
    ----------
    digest : Digest
        Of what was read so far.
    """

    def __init__(self, file: DataFile, pipeline: Pipeline[Then]) -> None:
        self._file = file
        self._pipeline = pipeline
        self.digest = Digest()

    def read(self, start: int, stop: int, fail: Fail) -> None:
        """Read what stands from `start` to `stop`, in workers where several threads can read; `fail` is told of errors
        in the thread that collects.
        """
        for at in range(start, stop, _STEP):
            size = min(_STEP, stop - at)
            if self._file.parallel and size > _READ_HERE:
                self._pipeline.submit(partial(self._piece, at, size, fail), size)
            else:
                self._piece(at, size, fail)()

    def finish(self, fail: Fail) -> str | None:
        """Read what is missing; the digest of the whole file, as a manifest has it, or None where that cannot be."""
        size = self._file.size
        for start, stop in self.digest.gaps(size):
            self.read(start, stop, fail)
        self._pipeline.settle()
        return self.digest.text(size)

    def _piece(self, at: int, size: int, fail: Fail) -> Then:
        scratch = _scratch.take()
        piece = scratch.take(0, size)
        try:
            if self._file.read_into(at, piece) < size:
                raise ContainerError("the file ends before it should: it was cut while it was read")
        except (StreamxfError, OSError) as error:
            return partial(fail, error)
        crc = crc32c.crc32c(piece)
        _scratch.give(scratch)
        return partial(self.digest.add, at, size, crc)
