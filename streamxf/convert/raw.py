"""Tensors that stand in files as they are, as streams: workers read them, and frame and encode them, block by block."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

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
from streamxf.dcp.save.streamed import Streamed
from streamxf.dcp.tensors.boxes import contiguous_strides
from streamxf.dcp.tensors.framing import frame_of
from streamxf.errors import ContainerError, located
from streamxf.fileio.feed import FileFeed
from streamxf.fileio.ring import Buffer
from streamxf.fileio.source import Access, FileSlice, access_to
from streamxf.formats.contents import Entry
from streamxf.formats.extents import Extent, Pieces
from streamxf.formats.location import Location
from streamxf.formats.raw import RawSource
from streamxf.formats.source import BOX_BYTES, Box, boxes_of

_IN_MEMORY = ""  # where items come from for which no file is kept open
_SMALL = 2**16  # bytes


class RawFiles:
    """What files of a format without blocks hold, as a `Job`.

    Parameters
    ----------
    location : Location
    source : RawSource
        Of the same checkpoint.
    before : str
        The identity of `Job` when nothing was read yet.
    identity : callable
        Gives it as it is now.
    """

    def __init__(self, location: Location, source: RawSource, before: str, identity: Callable[[], str]) -> None:
        self._location = location
        self._alone = not location.is_folder()
        self._source = source
        self._before = before
        self._identity = identity
        self._entries = source.contents.entries

    def job(self) -> Job:
        """All items: objects, and then tensors in the order in which they stand in their files."""
        described = {name: _described(entry) for name, entry in self._entries.items()}
        objects = [name for name, entry in self._entries.items() if not entry.is_tensor]
        tensors = sorted(
            (entry for entry in self._entries.values() if entry.is_tensor),
            key=lambda entry: (entry.parts[0].file, entry.parts[0].start),
        )
        items = [Item(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO), 0, _IN_MEMORY) for name in objects]
        items += [Item.of_tensor(_write_item(entry), self._file_of(entry)) for entry in tensors]

        def check() -> None:
            check_same(self._location.given, self._before, self._identity())

        return Job(Metadata(described, dict(self._source.paths)), items, None, self._before, self._opened, check)

    def _file_of(self, entry: Entry) -> str:
        """Which file is kept open for an item. A small file is read at once, or a folder of many small ones would have
        few of them in each data file.
        """
        name = entry.parts[0].file
        small = (self._source.contents.files.get(name) or _SMALL) < _SMALL
        return _IN_MEMORY if small and not self._alone else name

    @contextmanager
    def _opened(self, items: Sequence[Item]) -> Iterator[Resolve]:
        with ExitStack() as stack:
            files: dict[str, Access] = {}
            for name in dict.fromkeys(item.file for item in items if item.file != _IN_MEMORY):
                files[name] = access_to(stack.enter_context(self._open(name)))

            def resolve(write: WriteItem) -> Any:
                entry = self._entries[write.index.fqn]
                if not entry.is_tensor:
                    return self._object(entry)
                name = entry.parts[0].file
                if name in files:
                    return self._stream(entry, files[name])
                with self._open(name) as file:
                    return self._held(entry, access_to(file))

            yield resolve

    def _open(self, name: str) -> IO[bytes]:
        return self._location.open("" if self._alone else name)

    def _object(self, entry: Entry) -> io.BytesIO:
        """As DCP's planner has it."""
        data = io.BytesIO()
        torch.save(self._source.load_object(entry), data)
        return data

    def _held(self, entry: Entry, access: Access) -> Streamed:
        """An item of a small file, whose bytes are read now."""
        extent = self._source.extent(entry)
        feed = _BoxFeed(entry, extent, access, **self._place(entry))
        data = bytearray(feed.size)
        feed.copy(0, feed.size, Buffer(memoryview(data), data), 0)
        return _framed(extent, bytes(data))

    def _stream(self, entry: Entry, access: Access) -> Streamed:
        extent = self._source.extent(entry)
        if isinstance(extent, Extent) and (
            not entry.raw_bytes or _same_order(extent, contiguous_strides(extent.shape))
        ):
            part = FileSlice(access, extent.start, entry.raw_bytes or 0)
            return _framed(extent, FileFeed(part, **self._place(entry)))
        return _framed(extent, _BoxFeed(entry, extent, access, **self._place(entry)))

    def _place(self, entry: Entry) -> dict[str, str]:
        return {"file": self._location.full("" if self._alone else entry.parts[0].file), "item": entry.name}


def _framed(extent: Extent | Pieces, elements: Any) -> Streamed:
    frame = frame_of(extent.dtype, extent.shape, contiguous_strides(extent.shape))
    return Streamed(extent.dtype, extent.shape, (frame.prefix, elements, frame.suffix))


class _BoxFeed:
    """The elements of a tensor that stand in another order than they are saved.

    Parameters
    ----------
    entry : Entry
    extent : Extent or Pieces
    access : Access
    file, item : str
        For errors.
    """

    def __init__(self, entry: Entry, extent: Extent | Pieces, access: Access, *, file: str, item: str) -> None:
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
