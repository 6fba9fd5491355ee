"""Framed tensors and bare items: what ``torch.save`` wrote of a single shard, found, made and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamxf.errors import MetadataError, UnsupportedError
from streamxf.format.items import Chunk, TensorItem
from streamxf.torchsave.archive import Archive, NotSavedByTorch
from streamxf.torchsave.check import read_outline
from streamxf.torchsave.objects import Objects
from streamxf.torchsave.tensors import StoredTensor

if TYPE_CHECKING:
    import torch

_RECORDS = 64  # a tensor alone has about six


@dataclass(frozen=True, slots=True)
class Framed:
    """A plain tensor within what ``torch.save`` wrote.

    - `start`: where its first element stands in the stream.
    - `crc`: CRC-32 of its elements; 0 where torch was told to write none, or wrote that of more than these.
    """

    tensor: StoredTensor
    start: int
    crc: int


def find_framed(stream: Any, size: int, dtype: str, shape: tuple[int, ...]) -> Framed:
    """Find the plain tensor in a seekable stream of `size` bytes. Raises MetadataError if it is another tensor than the
    metadata says, or not one of torch.save at all; UnsupportedError if only torch can make it.
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
    start = begin + found.start if found.extent else 0  # a view without elements may begin beyond the end
    return Framed(found, start, crc if whole else 0)


def load_framed(objects: Objects, stream: Any, size: int, item: TensorItem, chunk: Chunk) -> torch.Tensor:
    """A shard that only torch can make, such as one of a subclass; `stream` is a seekable file of `size` bytes. Raises
    MetadataError, PolicyError if it is not the tensor that the metadata says, or needs what is not allowed.
    """
    stream.seek(0)
    loaded = objects.load_tensor(stream, size, chunk.place.size)
    dtype, shape = str(loaded.dtype).removeprefix("torch."), tuple(loaded.shape)
    if (dtype, shape) != (item.dtype, chunk.shape):
        raise MetadataError(
            f"the stored tensor is {dtype} of shape {shape}, the metadata says {item.dtype} of shape {chunk.shape}: "
            "one of them was altered, or comes from another save"
        )
    return loaded


def check_records(stream: Any, size: int) -> Archive | None:
    """Compare the CRC-32 of every record in a file of ``torch.save``, which ``torch.load`` never does; None if there
    are none: torch writes zeros once it was told ``torch.serialization.set_crc32_options(False)``. Raises MetadataError
    if torch did not write the file, or it is damaged.
    """
    try:
        archive = Archive(stream, size)
        return archive if archive.check_crcs() else None
    except NotSavedByTorch as error:
        raise MetadataError(f"the item is not as torch.save wrote it: {error}") from None
