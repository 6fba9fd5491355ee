"""`DataFile`: one data file of a save, and the items that it takes, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from streamxf import engine
from streamxf.container.header import Identity, Kind
from streamxf.dcp.extensions import Extensions, SaveStream
from streamxf.dcp.save.counted import CountedOutlet
from streamxf.dcp.save.output import OutputFile
from streamxf.dcp.save.streamed import Streamed, write_streamed, write_unchained
from streamxf.dcp.tensors.framing import save_tensor
from streamxf.dcp.tensors.payload import minimal
from streamxf.dcp.tensors.staging import Staging
from streamxf.errors import StreamxfError, UnsupportedError
from streamxf.fileio.outlet import Outlet
from streamxf.fileio.ring import Buffer, Ring
from streamxf.meter import Meter
from streamxf.progress import Progress, Share

MIN_ROW = 64


class DataFile:
    """Writes items into one file, in the order in which they come; results are known when their bytes have left.

    The blocks of all items go through one outlet: while those of one item are still being encoded or written, the next
    item is under way. So memory that is handed over stays in use until `finish`.

    Parameters
    ----------
    output : OutputFile
    path : str
        Relative to the checkpoint.
    extensions : Extensions
        Renewed for this save.
    descriptors : list of str, optional
        Of the extensions; recorded with each item.
    writer_id : bytes
        Of this process and save.
    block_log2 : int
    meter : Meter
    progress : Progress, optional
        Expects the planned bytes of all tensors, and is told of objects, too.

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
        descriptors: list[str] | None,
        writer_id: bytes,
        block_log2: int,
        meter: Meter,
        progress: Progress | None = None,
    ) -> None:
        self._output = output
        self._path = path
        self._extensions = extensions
        self._descriptors = descriptors
        self._writer_id = writer_id
        self._block_log2 = block_log2
        self._meter = meter
        self._progress = progress
        self._outlet = Outlet(meter) if progress is None else CountedOutlet(meter)
        self._staging = Staging(1 << block_log2)
        # each worker has a buffer, and one is put together
        self._ring = Ring(partial(_buffer, 1 << block_log2), engine.shared().workers + 1)
        self.results: list[WriteResult] = []

    def write(self, item: WriteItem, data: Any) -> None:
        """Write an item: a tensor, the ``BytesIO`` of an object, or what is `Streamed` of either.

        Raises
        ------
        UnsupportedError
            If it is not the tensor that the metadata will describe: no reader that checks could load it.
        Exception
            Whatever went wrong, with this item or with one before; then the file is spoiled.
        """
        try:
            _check_planned(item, data)
            if self._extensions.foreign or not self._extensions:
                self._outlet.settle()  # what passes no blocks, or streams of others first, is written here and now
                self._write_directly(item, data)
            else:
                self._write_blocks(item, data)
        except StreamxfError as error:
            error.locate(item=item.index.fqn)
            raise

    def finish(self) -> None:
        """Wait until all items have left; raises as `write`."""
        self._outlet.finish()

    def cancel(self) -> None:
        """Give the file up. Returns when no memory of any item is in use any more."""
        self._outlet.cancel()

    def _write_blocks(self, item: WriteItem, data: Any) -> None:
        share = self._share_of(item, data)
        if isinstance(self._outlet, CountedOutlet):
            self._outlet.share = share

        def stored(raw_size: int, size: int) -> None:
            self._note(item.index, raw_size, size, share)

        _write_and_close(item, data, self._open(item, data, self._outlet, stored), self._write)

    def _write(self, data: Any, target: SaveStream) -> int:
        """Write a tensor, or what is streamed, into its container."""
        if isinstance(data, Streamed):
            write_streamed(data, target, self._ring)
            return data.size
        return save_tensor(data, target, self._staging)

    def _write_slowly(self, data: Any, target: SaveStream) -> int:
        """The same where no container comes first."""
        if isinstance(data, Streamed):
            write_unchained(data, target, self._outlet, 1 << self._block_log2)
            return data.size
        return save_tensor(data, target)

    def _write_directly(self, item: WriteItem, data: Any) -> None:
        start = self._output.size
        share = self._output.share = self._share_of(item, data)
        if not self._extensions and not isinstance(data, Streamed) and item.type != WriteItemType.BYTE_IO:
            _save_bare(data, self._output)
            raw_size = self._output.size - start
        else:
            raw_size = _write_and_close(item, data, self._open(item, data), self._write_slowly)
        self._note(item.index, raw_size, self._output.size - start, share)

    def _open(
        self,
        item: WriteItem,
        data: Any,
        outlet: Outlet | None = None,
        stored: Callable[[int, int], None] | None = None,
    ) -> SaveStream:
        dtype = _dtype_of(data)
        return self._extensions.open(
            self._output,
            identity_of(self._writer_id, item),
            published=True,
            dtype=str(dtype).removeprefix("torch.") if dtype is not None else None,
            row=row_length(data.shape, dtype) if dtype is not None else None,
            block_log2=self._block_log2,
            outlet=outlet,
            stored=stored,
            meter=self._meter,
        )

    def _share_of(self, item: WriteItem, data: Any) -> Share | None:
        """What the item is to bring those who want to know how far the save is."""
        if self._progress is None:
            return None
        if item.type != WriteItemType.BYTE_IO:
            return Share(self._progress, planned_bytes(item))
        size = data.size if isinstance(data, Streamed) else data.getbuffer().nbytes  # of which the plan says nothing
        self._progress.expect(size)
        return Share(self._progress, size)

    def _note(self, index: MetadataIndex, raw_size: int, size: int, share: Share | None) -> None:
        info = _StorageInfo(self._path, self._output.size - size, size, transform_descriptors=self._descriptors)
        self.results.append(WriteResult(index=index, size_in_bytes=size, storage_data=info))
        self._meter.item(raw_size, size)
        if share is not None:
            share.finish()


