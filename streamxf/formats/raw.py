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
from streamxf.formats.extents import Extent, ReadInto
from streamxf.formats.location import Location
from streamxf.formats.source import Box, Paths, Source, check_box

_OPEN = 8  # files at a time


class RawSource(Source):
    """A checkpoint of files that need no decoding.

    Parameters
    ----------
    contents : Contents
    files : Files
    extents : mapping of str to Extent
        Of all tensors, by name, each in the file of its only part.
    objects : mapping of str to Any
        Those that are no tensors.
    paths : mapping
        As in `Source`.
    """

    def __init__(
        self,
        contents: Contents,
        files: Files,
        extents: Mapping[str, Extent],
        objects: Mapping[str, Any],
        paths: Paths,
    ) -> None:
        self.contents = contents
        self.paths = paths
        self._files = files
        self._extents = extents
        self._objects = objects

    def read(self, boxes: Iterable[Box]) -> Iterator[torch.Tensor]:
        for box in boxes:
            check_box(box)
            file = box.entry.parts[0].file
            with located(file=self._files.full(file), item=box.entry.name):
                tensor = self._extents[box.entry.name].read(self._files.reader(file), box.offsets, box.lengths)
            yield tensor

    def load_object(self, entry: Entry) -> Any:
        return self._objects[entry.name]

    def extent(self, entry: Entry) -> Extent:
        """Where a tensor stands in the file of its only part."""
        return self._extents[entry.name]

    def close(self) -> None:
        self._files.close()


def raw_source(contents: Contents, files: Files) -> RawSource:
    """The source of a checkpoint whose tensors stand in row-major order, and that holds nothing else."""
    extents = {
        entry.name: Extent(
            entry.parts[0].start, getattr(torch, entry.dtype or ""), entry.shape, contiguous_strides(entry.shape)
        )
        for entry in contents.entries.values()
    }
    return RawSource(contents, files, extents, {}, {name: (name,) for name in extents})


class Files:
    """Files that are being read, of which a few are kept open.

    Parameters
    ----------
    location : Location
    alone : bool
        Whether that is the only file, and not the folder of all.
    """

    def __init__(self, location: Location, *, alone: bool) -> None:
        self._location = location
        self._alone = alone
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
