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
from streamxf.dcp.objects.archive import Archive, NotSavedByTorch
from streamxf.dcp.objects.policy import FREE_OBJECT, MAX_EXPANSION, Objects
from streamxf.dcp.reader import OpenedFile
from streamxf.dcp.verify.archive import find_payload
from streamxf.errors import ContainerError, MetadataError, PolicyError, UnsupportedError
from streamxf.fileio.blocks import BlockReader
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.slicefile import SliceFile
from streamxf.fileio.source import FileSlice
from streamxf.formats.extents import Extent


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
    stream: Any
    if isinstance(opened, BlockReader):
        framed = reader._opener.manifest is not None
        if (opened.count == 1 and opened.size <= INLINE_BYTES) or (framed and loader.has_usual_frame(opened, geometry)):
            return _InBlocks(file.name, opened, geometry, framed)
        stream, size = StreamReader(opened), opened.size
    elif opened is None:
        stream, size = SliceFile(FileSlice(file.access, place.offset, place.length)), place.length
        reader._expected(request).check_size(size)
    else:
        stream, size = opened, opened.seek(0, io.SEEK_END)
    extent = _extent(stream, size, geometry, place.length)
    if extent is not None:
        return _Located(file.name, stream, extent)
    tensor = _decoded(stream, size, place.length)
    geometry.check(tensor)
    return _Whole(file.name, tensor)


def _extent(stream: Any, size: int, geometry: Geometry, stored: int) -> Extent | None:
    """Where the tensor's elements stand in what torch.save wrote of it; None if only torch can tell."""
    found = find_payload(stream, size, geometry)
    if found is not None:
        return Extent(found[0], geometry.dtype, geometry.shape, geometry.strides)
    try:
        archive = Archive.read(stream, size)
        outline = Objects().outline(archive, stored)
        tensor = outline.root
        record = outline.record_of(tensor) if isinstance(tensor, torch.Tensor) else None
        if record is None or not archive.native:
            return None
        geometry.check(tensor)
        start = archive.find(stream, record)[0] + int(tensor.storage_offset()) * tensor.dtype.itemsize
    except (NotSavedByTorch, MetadataError, PolicyError, UnsupportedError):
        return None  # what is wrong with it will be found out where it is loaded
    return Extent(start, geometry.dtype, geometry.shape, tuple(tensor.stride()))


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


@dataclass(frozen=True)
class _Located:
    """The elements stand in a stream as they are, in whatever order."""

    file: str
    stream: Any
    extent: Extent

    def load(self, loader: Loader, planner: LoadPlanner, request: ReadItem) -> None:
        target = planner.resolve_tensor(request)
        self.extent.fill(self._read_into, request.storage_offsets, target)
        planner.commit_tensor(request, target)

    def _read_into(self, position: int, out: memoryview) -> None:
        self.stream.seek(position)
        done = 0
        while done < len(out):
            count = self.stream.readinto(out[done:])
            if not count:
                raise ContainerError(f"the item is truncated: it ends {len(out) - done} bytes before it should")
            done += count


def _decoded(stream: Any, size: int, stored: int) -> torch.Tensor:
    if size > max(FREE_OBJECT, MAX_EXPANSION * stored):
        raise PolicyError(
            f"the tensor can only be decoded whole, and {stored} stored bytes would become {size}: that is out of "
            "proportion. If you trust the checkpoint, load it"
        )
    return Objects().load_tensor(stream, size, stored)