def _check_planned(item: WriteItem, data: Any) -> None:
    plan = item.tensor_data
    if plan is None or not isinstance(data, torch.Tensor):
        return
    if data.dtype != plan.properties.dtype or data.size() != plan.chunk.sizes:
        raise UnsupportedError(
            f"the planner gave a tensor of {data.dtype} and shape {tuple(data.size())} to save, and had announced "
            f"{plan.properties.dtype} and shape {tuple(plan.chunk.sizes)}, which is what readers look for: change the "
            "tensor in the state dict, before it is planned"
        )


def planned_bytes(item: WriteItem) -> int:
    """The bytes of a tensor, as its plan has it; 0 for an object."""
    data = item.tensor_data
    return 0 if data is None else data.chunk.sizes.numel() * data.properties.dtype.itemsize


def identity_of(writer_id: bytes, item: WriteItem) -> Identity:
    """The identity that an item's container is bound to."""
    kind = Kind.BYTES if item.type == WriteItemType.BYTE_IO else Kind.TENSOR
    return Identity(writer_id, kind, tuple(item.index.offset or ()), item.index.fqn)


def _dtype_of(data: Any) -> torch.dtype | None:
    return data.dtype if isinstance(data, torch.Tensor | Streamed) else None


def _buffer(size: int) -> Buffer:
    memory = bytearray(size)
    return Buffer(memoryview(memory), memory)


def row_length(shape: Sequence[int], dtype: torch.dtype) -> int | None:
    """Elements in a row of a matrix; of kernels or a stack of matrices, in a row that is worth the name.

    Views whose memory is in another order just compress a little less.
    """
    if len(shape) < 2 or dtype.is_complex:
        return None
    row = 1
    for length in reversed(shape[1:]):
        row *= length
        if row >= MIN_ROW:
            break
    return row


def _write_and_close(item: WriteItem, data: Any, target: SaveStream, write: Callable[[Any, SaveStream], int]) -> int:
    try:
        if item.type == WriteItemType.BYTE_IO and not isinstance(data, Streamed):
            view: memoryview = data.getbuffer()
            target.write_owned(view)
            size = len(view)
        else:
            size = write(data, target)
        target.close()
    except BaseException:
        target.abort()
        raise
    return size


def _save_bare(tensor: torch.Tensor, output: OutputFile) -> None:
    """Write a tensor without any chain: the same bytes as torch's own writer."""
    try:
        torch.save(minimal(tensor.cpu()), cast("IO[bytes]", output))
    except RuntimeError:
        if output.error is None:
            raise
    if output.error is not None:
        raise output.error
