"""`Remains`: a checkpoint whose items are read one by one, so that what is damaged does not stop the others."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.elements import Array, Elements, itemsize_of, unsigned
from streamxf.checkpoint.framed import framed_elements
from streamxf.checkpoint.handles import as_torch
from streamxf.checkpoint.metadata import Metadata, no_file
from streamxf.checkpoint.opening import ItemOpener, Wanted
from streamxf.checkpoint.reading import Box, BoxReader
from streamxf.checkpoint.storage import OpenFiles, Storage, storage_errors
from streamxf.errors import ContainerError, MetadataError, UnsupportedError, located
from streamxf.format.items import ITEMSIZES, Chunk, Item, ObjectItem, TensorItem
from streamxf.progress import Progress, Shares
from streamxf.proportion import Budget
from streamxf.stream.reader import StreamReader
from streamxf.stream.source import BareBlocks, Blocks, Counted, MemoryBlocks
from streamxf.tools.framed import check_records, load_framed

Ints = tuple[int, ...]

_KNOWN = re.compile(
    r"data\.pkl|data/[0-9]+|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id", re.ASCII
)


class Remains(BoxReader):
    """Reads the items of one metadata file.

    Every check of the reader holds but one: a file whose size is not the index's is read all the same, since each item
    is bound to its place and has its own CRCs or tags. The metadata has no name if it was made of what the data files
    say of themselves. `budget` pays for what stream transforms make of items, and for items without a codec.
    """

    def __init__(self, storage: Storage, access: Access, metadata: Metadata, budget: Budget) -> None:
        self.metadata = metadata
        self.items: Mapping[str, Item] = metadata.items
        self._storage = storage
        self._objects = access.objects
        self._budget = budget
        self._opener = ItemOpener(metadata, access, access.objects.limit, sees_index=bool(metadata.name), budget=budget)
        self._files = OpenFiles(storage.open, local=storage.local is not None)
        self._shares: Shares | None = None

    def expect(self, names: Collection[str], progress: Progress) -> None:
        """Have `progress` told of the stored bytes of these items, as they are read."""
        places = (place for name in names if name in self.items for place in self.items[name].places)
        sizes: dict[Hashable, int] = {place[:2]: place.size for place in places}
        self._shares = Shares(progress, sizes)

    def finish(self) -> None:
        """Say that all that was expected is done."""
        if self._shares is not None:
            self._shares.finish()

    @property
    def budget(self) -> Budget:
        return self._budget

    def full(self, file: str) -> str:
        return self._storage.full(file)

    def close(self) -> None:
        self._files.close()

    # -- one item ----------------------------------------------------------------------------------

    def fill(self, wanted: Wanted, offset: Ints, out: Array) -> None:
        """Fill `out` with the part of a shard that begins at `offset` of its tensor. After an error it holds anything.

        Raises
        ------
        StreamxfError, OSError
            If anything about the item is not as it was saved.
        """
        item, chunk = wanted.item, wanted.chunk
        assert isinstance(item, TensorItem)
        assert chunk is not None
        try:
            if out.size:
                self.read_into(Box(replace(item, chunks=(chunk,)), offset, out.shape), out)
            else:
                self.elements(item, chunk)
        except _NotPlain as error:
            with located(file=self.full(chunk.place.file), item=item.name):
                stream = StreamReader(error.blocks)
                loaded = load_framed(self._objects, stream, error.blocks.size, item, chunk)
            whole = memory_for(chunk.shape, item.dtype)
            as_torch(whole, item.dtype).copy_(loaded)
            begin = (at - first for at, first in zip(offset, chunk.offset, strict=True))
            out[...] = whole[tuple(slice(at, at + size) for at, size in zip(begin, out.shape, strict=True))]

    def read_object(self, item: ObjectItem) -> bytes:
        """An object's bytes as they were saved; raises as `fill`."""
        blocks = self._blocks(Wanted(item))
        with located(file=self.full(item.place.file), item=item.name):
            return StreamReader(blocks).read()

    def load_object(self, name: str) -> Any:
        raise UnsupportedError("objects are read as bytes here", item=name)

    def elements(self, item: TensorItem, chunk: Chunk) -> Elements:
        blocks = self._blocks(Wanted(item, chunk))
        if not chunk.framed:
            return Elements(blocks, 0, itemsize_of(item), chunk.shape)
        try:
            return framed_elements(blocks, item.dtype, chunk.shape)
        except UnsupportedError as error:
            raise _NotPlain(error.message, blocks) from None

    def _blocks(self, wanted: Wanted) -> Blocks:
        """The stream of an item, opened with all checks; what has no codec is compared with its CRCs, whole."""
        place = wanted.place
        full = self.full(place.file)
        with located(file=full, item=wanted.item.name), storage_errors(full):
            try:
                file = self._files[place.file]
            except FileNotFoundError as error:
                raise no_file(full) from error
            if self._shares is not None:
                file = replace(file, access=Counted(file.access, self._shares.begin(place[:2]).advance))
            source = file.slice(place.at, place.size)
            blocks = self._opener.open_source(source, wanted)
            if self._opener.in_container(source, place):
                return blocks
            self._budget.spend(blocks.size, "the item")
            data = bytearray(blocks.size)  # read once: what is compared is what is loaded
            if isinstance(blocks, BareBlocks):
                source.read_into(0, memoryview(data))
            else:
                StreamReader(blocks).readinto(data)
            _check_bare(data)
            return MemoryBlocks(memoryview(data))


class _NotPlain(UnsupportedError):
    """A tensor that only torch can make."""

    def __init__(self, message: str, blocks: Blocks) -> None:
        super().__init__(message)
        self.blocks = blocks


def _check_bare(data: bytearray) -> None:
    """Compare what was stored without a codec, all of it, with its CRC-32.

    A record under a name that torch does not write is refused: a damaged name hides the record from torch, which then
    does without it.
    """
    archive = check_records(io.BytesIO(data), len(data))
    if archive is None:
        raise ContainerError(
            "the item was stored without a codec and without CRCs (torch.serialization.set_crc32_options), so "
            "damage to it cannot be detected. dcp.load reads it as it is"
        )
    for name in archive.sizes:
        if not _KNOWN.fullmatch(name):
            raise MetadataError(f"its record {name!r:.80} has a name that torch.save never uses: it is damaged")


def memory_for(shape: Ints, dtype: str, *, zero: bool = False) -> Array:
    """A new array for elements of `dtype`. One of zeros takes memory only for what is written to it.

    Raises
    ------
    UnsupportedError
        If only torch can read such elements.
    MetadataError
        If there is no room for it.
    """
    if dtype not in ITEMSIZES:
        raise UnsupportedError(
            f"a tensor of {dtype} can be read by dcp.load alone, into an existing tensor of its kind"
        )
    try:
        return (np.zeros if zero else np.empty)(shape, unsigned(ITEMSIZES[dtype]))
    except (ValueError, OverflowError, MemoryError) as error:
        raise MetadataError(f"torch cannot make a tensor of {dtype} and shape {shape} here: {error}") from None
