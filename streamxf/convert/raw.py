"""Tensors that stand in files as they are, as streams: workers read them, and frame and encode them, block by block."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from streamxf.convert.identity import check_same
from streamxf.convert.job import Item, Job, Resolve
from streamxf.convert.origin import ITEM
from streamxf.dcp.save.streamed import Streamed
from streamxf.dcp.tensors.boxes import contiguous_strides
from streamxf.dcp.tensors.framing import frame_of
from streamxf.errors import ContainerError, ParameterError, located
from streamxf.fileio.feed import FileFeed
from streamxf.fileio.ring import Buffer
from streamxf.fileio.source import Access, FileSlice, access_to
from streamxf.formats.contents import Entry
from streamxf.formats.extents import Extent
from streamxf.formats.location import Location
from streamxf.formats.raw import RawSource
from streamxf.formats.source import BOX_BYTES, Box, boxes_of

_OBJECTS = ""  # where these come from: they are in memory already


class RawFiles:
    """What files of a format without blocks hold, as a `Job`.

    Parameters
    ----------
    location : Location
    source : RawSource
        Of the same checkpoint.
    kept : mapping
        What is stored besides, as the object `ITEM`.
    identity : callable
        Gives that of `Job`, as it is now.

    Raises
    ------
    ParameterError
        If a tensor has the name of that object.
    """

    def __init__(
        self, location: Location, source: RawSource, kept: Mapping[str, Any], identity: Callable[[], str]
    ) -> None:
        if ITEM in source.contents.entries:
            raise ParameterError(
                f"the checkpoint has an item {ITEM!r}, the name under which pack keeps what it has read"
            )
        self._location = location
        self._alone = not location.is_folder()
        self._source = source
        self._kept = kept
        self._identity = identity
        self._entries = source.contents.entries

    def job(self) -> Job:
        """All items, in the order in which they stand in their files."""
        described: dict[str, Any] = {name: _described(entry) for name, entry in self._entries.items()}
        described[ITEM] = BytesStorageMetadata()
        paths = {**self._source.paths, ITEM: (ITEM,)}
        tensors = sorted(
            (entry for entry in self._entries.values() if entry.is_tensor),
            key=lambda entry: (entry.parts[0].file, entry.parts[0].start),
        )
        objects = [ITEM, *(entry.name for entry in self._entries.values() if not entry.is_tensor)]
        items = [Item(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO), 0, _OBJECTS) for name in objects]
        items += [Item.of_tensor(_write_item(entry), entry.parts[0].file) for entry in tensors]
        identity = self._identity()

        def check() -> None:
            check_same(self._location.given, identity, self._identity())

        return Job(Metadata(described, paths), items, None, identity, self._opened, check)

    @contextmanager
    def _opened(self, items: Sequence[Item]) -> Iterator[Resolve]:
        with ExitStack() as stack:
            files: dict[str, Access] = {}
            for name in dict.fromkeys(item.file for item in items if item.file != _OBJECTS):
                file = self._location.open("" if self._alone else name)
                files[name] = access_to(stack.enter_context(file))

            def resolve(write: WriteItem) -> Any:
                if write.type is WriteItemType.BYTE_IO:
                    return self._object(write.index.fqn)
                entry = self._entries[write.index.fqn]
                return self._stream(entry, files[entry.parts[0].file])

            yield resolve

    def _object(self, name: str) -> io.BytesIO:
        """As DCP's planner has it."""
        data = io.BytesIO()
        torch.save(self._kept if name == ITEM else self._source.load_object(self._entries[name]), data)
        return data

    def _stream(self, entry: Entry, access: Access) -> Streamed:
        extent = self._source.extent(entry)
        strides = contiguous_strides(extent.shape)
        frame = frame_of(extent.dtype, extent.shape, strides)
        named = {"file": self._location.full("" if self._alone else entry.parts[0].file), "item": entry.name}
        feed: Any
        if not entry.raw_bytes or _same_order(extent, strides):
            feed = FileFeed(FileSlice(access, extent.start, entry.raw_bytes or 0), **named)
        else:
            feed = _BoxFeed(entry, extent, access, **named)
        return Streamed(extent.dtype, extent.shape, (frame.prefix, feed, frame.suffix))


class _BoxFeed:
    """The elements of a tensor that stand in another order than they are saved.

    Parameters
    ----------
    entry : Entry
    extent : Extent
    access : Access
    file, item : str
        For errors.
    """

    def __init__(self, entry: Entry, extent: Extent, access: Access, *, file: str, item: str) -> None:
        self.size = entry.raw_bytes or 0
        self._extent = extent
        self._access = access
        self._boxes: Iterator[Box] = boxes_of(entry, extent.dtype.itemsize, BOX_BYTES // 4)
        self._left = memoryview(b"")
        self._place = {"file": file, "item": item}

    def copy(self, start: int, count: int, target: Buffer, at: int) -> Callable[[], None]:
        done = 0
        with located(**self._place):
            while done < count:
                if not self._left:
                    box = next(self._boxes)
                    tensor = self._extent.read(self._read_into, box.offsets, box.lengths)
                    self._left = tensor.reshape(-1).view(torch.uint8).numpy().data
                step = min(count - done, len(self._left))
                target.memory[at + done : at + done + step] = self._left[:step]
                self._left = self._left[step:]
                done += step
        return _done

    def _read_into(self, position: int, out: memoryview) -> None:
        if self._access.read_into(position, out) < len(out):
            raise ContainerError("the file is truncated: it ends before the tensor does")


def _done() -> None:
    """It was read already."""


def _same_order(extent: Extent, strides: tuple[int, ...]) -> bool:
    return all(
        size == 1 or one == other for size, one, other in zip(extent.shape, extent.strides, strides, strict=True)
    )


def _described(entry: Entry) -> TensorStorageMetadata | BytesStorageMetadata:
    if not entry.is_tensor:
        return BytesStorageMetadata()
    return TensorStorageMetadata(_properties(entry), torch.Size(entry.shape), [_chunk(entry)])


def _write_item(entry: Entry) -> WriteItem:
    chunk = _chunk(entry)
    data = TensorWriteData(chunk, _properties(entry), torch.Size(entry.shape))
    return WriteItem(MetadataIndex(entry.name, chunk.offsets, 0), WriteItemType.TENSOR, tensor_data=data)


def _chunk(entry: Entry) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size([0] * len(entry.shape)), torch.Size(entry.shape))


def _properties(entry: Entry) -> TensorProperties:
    return TensorProperties(dtype=getattr(torch, str(entry.dtype)))
