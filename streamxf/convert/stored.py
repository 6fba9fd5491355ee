"""`Stored`: a DCP checkpoint whose items are copied as streams, block by block, and never become tensors.

An item of streamxf's stands in its container as ``torch.save`` framed it, and goes over as it is. One that torch's own
writer saved without extensions gets the frame that streamxf gives tensors, by which readers find their place without
unpickling; where its payload cannot be found, it goes over as it is, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem, TensorWriteData, WriteItem, WriteItemType

from streamxf.convert.checked import CheckedFeed
from streamxf.convert.identity import check_same, version_of
from streamxf.convert.job import Item, Job, Resolve
from streamxf.convert.sequential import find_framed
from streamxf.dcp.folder import Folder, digest, rank_of
from streamxf.dcp.load.items import Require
from streamxf.dcp.load.loader import noted
from streamxf.dcp.load.stored import Geometry
from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.reader import FileSystemReader, OpenedFile
from streamxf.dcp.save.streamed import Streamed
from streamxf.dcp.tensors.framing import frame_of
from streamxf.dcp.verify.archive import find_payload
from streamxf.errors import located
from streamxf.fileio.blocks import BlockReader
from streamxf.fileio.feed import BlockFeed, FileFeed
from streamxf.fileio.slicefile import SliceFile
from streamxf.fileio.source import FileSlice, access_to
from streamxf.formats.location import Location
from streamxf.keys import KeyRing
from streamxf.meter import Meter


class Stored:
    """A checkpoint that is to be copied.

    Parameters
    ----------
    path : path or str
        Its folder, or a URL.
    keys : KeyRing
    require : str, optional
        As in `FileSystemReader`.
    storage_options : mapping, optional
        fsspec's, for the URL.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keys: KeyRing,
        require: Require | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._keys = keys
        self._require = require
        self._options = storage_options
        self._folder = Folder(path, storage_options)

    def jobs(self, *, in_place: bool) -> Iterator[Job]:
        """What there is to copy: all items, or those of each rank that has metadata of its own.

        Parameters
        ----------
        in_place : bool
            Whether copies go to the same folder, and must not replace what somebody else has published meanwhile.

        Raises
        ------
        StreamxfError
            If there is no checkpoint, or its metadata is not what a reader accepts.
        """
        if in_place:
            self._folder.check_uncached()
        for name in self._folder.names():
            yield self._job(name, in_place)

    def _job(self, name: str, in_place: bool) -> Job:
        data = self._folder.read(name)
        found = digest(data)
        rank = rank_of(name)
        reader = self._reader()
        with located(file=self._folder.full(name)):
            published = reader._require == "published"
            metadata = metadata_file.load(data, reader._registry.keys, rank=rank, published=published)
        metadata.storage_meta = getattr(metadata, "storage_meta", None) or StorageMeta()
        reader.set_up_storage_reader(metadata, True)
        source = _Source(reader, metadata)

        versions = self._versions(metadata)

        def check() -> None:
            if in_place and digest(self._folder.read(name)) != found:
                raise self._folder.replaced(name)
            check_same(self._path, versions, self._versions(metadata))

        kept = Metadata(metadata.state_dict_metadata, metadata.planner_data)
        identity = f"{self._path} {found.hex()} {versions}"
        return Job(kept, source.items(), rank, identity, source.opened, check)

    def _versions(self, metadata: Metadata) -> list[object]:
        """Of data files that another save may write over; those of streamxf's writers have names that nobody reuses."""
        if metadata_file.manifest_of(metadata) is not None:
            return []
        location = Location.of(self._path, self._options)
        names = {place.relative_path for place in (metadata.storage_data or {}).values()}
        return [version_of(location, name) for name in sorted(names)]

    def _reader(self) -> Any:
        if getattr(self._folder.filesystem, "fs", None) is None:
            return FileSystemReader(self._path, keys=self._keys, require=self._require)
        from streamxf.dcp.fsspec import FsspecReader

        return FsspecReader(self._path, keys=self._keys, require=self._require, **(self._options or {}))


