"""`RawSource`: files in which tensors stand as they are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import torch

from streamxf.dcp.tensors.boxes import contiguous_strides
from streamxf.errors import ContainerError, located
from streamxf.fileio.source import Access, access_to
from streamxf.formats.contents import Contents, Entry
from streamxf.formats.extents import Extent, Pieces, ReadInto
from streamxf.formats.location import Location
from streamxf.formats.safetensors import Header
from streamxf.formats.source import Box, Source, check_box
from streamxf.formats.torchfile import TorchFile

_OPEN = 8  # files at a time


class RawSource(Source):
    """A checkpoint of files that need no decoding.

    Parameters
    ----------
    contents : Contents
    location : Location
    shards : mapping of str to Header or TorchFile
        What is in each file.

    Attributes
    ----------
    shards : mapping of str to Header or TorchFile
    """

    def __init__(self, contents: Contents, location: Location, shards: Mapping[str, Header | TorchFile]) -> None:
        self.contents = contents
        self.shards = shards
        self._files = Files(location)
        self._extents: dict[str, Extent | Pieces] = {}
        self._objects: dict[str, Any] = {}
        self.paths = {name: (name,) for name in contents.entries}
        for shard in shards.values():
            self._extents.update(extents_of(shard))
            if isinstance(shard, TorchFile):
                self._objects.update(shard.objects)
                self.paths.update(shard.paths)

    def read(self, boxes: Iterable[Box]) -> Iterator[torch.Tensor]:
        for box in boxes:
            check_box(box)
            file = box.entry.parts[0].file
            with located(file=self._files.full(file), item=box.entry.name):
                tensor = self._extents[box.entry.name].read(self._files.reader(file), box.offsets, box.lengths)
            yield tensor

    def load_object(self, entry: Entry) -> Any:
        return self._objects[entry.name]

    def extent(self, entry: Entry) -> Extent | Pieces:
        """Where a tensor stands in the file of its only part."""
        return self._extents[entry.name]

    def close(self) -> None:
        self._files.close()


def extents_of(shard: Header | TorchFile) -> Mapping[str, Extent]:
    """Where each tensor stands in a file."""
    return (
        shard.extents
        if isinstance(shard, TorchFile)
        else {name: _extent(entry) for name, entry in shard.entries.items()}
    )


def _extent(entry: Entry) -> Extent:
    dtype: torch.dtype = getattr(torch, entry.dtype or "")
    return Extent(entry.parts[0].start, dtype, entry.shape, contiguous_strides(entry.shape))


class Files:
    """Files that are being read, of which a few are kept open.

    Parameters
    ----------
    location : Location
        Of the folder that they are in, or of the only file.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._alone = not location.is_folder()
        self._opened: OrderedDict[str, tuple[IO[bytes], Access]] = OrderedDict()

    def full(self, name: str) -> str:
        """A file's path, for errors."""
        return self._location.full("" if self._alone else name)

    def reader(self, name: str) -> ReadInto:
        """What reads the file `name` by position."""
        if name in self._opened:
            self._opened.move_to_end(name)
        else:
            while len(self._opened) >= _OPEN:
                _, (old, _) = self._opened.popitem(last=False)
                old.close()
            file = self._location.open("" if self._alone else name)
            self._opened[name] = file, access_to(file)
        access = self._opened[name][1]

        def read_into(position: int, out: memoryview) -> None:
            done = access.read_into(position, out)
            if done < len(out):
                raise ContainerError(f"the file is truncated: it ends {len(out) - done} bytes before it should")

        return read_into

    def close(self) -> None:
        """Close them all."""
        while self._opened:
            _, (file, _) = self._opened.popitem()
            file.close()
