"""Framed tensors: what ``torch.save`` wrote of a shard, opened so that its elements can be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamxf.checkpoint.elements import Elements
from streamxf.checkpoint.strided import strided_elements
from streamxf.errors import MetadataError, UnsupportedError
from streamxf.stream.blocks import Blocks, MemoryBlocks
from streamxf.stream.reader import StreamReader
from streamxf.stream.source import FileSlice
from streamxf.torchsave.archive import Archive, NotSavedByTorch
from streamxf.torchsave.outline import StoredTensor, read_outline

_RECORDS = 64  # a tensor alone has about six


@dataclass(frozen=True, slots=True)
class Framed:
    """A plain tensor within what ``torch.save`` wrote.

    Attributes
    ----------
    tensor : StoredTensor
    start : int
        Where its first element stands in the stream.
    crc : int
        CRC-32 of its elements; 0 where torch was told to write none, or wrote that of more than these.
    """

    tensor: StoredTensor
    start: int
    crc: int


def find_framed(stream: Any, size: int, dtype: str, shape: tuple[int, ...]) -> Framed:
    """Find the plain tensor in a seekable stream of `size` bytes.

    Raises
    ------
    MetadataError
        If it is not the tensor that the metadata says, or not one of torch.save at all.
    UnsupportedError
        If it is not a plain tensor, so that only torch can make it.
    """
    try:
        archive = Archive(stream, size, _RECORDS)
        found = read_outline(archive.pickled, archive.sizes)
        if not isinstance(found, StoredTensor) or not archive.little:
            raise UnsupportedError("the item is more than the elements of a tensor, and can be loaded with torch only")
        if (found.dtype, found.shape) != (dtype, shape):
            raise MetadataError(
                f"the stored tensor is {found.dtype} of shape {found.shape}, the metadata says {dtype} of shape "
                f"{shape}: one of them was altered, or comes from another save"
            )
        begin, crc = archive.find(found.record) if found.extent else (0, 0)
        whole = found.extent == archive.sizes[found.record]
    except NotSavedByTorch as error:
        raise MetadataError(f"the item is not what torch.save writes: {error}") from None
    return Framed(found, begin + found.start, crc if whole else 0)


def framed_elements(blocks: Blocks, dtype: str, shape: tuple[int, ...]) -> Elements:
    """The elements of the plain tensor that a stream holds; row-major ones are read where they stand. Raises as
    `find_framed`.
    """
    stream = StreamReader(blocks)
    found = find_framed(stream, blocks.size, dtype, shape)
    itemsize = found.tensor.itemsize
    if not found.tensor.extent:
        return Elements(MemoryBlocks(memoryview(b"")), 0, itemsize, shape)
    if found.tensor.is_row_major and found.start % itemsize == 0:
        return Elements(blocks, found.start, itemsize, shape)
    data = bytearray(found.tensor.extent)
    stream.readinto_at(found.start, data)
    return strided_elements(FileSlice(_Memory(data), 0, len(data)), itemsize, shape, found.tensor.strides)


@dataclass(frozen=True)
class _Memory:
    """Bytes, read like a file by position."""

    data: bytearray
    parallel = True

    def read_into(self, position: int, out: memoryview) -> int:
        part = memoryview(self.data)[position : position + len(out)]
        out[: len(part)] = part
        return len(part)
