"""Tensors of a DCP checkpoint that lies in a folder among other files, as of FSDP: where they stand in its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from streamxf.dcp.load.stored import Geometry
from streamxf.dcp.verify.archive import find_payload
from streamxf.errors import StreamxfError
from streamxf.fileio.slicefile import SliceFile
from streamxf.fileio.source import FileSlice, access_to
from streamxf.formats.contents import Entry, Part
from streamxf.formats.dcp import read_contents
from streamxf.formats.extents import Extent
from streamxf.formats.location import Location
from streamxf.keys import KeyRing


@dataclass(frozen=True)
class Within:
    """A checkpoint's tensors that stand in its files as they are, by these files.

    Attributes
    ----------
    parts : mapping of str to list of (Entry, Part)
    """

    parts: Mapping[str, list[tuple[Entry, Part]]]

    @classmethod
    def of(cls, location: Location, folder: str) -> Within:
        """Read the metadata in a folder; what it does not tell is not known."""
        found: dict[str, list[tuple[Entry, Part]]] = {}
        try:
            contents = read_contents(location.inside(folder), KeyRing.of(None))
        except StreamxfError:  # then its files are bytes like any others
            return cls(found)
        for entry in contents.tensors:
            for part in entry.parts:
                if not part.chain:
                    found.setdefault(f"{folder}/{part.file}", []).append((entry, part))
        return cls(found)

    def read(self, location: Location, path: str, size: int) -> tuple[list[Entry], dict[str, Extent]]:
        """The tensors in a file, as far as they are plain ones that torch framed in the usual way."""
        entries: list[Entry] = []
        extents: dict[str, Extent] = {}
        with location.open(path, random=True) as file:
            access = access_to(file)
            for entry, part in self.parts[path]:
                if part.start + part.stored_bytes > size:
                    continue
                geometry = Geometry.row_major(getattr(torch, str(entry.dtype)), part.shape)
                item = SliceFile(FileSlice(access, part.start, part.stored_bytes))
                payload = find_payload(item, part.stored_bytes, geometry)
                if payload is None:
                    continue
                whole = part.shape == entry.shape
                name = f"{path}/{entry.name}" if whole else f"{path}/{entry.name}{list(part.offsets)}"
                start = part.start + payload[0]
                one = Part((0,) * len(part.shape), part.shape, path, start, geometry.nbytes)
                entries.append(replace(entry, name=name, shape=part.shape, raw_bytes=geometry.nbytes, parts=(one,)))
                extents[name] = Extent(start, geometry.dtype, geometry.shape, geometry.strides)
        return entries, extents
