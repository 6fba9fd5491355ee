"""Framed tensors: what ``torch.save`` wrote of a shard, opened so that its elements can be read."""

from __future__ import annotations

from dataclasses import dataclass

from streamxf.checkpoint.elements import Elements
from streamxf.checkpoint.strided import strided_elements
from streamxf.errors import MetadataError, UnsupportedError
from streamxf.stream.blocks import Blocks, MemoryBlocks
from streamxf.stream.reader import StreamReader
from streamxf.stream.source import FileSlice
from streamxf.torchsave.archive import Archive, NotSavedByTorch
from streamxf.torchsave.outline import StoredTensor, read_outline

_RECORDS = 64  # a tensor alone has about six


def framed_elements(blocks: Blocks, dtype: str, shape: tuple[int, ...]) -> Elements:
    """The elements of the plain tensor that a stream holds; row-major ones are read where they stand.

    Raises
    ------
    MetadataError
        If it is not the tensor that the metadata says, or not one of torch.save at all.
    UnsupportedError
        If it is not a plain tensor, so that only torch can make it.
    """
    stream = StreamReader(blocks)
    try:
        archive = Archive.read(stream, blocks.size, _RECORDS)
        found = read_outline(archive.pickled, archive.sizes).root
    except NotSavedByTorch as error:
        raise MetadataError(f"the item is not what torch.save writes: {error}") from None
    if not isinstance(found, StoredTensor) or not archive.little:
        raise UnsupportedError("the item is more than the elements of a tensor, and can be loaded with torch only")
    if (found.dtype, found.shape) != (dtype, shape):
        raise MetadataError(
            f"the stored tensor is {found.dtype} of shape {found.shape}, the metadata says {dtype} of shape {shape}: "
            "one of them was altered, or comes from another save"
        )
    if not found.extent:
        return Elements(MemoryBlocks(memoryview(b"")), 0, found.itemsize, shape)
    start = archive.find(stream, found.record)[0] + found.start
    if found.is_row_major and start % found.itemsize == 0:
        return Elements(blocks, start, found.itemsize, shape)
    data = bytearray(found.extent)
    stream.readinto_at(start, data)
    return strided_elements(FileSlice(_Memory(data), 0, len(data)), found.itemsize, shape, found.strides)


@dataclass(frozen=True)
class _Memory:
    """Bytes, read like a file by position."""

    data: bytearray
    parallel = True

    def read_into(self, position: int, out: memoryview) -> int:
        part = memoryview(self.data)[position : position + len(out)]
        out[: len(part)] = part
        return len(part)
