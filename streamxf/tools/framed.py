"""Framed tensors and bare items, for tools that do not trust what ``torch.load`` does with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamxf.errors import MetadataError
from streamxf.format.items import Chunk, TensorItem
from streamxf.torchsave.archive import Archive, NotSavedByTorch

if TYPE_CHECKING:
    import torch

    from streamxf.objects.policy import Objects


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
