"""`DataFile`: one data file of a save, and the items that it takes, one after the other."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.dcp.extensions import Extensions
from streamxf.dcp.metadata import STORED_ATTRIBUTE, Stored
from streamxf.dcp.save.output import OutputFile
from streamxf.dcp.save.sources import Streamed, check_storable, dtype_name, has_elements, source_of
from streamxf.dcp.save.staging import Staging
from streamxf.engine import Pipeline
from streamxf.errors import StreamxfError, UnsupportedError
from streamxf.format.header import Identity, Kind
from streamxf.progress import Progress, Share
from streamxf.report import Meter
from streamxf.stream.encoder import ByteSource, ContainerEncoder, Encoded, MemorySource

# Bytes; a block below this is encoded on the spot: a worker would spend longer on waking up than on the block.
ON_THE_SPOT = 64 * 1024

_PIECE = 2**20  # bytes that a stream without blocks is given at a time


@dataclass(eq=False, slots=True)
class _InFlight:
    """An item whose blocks are on their way."""

    item: WriteItem
    encoder: ContainerEncoder
    framed: bool
    share: Share | None


class DataFile:
    """Writes items into one file, in the order in which they come; results are known when their bytes have left.

    The blocks of all items go through one pipeline: while those of one item are still being encoded or written, the
    next item is under way. So memory that is handed over stays in use until `finish`.

    Attributes
    ----------
    results : list of WriteResult
        One for each item that has left, in order.
    """

    def __init__(
        self,
        output: OutputFile,
        path: str,
        extensions: Extensions,
        writer_id: bytes,
        block_log2: int,
        meter: Meter,
        progress: Progress | None = None,
    ) -> None:
        self._output = output
        self._path = path
        self._extensions = extensions
        self._writer_id = writer_id
        self._block_log2 = block_log2
        self._meter = meter
        self._progress = progress
        self._pipeline: Pipeline[Encoded] = Pipeline()
        self._leaving: deque[tuple[_InFlight, int]] = deque()  # of each block in the pipeline, and the block's bytes
        self._hashed = extensions.hashed
        self._staging = Staging(1 << block_log2)
        self._usual = Stored(framed=not extensions.in_blocks)
        self.results: list[WriteResult] = []

    def write(self, item: WriteItem, data: Any) -> None:
        """Write an item: a tensor, the ``BytesIO`` of an object, or what is `Streamed` of either.

        Raises
        ------
        UnsupportedError
            If it is not the tensor that the metadata will describe, or one that cannot be saved.
        Exception
            Whatever went wrong, with this item or with one before; then the file is spoiled.
        """
        try:
            if isinstance(data, torch.Tensor):
                check_storable(data)
                _check_planned(item, data)
            if self._extensions.in_blocks:
                self._write_blocks(item, data)
            else:
                self._write_framed(item, data)
        except StreamxfError as error:
            error.locate(item=item.index.fqn)
            raise

    def finish(self) -> None:
        """Wait until all items have left; raises as `write`."""
        self._store(self._pipeline.results())
        self._meter.blocks(self._pipeline.peak_jobs)

    def cancel(self) -> None:
        """Give the file up. Returns when no memory of any item is in use any more."""
        self._pipeline.cancel()

    # -- blocks --------------------------------------------------------------------------------------

    def _write_blocks(self, item: WriteItem, data: Any) -> None:
        source, kind = self._source(item, data)
        encoder = ContainerEncoder(
            self._extensions.chain,
            identity=identity_of(self._writer_id, item, kind),
            published=True,
            hashed=self._hashed,
            block_log2=self._block_log2,
            meter=self._meter,
        )
        leaving = _InFlight(item, encoder, kind is Kind.FRAMED, self._share_of(item, source.size))
        for job, size in encoder.jobs(source):
            self._leaving.append((leaving, size))
            small = size <= ON_THE_SPOT
            self._store(self._pipeline.put(job(), size) if small else self._pipeline.submit(job, size))

    def _store(self, blocks: Iterable[Encoded]) -> None:
        """Write finished blocks, which come in the order in which they were submitted."""
        for block in blocks:
            leaving, size = self._leaving.popleft()
            for part in leaving.encoder.framed(block):
                self._output.write(part)
            block.release()
            if leaving.share is not None:
                leaving.share.advance(size)
            if block.last:
                encoder = leaving.encoder
                sha256 = encoder.table_digest if self._hashed else None
                self._note(leaving, encoder.raw_size, encoder.stored_size, Stored(leaving.framed, sha256))

    def _source(self, item: WriteItem, data: Any) -> tuple[ByteSource, Kind]:
        if isinstance(data, Streamed):
            return data.source, data.kind
        if item.type == WriteItemType.BYTE_IO:
            return MemorySource(data.getbuffer()), Kind.OBJECT
        if has_elements(data):
            return source_of(data, self._staging), Kind.TENSOR
        return MemorySource(_saved(data)), Kind.FRAMED

    # -- without a container, or behind stream transforms ------------------------------------------------

    def _write_framed(self, item: WriteItem, data: Any) -> None:
        start = self._output.size
        is_tensor = item.type != WriteItemType.BYTE_IO
        target = self._extensions.open(
            self._output,
            identity_of(self._writer_id, item, Kind.FRAMED if is_tensor else Kind.OBJECT),
            published=True,
            block_log2=self._block_log2,
            meter=self._meter,
        )
        share = self._share_of(item, 0 if is_tensor else _size_of(data))
        counted = _Counted(target.stream, share)
        try:
            if isinstance(data, Streamed):
                data.write_framed(counted)
            elif is_tensor:
                _save(data, counted)
            else:
                counted.write(data.getbuffer())
            target.close()
        except BaseException:
            target.abort()
            raise
        leaving = _InFlight(item, cast("Any", None), is_tensor, share)
        self._note(leaving, counted.size, self._output.size - start, Stored(is_tensor, None))

    # -- results ---------------------------------------------------------------------------------------

    def _share_of(self, item: WriteItem, size: int) -> Share | None:
        """What the item is to bring those who want to know how far the save is."""
        if self._progress is None:
            return None
        if item.type == WriteItemType.BYTE_IO:
            self._progress.expect(size)  # the plan says nothing of it
            return Share(self._progress, size)
        return Share(self._progress, planned_bytes(item))

    def _note(self, leaving: _InFlight, raw_size: int, size: int, stored: Stored) -> None:
        info = _StorageInfo(self._path, self._output.size - size, size)
        if stored != self._usual:
            setattr(info, STORED_ATTRIBUTE, stored)
        self.results.append(WriteResult(index=leaving.item.index, size_in_bytes=size, storage_data=info))
        self._meter.item(raw_size, size)
        if leaving.share is not None:
            leaving.share.finish()


class _Counted:
    """A stream for ``torch.save``: it writes all that it is given in pieces, and keeps count and the first error, which
    torch turns into another one.
    """

    def __init__(self, stream: IO[bytes], share: Share | None) -> None:
        self._stream = stream
        self._share = share
        self.size = 0
        self.error: BaseException | None = None

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), _PIECE):
                piece = view[start : start + _PIECE]
                if self._stream.write(piece) not in (len(piece), None):  # some streams return nothing
                    raise OSError("a stream transform accepted only part of what was written to it")
                if self._share is not None:
                    self._share.advance(len(piece))
        except BaseException as error:
            self.error = self.error or error
            raise
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """The file is flushed once, when all of its items are written."""


def _save(tensor: torch.Tensor, target: _Counted) -> None:
    """Write what ``torch.save`` writes for a tensor, as torch's own writer does."""
    try:
        torch.save(_minimal(tensor.cpu()), cast("IO[bytes]", target))
    except RuntimeError:
        if target.error is None:
            raise
    if target.error is not None:
        raise target.error


