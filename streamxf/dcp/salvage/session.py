"""`Session`: single items of a checkpoint, read one by one, so that one which is damaged does not stop the others."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, Any

import numpy as np
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from streamxf.dcp.fsspec import FsspecReader
from streamxf.dcp.load.items import Expected, ItemOpener
from streamxf.dcp.load.loader import Loader, noted
from streamxf.dcp.objects.policy import Objects
from streamxf.dcp.reader import ChainReaderMixin, FileSystemReader, OpenedFile
from streamxf.dcp.salvage.records import check_bare
from streamxf.dcp.tensors.boxes import contiguous_strides
from streamxf.dcp.tensors.payload import untouched
from streamxf.errors import MetadataError, UnsupportedError
from streamxf.fileio.blocks import BlockReader
from streamxf.fileio.source import access_to
from streamxf.meter import Meter
from streamxf.progress import Progress, Shares

_QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})


class Catch(DefaultLoadPlanner):
    """A planner that keeps what it is given.

    Attributes
    ----------
    target : torch.Tensor or None
        Where the next tensor goes; None lets `tensor` be made for it.
    tensor : torch.Tensor or None
        The one that was read last.
    data : bytes
        The object that was read last, as `Objects` hands it on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.uint8
        self.target: torch.Tensor | None = None
        self.tensor: torch.Tensor | None = None
        self.data = b""

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        self.tensor = self.target if self.target is not None else memory_for(read_item.lengths, self.dtype)
        return self.tensor

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """It is there already."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.data = value.getvalue()


class Session(ChainReaderMixin):
    """Reads items of one checkpoint, by one metadata file. The class beside it is one of streamxf's readers.

    Every check of the reader holds but one: a file whose size is not the manifest's is looked into all the same, since
    each item is bound to its place and has its own CRCs or tags.
    """

    metadata: Metadata
    _writers: Mapping[str, str]
    _opened: tuple[str, OpenedFile] | None
    _stack: ExitStack
    _catch: Catch
    _loader: Loader | None
    _shares: Shares | None

    def _set_up_chain(self, *args: Any, **kwargs: Any) -> None:
        super()._set_up_chain(*args, **kwargs)
        self.name = ""
        self._opened = None
        self._stack = ExitStack()
        self._catch = Catch()
        self._loader = None
        self._shares = None

    def treat_objects(self, objects: Objects) -> None:
        """Say what becomes of objects."""
        self._objects = objects

    def begin(self, metadata: Metadata, name: str) -> None:
        """Take the metadata in use, which was read from the file `name`."""
        self.set_up_storage_reader(metadata, is_coordinator=True)
        self._begin(metadata, {})
        self.name = name

    def begin_without(self, metadata: Metadata, writers: Mapping[str, str]) -> None:
        """Take metadata in use that was made of what the data files say; `writers` has the writer id of each file."""
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        self.set_up_storage_reader(metadata, is_coordinator=True)
        self._opener = ItemOpener(self._registry, self._require, sees_trailer=False)
        self._begin(metadata, writers)

    def _begin(self, metadata: Metadata, writers: Mapping[str, str]) -> None:
        self.metadata = metadata
        self._writers = writers

    def expect(self, names: Collection[str], progress: Progress) -> None:
        """Have `progress` told of the stored bytes of these items, as they are read."""
        sizes: dict[Hashable, int] = {
            index: place.length for index, place in self.storage_data.items() if index.fqn in names
        }
        self._shares = Shares(progress, sizes)

    def finish(self) -> None:
        """Say that all that was expected is done."""
        if self._shares is not None:
            self._shares.finish()

    def close(self) -> None:
        """Close the file that was read last."""
        self._opened = None
        self._stack.close()

    def place_of(self, index: MetadataIndex) -> _StorageInfo | None:
        """Where an item is stored."""
        return self.storage_data.get(index)

    def file_of(self, index: MetadataIndex) -> str | None:
        """The whole path of the file that holds an item."""
        place = self.place_of(index)
        return None if place is None else self._full(place.relative_path)

    def read_object(self, request: ReadItem) -> bytes:
        """An object's bytes, as `treat_objects` has it; raises as `read_tensor`."""
        self._read(request)
        return self._catch.data

    def read_tensor(self, request: ReadItem, dtype: torch.dtype, target: torch.Tensor | None = None) -> torch.Tensor:
        """What `request` wants of a tensor, in `target` or in new memory. After an error that holds anything.

        Raises
        ------
        StreamxfError, OSError
            If anything about the item is not as it was saved.
        """
        if dtype in _QUANTIZED:
            raise UnsupportedError(
                f"a quantized tensor ({dtype}) is read by dcp.load alone, into a tensor that has its scale"
            )
        self._catch.dtype, self._catch.target, self._catch.tensor = dtype, target, None
        self._read(request)
        if self._catch.tensor is None:
            raise MetadataError("nothing of the tensor was wanted")
        return self._catch.tensor

    def _read(self, request: ReadItem) -> None:
        path = self._place(request).relative_path
        with noted(self._full(path), request.storage_index.fqn):
            file = self._file(path)
            loader = self._loader = self._loader or Loader(self._catch, Meter(), self._objects)
            try:
                self._read_item(file, request, loader)
                loader.settle()
            except BaseException:
                self._loader = None
                file.last = None
                loader.cancel()
                raise

    def _file(self, path: str) -> OpenedFile:
        if self._opened is None or self._opened[0] != path:
            self.close()
            raw, size = self._stack.enter_context(self._open_file(path))
            self._opened = path, OpenedFile(self._full(path), raw, access_to(raw), size, self._shares)
        return self._opened[1]

    # -- where it is not the reader ----------------------------------------------------------------

    def _check_size(self, path: str, size: int) -> None:
        """Each item is checked by itself."""

    def _open_item(
        self, file: OpenedFile, place: _StorageInfo, request: ReadItem, meter: Meter
    ) -> BlockReader | IO[bytes] | None:
        opened = super()._open_item(file, place, request, meter)
        if isinstance(opened, BlockReader) or self._in_container(place):
            return opened
        if opened is None:
            self._expected(request).check_size(place.length)
            stored = bytearray(place.length)  # read once: what is compared is what is loaded
            file.slice_of(place).read_into(0, memoryview(stored))
            opened = io.BytesIO(stored)
        check_bare(opened, opened.seek(0, io.SEEK_END))
        return opened

    def _in_container(self, place: _StorageInfo) -> bool:
        return bool(self._registry.split(place.transform_descriptors or ())[0])

    def _expected(self, request: ReadItem) -> Expected:
        expected = super()._expected(request)
        writer = self._writers.get(self._place(request).relative_path)
        return expected if writer is None else replace(expected, writer=writer)


class LocalSession(Session, FileSystemReader):
    """A `Session` on a local file system."""


class FsspecSession(Session, FsspecReader):
    """A `Session` wherever fsspec reads."""


def memory_for(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A new tensor, row-major and on the CPU; raises MetadataError if there is no room for it."""
    try:
        return untouched(dtype, shape, contiguous_strides(shape))
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise _no_memory(shape, dtype, error) from None


def zeros_for(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The same, all of it zero. What nobody writes to takes no memory; torch's zeros are written."""
    try:
        zeros = torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).untyped_storage()
        return torch.empty(0, dtype=dtype, device="cpu").set_(zeros, 0, tuple(shape), contiguous_strides(shape))
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise _no_memory(shape, dtype, error) from None


def _no_memory(shape: Sequence[int], dtype: torch.dtype, error: Exception) -> MetadataError:
    return MetadataError(f"there can be no tensor of {dtype} and shape {tuple(shape)} here: {error}")
