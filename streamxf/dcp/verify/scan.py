"""Containers in a file of which no metadata tells what is in it: they say so themselves."""

from __future__ import annotations

from collections.abc import Iterator

from torch.distributed.checkpoint.filesystem import _StorageInfo

from streamxf.coder import stage_limit
from streamxf.container.blocks import parse_head
from streamxf.container.header import Header
from streamxf.container.limits import BLOCK_HEAD_BYTES, FOOTER_BYTES, MAGIC
from streamxf.dcp.verify.metadata import Entry
from streamxf.dcp.verify.report import Findings
from streamxf.dcp.verify.tape import STEP, Tape
from streamxf.errors import ContainerError
from streamxf.fileio.blocks import read_header
from streamxf.fileio.source import FileSlice


def find_entries(tape: Tape, name: str, findings: Findings) -> Iterator[Entry]:
    """The containers of a file, in their order; what lies between them is recorded as damage."""
    at = 0
    while at < tape.size:
        rest = FileSlice(tape, at, tape.size - at)
        try:
            header = read_header(rest)
        except ContainerError as error:
            stop = _next_container(tape, at + 1)
            if at == 0 and stop == tape.size:
                findings.not_checked(f"{name}: it has no containers, and without metadata nothing tells what it holds")
            else:
                findings.damage(ContainerError(f"bytes {at} to {stop} are no container: {error.message}"), name)
            at = stop
            continue
        length = _length(rest, header) or _next_container(tape, at + 1) - at
        identity = header.identity
        place = _StorageInfo(name, at, length, transform_descriptors=list(reversed(header.chain)))
        label = f"(at byte {at})" if identity is None else identity.name
        yield Entry(label, identity.offsets if identity is not None else None, place, None, None)
        at += length


def _length(source: FileSlice, header: Header) -> int | None:
    """Bytes of the container at the start of `source`, by the heads of its blocks; None if these lead astray."""
    at, count, last = header.size, 0, False
    limit = stage_limit(header.block_size)
    try:
        while not last:
            head = parse_head(source.read_at(at, BLOCK_HEAD_BYTES), count, limit)
            if not (head.last or head.stored_size):  # zeros are no heads, and there may be gigabytes of them
                return None
            at += BLOCK_HEAD_BYTES + head.stored_size
            count, last = count + 1, head.last
    except ContainerError:
        return None
    length = at + 8 * count + FOOTER_BYTES
    return length if length <= source.length else None


def _next_container(tape: Tape, start: int) -> int:
    """Where the next container begins; the file's end if there is none."""
    buffer = memoryview(bytearray(STEP + len(MAGIC)))
    while start < tape.size:
        size = tape.read_into(start, buffer[: min(len(buffer), tape.size - start)])
        found = bytes(buffer[:size]).find(MAGIC)
        if found >= 0:
            return start + found
        start += STEP
    return tape.size
