"""`Conversion`: items to write under one metadata file, and how they are divided among data files."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from streamxf.checkpoint.opening import Wanted
from streamxf.dcp.metadata import torch_properties
from streamxf.dcp.save.datafile import planned_bytes
from streamxf.dcp.save.sources import Streamed
from streamxf.format.items import MAX_RANK_CHUNKS, Item, TensorItem
from streamxf.tools.convert.destination import Destination
from streamxf.version import __version__

FILE_SIZE = 256 * 2**20
"""Bytes of items, before the chain, in one data file: what is lost of the work when the process is killed."""

MAX_FILES = 128

Data = Streamed | torch.Tensor | io.BytesIO
Part = tuple[Wanted, WriteItem]
"""An object, or one shard of a tensor: as it is in the source, and as a planner describes it."""


@dataclass(frozen=True)
class Conversion:
    """Items, and where their contents come from.

    Attributes
    ----------
    items : sequence of Item
        Those of the new checkpoint, with their places in the source.
    rank : int or None
        Of the metadata that will name them; None for that of all ranks.
    identity : str
        Tells contents of the source apart without reading them. What an earlier call finished is reused if it had the
        same.
    read : callable
        Returns the data of an object or a shard; called in the order of their places within each data file.
    extra : mapping
        As in the index.
    check : callable or None
        Called just before publishing; raises to prevent it.
    """

    items: Sequence[Item]
    rank: int | None
    identity: str
    read: Callable[[Wanted], Data]
    extra: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[], None] | None = None

    @cached_property
    def _parts(self) -> list[Part]:
        """Everything, in the order of the places in the source."""
        wanted = [
            Wanted(item, chunk)
            for item in self.items
            for chunk in (item.chunks if isinstance(item, TensorItem) else (None,))
        ]
        return [(each, _write_item(each)) for each in sorted(wanted, key=lambda each: each.place[:2])]

    def files(self, size: int) -> list[list[Part]]:
        """The parts of each data file: about `size` bytes, or more if there would be too many files. The same source
        always gives the same parts.
        """
        sizes = [planned_bytes(write) or wanted.place.size for wanted, write in self._parts]
        size = max(size, sum(sizes) // MAX_FILES)
        files: list[list[Part]] = []
        filled, shards = 0, Counter[str]()
        for part, length in zip(self._parts, sizes, strict=True):
            name = part[0].item.name
            if not files or (filled and filled + length > size) or shards[name] == MAX_RANK_CHUNKS:
                files.append([])
                filled, shards = 0, Counter()
            files[-1].append(part)
            filled += length
            shards[name] += 1
        return files

    def id(self, to: Destination, file_size: int) -> str:
        """32 hexadecimal digits, by which a later call recognizes what this conversion finished."""
        facts = [__version__, self.identity, self.rank, *to.extensions.recorded, to.extensions.summary()]
        return hashlib.sha256(json.dumps([*facts, to.block_log2, file_size]).encode()).hexdigest()[:32]


def _write_item(wanted: Wanted) -> WriteItem:
    item, chunk = wanted.item, wanted.chunk
    if chunk is None or not isinstance(item, TensorItem):
        return WriteItem(MetadataIndex(item.name), WriteItemType.BYTE_IO)
    size = torch.Size
    shard = ChunkStorageMetadata(size(chunk.offset), size(chunk.shape))
    data = TensorWriteData(shard, torch_properties(item), size(item.shape))
    return WriteItem(MetadataIndex(item.name, shard.offsets), WriteItemType.SHARD, tensor_data=data)