class _Source:
    """The items of one metadata file.

    Parameters
    ----------
    reader : ChainReaderMixin
        Set up.
    metadata : Metadata
    """

    def __init__(self, reader: Any, metadata: Metadata) -> None:
        self._reader = reader
        self._places: Mapping[MetadataIndex, _StorageInfo] = metadata.storage_data or {}
        self._described = metadata.state_dict_metadata
        self._meter = Meter()

    def items(self) -> list[Item]:
        """All of them, in the order in which they stand in their files."""
        ordered = sorted(self._places.items(), key=lambda each: (each[1].relative_path, each[1].offset))
        return [self._item(index, place) for index, place in ordered]

    def _item(self, index: MetadataIndex, place: _StorageInfo) -> Item:
        described = self._described.get(index.fqn)
        if not isinstance(described, TensorStorageMetadata):
            return Item(WriteItem(index, WriteItemType.BYTE_IO), place.length, place.relative_path)
        shape = self._geometry(index).shape
        chunk = ChunkStorageMetadata(index.offset or _size(()), _size(shape))
        kind = WriteItemType.TENSOR if len(described.chunks) == 1 else WriteItemType.SHARD
        write = WriteItem(index, kind, tensor_data=TensorWriteData(chunk, described.properties, described.size))
        return Item.of_tensor(write, place.relative_path)

    def _geometry(self, index: MetadataIndex) -> Geometry:
        with located(item=index.fqn):
            geometry: Geometry = self._reader._geometry(_request(index, LoadItemType.TENSOR))
        return geometry

    @contextmanager
    def opened(self, items: Sequence[Item]) -> Iterator[Resolve]:
        """Open the files of some items; gives what opens each item, with all checks of a load."""
        with ExitStack() as stack:
            files: dict[str, OpenedFile] = {}
            for path in dict.fromkeys(item.file for item in items):
                file, size = stack.enter_context(self._reader._open_file(path))
                files[path] = OpenedFile(self._reader._full(path), file, access_to(file), size)

            def resolve(write: WriteItem) -> Streamed:
                file = files[self._places[write.index].relative_path]
                with noted(file.name, write.index.fqn):
                    return self._stream(file, write)

            yield resolve

    def _stream(self, file: OpenedFile, write: WriteItem) -> Streamed:
        index, place = write.index, self._places[write.index]
        tensor = write.tensor_data
        request = _request(index, LoadItemType.BYTE_IO if tensor is None else LoadItemType.TENSOR)
        named = {"file": file.name, "item": index.fqn}
        dtype = tensor.properties.dtype if tensor is not None else None
        shape = tuple(tensor.chunk.sizes) if tensor is not None else ()
        geometry = Geometry.row_major(dtype, shape) if dtype is not None else None
        if geometry is not None and self._reader._opener.is_foreign(place.transform_descriptors or ()):
            streamed = self._foreign(file, request, place, geometry)
            if streamed is not None:
                return streamed
        opened = self._reader._open_item(file, place, request, self._meter)
        if isinstance(opened, BlockReader):
            return Streamed(dtype, shape, (BlockFeed(opened, **named),))
        if opened is not None:  # extensions of others give no blocks, so it is whole by now
            opened.seek(0)
            return Streamed(dtype, shape, (opened.read(),))
        source = FileSlice(file.access, place.offset, place.length)
        self._reader._expected(request).check_size(source.length)
        payload = find_payload(SliceFile(source), source.length, geometry) if geometry is not None else None
        if geometry is None or payload is None:
            return Streamed(dtype, shape, (FileFeed(source, **named),))
        begin, crc = payload
        frame = frame_of(geometry.dtype, geometry.shape, geometry.strides)
        part = FileSlice(file.access, place.offset + begin, geometry.nbytes)
        feed = CheckedFeed(part, crc, **named) if crc else FileFeed(part, **named)
        return Streamed(dtype, shape, (frame.prefix, feed, frame.suffix))

    def _foreign(self, file: OpenedFile, request: ReadItem, place: _StorageInfo, geometry: Geometry) -> Streamed | None:
        """A tensor that passed stream extensions of others; None if it can only be read whole."""
        source = FileSlice(file.access, place.offset, place.length)
        expected = self._reader._expected(request)
        stream = self._reader._opener.open_foreign(source, place.transform_descriptors or (), expected)
        feed = find_framed(stream, geometry, file=file.name, item=request.storage_index.fqn)
        if feed is None:
            return None
        frame = frame_of(geometry.dtype, geometry.shape, geometry.strides)
        return Streamed(geometry.dtype, geometry.shape, (frame.prefix, feed, frame.suffix))


def _request(index: MetadataIndex, kind: LoadItemType) -> ReadItem:
    """What a reader is asked for, as far as it matters where nothing is loaded."""
    return ReadItem(kind, index, _size(()), index, _size(()), _size(()))


def _size(shape: tuple[int, ...]) -> torch.Size:
    return torch.Size(shape)
