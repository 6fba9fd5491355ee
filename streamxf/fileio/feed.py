"""Feeds: bytes of files, and what containers decode to, as sources for a `Ring`; workers read and decode them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from streamxf.errors import located
from streamxf.fileio.blocks import BlockReader
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.ring import Buffer
from streamxf.fileio.source import FileSlice


class FileFeed:
    """Bytes of a file as they are.

    Parameters
    ----------
    slice : FileSlice
    file, item : str, optional
        For errors.
    """

    def __init__(self, slice: FileSlice, *, file: str | None = None, item: str | None = None) -> None:
        self.size = slice.length
        self._slice = slice
        self._place = {"file": file, "item": item}

    def copy(self, start: int, count: int, target: Buffer, at: int) -> Callable[[], None]:
        read = partial(self._read, start, target.memory[at : at + count])
        return _later(read, self._slice.parallel)

    def _read(self, start: int, out: memoryview) -> None:
        with located(**self._place):
            self._slice.read_into(start, out)


class BlockFeed:
    """What a container decodes to.

    Parameters
    ----------
    blocks : BlockReader
    file, item : str, optional
        For errors.

    Raises
    ------
    StreamxfError
        If the only block of an empty stream is not as it was stored.
    """

    def __init__(self, blocks: BlockReader, *, file: str | None = None, item: str | None = None) -> None:
        self.size = blocks.size
        self._blocks = blocks
        self._stream: StreamReader | None = None
        self._place = {"file": file, "item": item}
        if not blocks.size:  # nobody would ever look at it
            blocks.decode(0, memoryview(b""))

    def copy(self, start: int, count: int, target: Buffer, at: int) -> Callable[[], None]:
        out = target.memory[at : at + count]
        blocks = self._blocks
        with located(**self._place):
            if start % blocks.block_size == 0 and count == blocks.size_of(start // blocks.block_size):
                return partial(self._decode, blocks.decoder(start // blocks.block_size), out)
            if self._stream is None:
                self._stream = StreamReader(blocks)
            return _later(partial(self._read, self._stream, start, out), blocks.parallel)

    def _decode(self, decode: Callable[[memoryview], None], out: memoryview) -> None:
        with located(**self._place):
            decode(out)

    def _read(self, stream: StreamReader, start: int, out: memoryview) -> None:
        with located(**self._place):
            stream.readinto_at(start, out)


def _later(call: Callable[[], None], parallel: bool) -> Callable[[], None]:
    """The call itself, for a worker. Where several threads cannot read at the same time, it is made here: files that
    fetch what lies ahead are best read in order.
    """
    if parallel:
        return call
    call()
    return _done


def _done() -> None:
    """It was read already."""
