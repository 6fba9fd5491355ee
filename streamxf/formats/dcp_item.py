"""One stored tensor of a DCP checkpoint, opened so that its parts can be read: from their own blocks, if it can be."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from streamxf.dcp.load.loader import INLINE_BYTES, Loader
from streamxf.dcp.load.stored import Geometry
from streamxf.dcp.objects.policy import FREE_OBJECT, MAX_EXPANSION, Objects
from streamxf.dcp.reader import OpenedFile
from streamxf.errors import PolicyError
from streamxf.fileio.blocks import BlockReader
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.slicefile import SliceFile
from streamxf.fileio.source import FileSlice


class Item(Protocol):
    """What reads parts of a tensor.

    Attributes
    ----------
    file : str
        For errors.
    """

    @property
    def file(self) -> str: ...

    def load(self, loader: Loader, planner: LoadPlanner, request: ReadItem) -> None:
        """Fill what the planner, which is the loader's, gives for the request, now or when it is settled."""


def open_item(reader: Any, file: OpenedFile, index: MetadataIndex, loader: Loader) -> Item:
    """Open an item with all the checks that a load makes.

    Parameters
    ----------
    reader : FileSystemReader or FsspecReader
        Knows the metadata.

    Raises
    ------
    StreamxfError
    """
    request = ReadItem(LoadItemType.TENSOR, index, None, index, None, None)  # type: ignore[arg-type]
    place = reader._place(request)
    geometry = reader._geometry(request)
    opened = reader._open_item(file, place, request, loader.meter)
    if isinstance(opened, BlockReader):
        framed = reader._opener.manifest is not None
        if (opened.count == 1 and opened.size <= INLINE_BYTES) or (framed and loader.has_usual_frame(opened, geometry)):
            return _InBlocks(file.name, opened, geometry, framed)
        stream: Any = StreamReader(opened)
        size = opened.size
    elif opened is None:
        stream = SliceFile(FileSlice(file.access, place.offset, place.length))
        size = place.length
        reader._expected(request).check_size(size)
    else:
        stream = opened
        size = stream.seek(0, io.SEEK_END)
    return _decoded(file.name, stream, size, place.length, geometry)


@dataclass(frozen=True)
class _InBlocks:
    """Parts come from their own blocks."""

    file: str
    reader: BlockReader
    geometry: Geometry
    framed: bool

    def load(self, loader: Loader, planner: LoadPlanner, request: ReadItem) -> None:
        loader.load_tensor(request, self.reader, self.geometry, self.file, framed=self.framed)


@dataclass(frozen=True)
class _Whole:
    """Nothing but torch knows how the tensor is stored, so it was decoded whole."""

    file: str
    tensor: torch.Tensor

    def load(self, loader: Loader, planner: LoadPlanner, request: ReadItem) -> None:
        target = planner.resolve_tensor(request)
        target.copy_(narrow_tensor_by_index(self.tensor, request.storage_offsets, request.lengths))
        planner.commit_tensor(request, target)


def _decoded(file: str, stream: Any, size: int, stored: int, geometry: Geometry) -> Item:
    if size > max(FREE_OBJECT, MAX_EXPANSION * stored):
        raise PolicyError(
            f"the tensor can only be decoded whole, and {stored} stored bytes would become {size}: that is out of "
            "proportion. If you trust the checkpoint, load it"
        )
    tensor = Objects().load_tensor(stream, size, stored)
    geometry.check(tensor)
    return _Whole(file, tensor)