def _saved(tensor: torch.Tensor) -> memoryview:
    buffer = io.BytesIO()
    torch.save(_minimal(tensor.cpu()), buffer)
    return buffer.getbuffer()


def _minimal(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a storage of its own size, where it has one of its own."""
    if type(tensor) is not torch.Tensor or tensor.untyped_storage().size() == tensor.nbytes:
        return tensor
    return tensor.clone()


def _check_planned(item: WriteItem, data: torch.Tensor) -> None:
    plan = item.tensor_data
    if plan is None:
        return
    if data.dtype != plan.properties.dtype or data.size() != plan.chunk.sizes:
        raise UnsupportedError(
            f"the planner returned a tensor of {data.dtype} and shape {tuple(data.size())} to save, and had announced "
            f"{plan.properties.dtype} and shape {tuple(plan.chunk.sizes)}, which is what readers look for: change the "
            "tensor in the state dict, before it is planned"
        )


def _size_of(data: Any) -> int:
    return data.source.size if isinstance(data, Streamed) else data.getbuffer().nbytes


def planned_bytes(item: WriteItem) -> int:
    """The bytes of a tensor, as its plan has it; 0 for an object."""
    data = item.tensor_data
    return 0 if data is None else data.chunk.sizes.numel() * data.properties.dtype.itemsize


def identity_of(writer_id: bytes, item: WriteItem, kind: Kind) -> Identity:
    """The identity that an item's container is bound to."""
    data = item.tensor_data
    if kind is Kind.OBJECT or data is None:
        return Identity(writer_id, Kind.OBJECT, item.index.fqn)
    chunk, dtype = data.chunk, dtype_name(data.properties.dtype)
    return Identity(writer_id, kind, item.index.fqn, dtype, tuple(chunk.offsets), tuple(chunk.sizes), tuple(data.size))
