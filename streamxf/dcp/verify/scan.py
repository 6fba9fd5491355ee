"""Containers in a file of which no metadata tells what is in it: they say so themselves.

Nothing in such a file is vouched for, so the time that a look at it takes is bounded by its size: each byte is searched
once, and what block heads lead to is followed in vain only so often.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.distributed.checkpoint.filesystem import _StorageInfo

from streamxf.coder import stage_limit
from streamxf.container.blocks import parse_head
from streamxf.container.header import Header, header_size
from streamxf.container.limits import (
    BLOCK_HEAD_BYTES,
    FOOTER_BYTES,
    HEADER_FIXED_BYTES,
    MAGIC,
    MAX_HEADER,
    VERSION,
)
from streamxf.dcp.verify.datafile import DataFile
from streamxf.dcp.verify.metadata import Entry
from streamxf.dcp.verify.report import Findings
from streamxf.errors import ContainerError
from streamxf.fileio.source import FileSlice

_BEGIN = MAGIC + bytes([VERSION])
_WINDOW = 2**20
_IN_VAIN = 1000  # block heads that may be followed to no end, and one more for each 8 KiB of the file
_IN_VAIN_BYTES = 2**13


def find_entries(file: DataFile, findings: Findings) -> Iterator[Entry]:
    """The containers of a file, in their order; what lies between them is recorded as damage."""
    return _Scan(file, findings).entries()


class _Scan:
    def __init__(self, file: DataFile, findings: Findings) -> None:
        self._file = file
        self._findings = findings
        self._window = b""
        self._window_at = 0
        self._in_vain = _IN_VAIN + file.size // _IN_VAIN_BYTES

    def entries(self) -> Iterator[Entry]:
        at = 0
        while at < self._file.size:
            header = self._header_at(at)
            if isinstance(header, ContainerError):
                stop = self._next_header(at + 1)
                self._note_gap(at, stop, header)
                at = stop
                continue
            length = self._length(at, header) or self._next_header(at + header.size) - at
            yield _entry(self._file.name, at, length, header)
            at += length

    def _note_gap(self, start: int, stop: int, error: ContainerError) -> None:
        name = self._file.name
        if start == 0 and stop == self._file.size:
            self._findings.not_checked(
                f"the content of {name}, which has no containers, so that without metadata nothing tells what it holds"
            )
        else:
            self._findings.damage(ContainerError(f"bytes {start} to {stop} are no container: {error.message}"), name)

    def _header_at(self, at: int) -> Header | ContainerError:
        """The header that stands at a place, or why there is none."""
        try:
            return Header.parse(self._bytes(at, header_size(self._bytes(at, HEADER_FIXED_BYTES))))
        except ContainerError as error:
            return error

    def _next_header(self, start: int) -> int:
        """Where the next header stands; the file's end if there is none."""
        while start < self._file.size:
            self._fill(start)
            end = len(self._window) - MAX_HEADER if self._window_end < self._file.size else len(self._window)
            at = self._window.find(_BEGIN, start - self._window_at)
            while 0 <= at < end:
                if isinstance(self._header_at(self._window_at + at), Header):
                    return self._window_at + at
                at = self._window.find(_BEGIN, at + 1)
            start = self._window_at + end
        return self._file.size

    def _length(self, start: int, header: Header) -> int | None:
        """Bytes of the container at `start`, by the heads of its blocks; None if these lead astray."""
        source = FileSlice(self._file, start, self._file.size - start)
        limit = stage_limit(header.block_size)
        at, count, last = header.size, 0, False
        try:
            while not last and count < self._in_vain:
                head = parse_head(source.read_at(at, BLOCK_HEAD_BYTES), count, limit)
                if not (head.last or head.stored_size):  # zeros are no heads, and there may be gigabytes of them
                    break
                at += BLOCK_HEAD_BYTES + head.stored_size
                count, last = count + 1, head.last
        except ContainerError:
            last = False
        length = at + 8 * count + FOOTER_BYTES
        if last and length <= source.length:
            return length
        self._in_vain = max(0, self._in_vain - count)
        return None

    # -- what was read last ------------------------------------------------------------------------

    @property
    def _window_end(self) -> int:
        return self._window_at + len(self._window)

    def _bytes(self, at: int, size: int) -> bytes:
        """`size` bytes from `at`, or what there is up to the file's end."""
        stop = min(at + size, self._file.size)
        if at < self._window_at or stop > self._window_end:
            return self._read(at, stop)
        return self._window[at - self._window_at : stop - self._window_at]

    def _fill(self, at: int) -> None:
        """Have a window from `at` on, which ends with the file or holds any header that begins in most of it."""
        if at < self._window_at or min(at + 2 * MAX_HEADER, self._file.size) > self._window_end:
            self._window = self._read(at, min(at + _WINDOW + MAX_HEADER, self._file.size))
            self._window_at = at

    def _read(self, start: int, stop: int) -> bytes:
        out = bytearray(stop - start)
        if self._file.read_into(start, memoryview(out)) < len(out):
            raise ContainerError("the file ends before it should: it was cut while it was read")
        return bytes(out)


def _entry(name: str, at: int, length: int, header: Header) -> Entry:
    identity = header.identity
    place = _StorageInfo(name, at, length, transform_descriptors=list(reversed(header.chain)))
    label = f"(at byte {at})" if identity is None else identity.name
    return Entry(label, identity.offsets if identity is not None else None, place, None, None)
