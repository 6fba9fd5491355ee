"""`DataFile`: one data file of a save, and the items that it takes, one after the other."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import IO, Any, cast

import crc32c
import torch
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from typing_extensions import Buffer

from streamxf.buffers import flat_view, write_all
from streamxf.dcp.extensions import Extensions
from streamxf.dcp.metadata import STORED_ATTRIBUTE, Stored
from streamxf.dcp.save.sources import Staging, Streamed, check_storable, dtype_name, has_elements, source_of
from streamxf.engine import Pipeline
from streamxf.errors import StreamxfError, UnsupportedError
from streamxf.format.header import Identity, Kind
from streamxf.progress import Progress, Share
from streamxf.report import Meter
from streamxf.storage.synced import SyncedFile
from streamxf.stream.encoder import ByteSource, ContainerEncoder, Encoded, MemorySource
from streamxf.torch_private import StorageInfo

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
    """Writes items into `raw`, in the order in which they come; results are known when their bytes have left.

    The blocks of all items go through one pipeline: while those of one item are still being encoded or written, the
    next item is under way. So memory that is handed over stays in use until `finish`.

    - `results`: one for each item that has left, in order.
    - `size`, `crc`: bytes that were written and, where items have no containers, their CRC-32C.
    """

    def __init__(
        self,
        raw: IO[bytes],
        path: str,
        extensions: Extensions,
        writer_id: bytes,
        block_log2: int,
        meter: Meter,
        progress: Progress | None = None,
        *,
        sync: bool,
    ) -> None:
        self._raw = raw
        self._synced = SyncedFile(raw) if sync else None
        self._path = path
        self._extensions = extensions
        self._writer_id = writer_id
        self._block_log2 = block_log2
        self._meter = meter
        self._progress = progress
        self._pipeline: Pipeline[Encoded] = Pipeline()
        self._leaving: deque[tuple[_InFlight, int]] = deque()  # of each block in the pipeline, and the block's bytes
        self._in_blocks = extensions.in_blocks
        self._hashed = extensions.hashed
        self._staging = Staging(1 << block_log2)
        self._usual = Stored(not self._in_blocks)
        self.results: list[WriteResult] = []
        self.size = 0
        self.crc = None if len(extensions.chain) else 0

    def add(self, item: WriteItem, data: Any) -> None:
        """Write an item: a tensor, the ``BytesIO`` of an object, or what is `Streamed` of either. Raises whatever went
        wrong, with this item or with one before; then the file is spoiled.
        """
        try:
            if isinstance(data, torch.Tensor):
                check_storable(data)
                _check_planned(item, data)
            if self._in_blocks:
                self._add_blocks(item, data)
            else:
                self._add_framed(item, data)
        except StreamxfError as error:
            error.locate(item=item.index.fqn)
            raise

    def finish(self) -> None:
        """Wait until all items have left for the operating system, and with `sync` for the disk; raises as `add`."""
        self._store(self._pipeline.results())
        self._meter.blocks(self._pipeline.peak_jobs)
        begin = perf_counter()
        if self._synced is not None:
            self._synced.sync()
        else:
            self._raw.flush()
        self._meter.io(perf_counter() - begin)

    def cancel(self) -> None:
        """Give the file up. Returns when no memory of any item is in use any more."""
        self._pipeline.cancel()

    # -- the file, as streams see it -------------------------------------------------------------------

    def write(self, data: Buffer, /) -> int:
        """Write all of `data`, however little `raw` takes at a time."""
        view = flat_view(data)
        begin = perf_counter()
        write_all(self._synced or self._raw, view)
        self._meter.io(perf_counter() - begin)
        if self.crc is not None:
            self.crc = crc32c.crc32c(view, self.crc)
        self.size += len(view)
        return len(view)

    # -- blocks ------------------------------------------------------------------------------------------

    def _add_blocks(self, item: WriteItem, data: Any) -> None:
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
            encoder = leaving.encoder
            for part in encoder.framed(block):
                self.write(part)
            block.release()
            if leaving.share is not None:
                leaving.share.advance(size)
            if block.last:
                sha256 = encoder.table_digest if self._hashed else None
                self._note(leaving, encoder.raw_size, encoder.stored_size, Stored(leaving.framed, sha256))

    def _source(self, item: WriteItem, data: Any) -> tuple[ByteSource, Kind]:
        if isinstance(data, Streamed):
            return data.source, data.kind
        if item.type == WriteItemType.BYTE_IO:
            return MemorySource(data.getbuffer()), Kind.OBJECT
        if has_elements(data):
            return source_of(data, self._staging), Kind.TENSOR
        buffer = io.BytesIO()
        torch.save(_minimal(data.cpu()), buffer)
        return MemorySource(buffer.getbuffer()), Kind.FRAMED

    # -- without a container, or behind stream transforms ------------------------------------------------

    def _add_framed(self, item: WriteItem, data: Any) -> None:
        is_tensor = item.type != WriteItemType.BYTE_IO
        identity = identity_of(self._writer_id, item, Kind.FRAMED if is_tensor else Kind.OBJECT)
        target = self._extensions.open(self, identity, published=True, block_log2=self._block_log2, meter=self._meter)
        start = self.size
        if not is_tensor and not isinstance(data, Streamed):
            data = Streamed(MemorySource(data.getbuffer()), Kind.OBJECT)
        share = self._share_of(item, data.source.size if isinstance(data, Streamed) else 0)
        counted = _Counted(target.stream, share)
        try:
            if isinstance(data, Streamed):
                for piece in data.pieces():
                    counted.write(piece)
            else:
                counted.save(data)
            target.close()
        except BaseException:
            target.abort()
            raise
        leaving = _InFlight(item, cast("Any", None), is_tensor, share)
        self._note(leaving, counted.size, self.size - start, Stored(is_tensor, None))

    # -- results ---------------------------------------------------------------------------------------

    def _share_of(self, item: WriteItem, size: int) -> Share | None:
        """The share of an item in the progress; the plan does not know the `size` of objects."""
        if self._progress is None:
            return None
        if item.type == WriteItemType.BYTE_IO:
            self._progress.expect(size)
            return Share(self._progress, size)
        return Share(self._progress, planned_bytes(item))

    def _note(self, leaving: _InFlight, raw_size: int, size: int, stored: Stored) -> None:
        info = StorageInfo(self._path, self.size - size, size)
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
        self._error: BaseException | None = None
        self.size = 0

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
            self._error = self._error or error
            raise
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """The file is flushed once, when all of its items are written."""

    def save(self, tensor: torch.Tensor) -> None:
        """Write what ``torch.save`` writes for a tensor, as torch's own writer does."""
        try:
            torch.save(_minimal(tensor.cpu()), cast("IO[bytes]", self))
        except RuntimeError:
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error


def _minimal(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a storage of its own size, where it has one of its own."""
    if type(tensor) is not torch.Tensor or tensor.untyped_storage().size() == tensor.nbytes:
        return tensor
    return tensor.clone()


def _check_planned(item: WriteItem, data: torch.Tensor) -> None:
    plan = item.tensor_data
    if plan is not None and (data.dtype != plan.properties.dtype or data.size() != plan.chunk.sizes):
        raise UnsupportedError(
            f"the planner returned a tensor of {data.dtype} and shape {tuple(data.size())} to save, and had announced "
            f"{plan.properties.dtype} and shape {tuple(plan.chunk.sizes)}, which is what readers look for: change the "
            "tensor in the state dict, before it is planned"
        )


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
