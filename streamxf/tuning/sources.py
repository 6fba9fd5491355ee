"""Checkpoints and files as sources: only the sampled pieces are read, checked as in any load."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from streamxf.checkpoint.reading import Box, BoxReader
from streamxf.errors import ParameterError
from streamxf.format.items import ITEMSIZES, TensorItem
from streamxf.tuning.sample import Ints, Part, Span, identity_of


class StoredTensors:
    """The tensors of a checkpoint, shard by shard; those whose elements only torch can read are left out. `read` closes
    the reader.
    """

    def __init__(self, reader: BoxReader) -> None:
        self._reader = reader
        self._shards: list[tuple[TensorItem, Ints]] = []
        self.parts: list[Part] = []
        for item in reader.items.values():
            if isinstance(item, TensorItem) and item.dtype in ITEMSIZES:
                for chunk in item.chunks:
                    self._shards.append((item, chunk.offset))
                    identity = identity_of(item.name, item.dtype, chunk.offset, chunk.shape, item.shape)
                    self.parts.append(Part(item.name, chunk.shape, ITEMSIZES[item.dtype], identity))

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        with self._reader as reader:
            return [elements.tobytes() for elements in reader.read_boxes(map(self._box, spans))]

    def _box(self, span: Span) -> Box:
        item, start = self._shards[span.part]
        return Box(item, tuple(map(int.__add__, start, span.offset)), span.lengths)


class RawFile:
    """A file of any kind: bytes of unknown meaning."""

    def __init__(self, path: str) -> None:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ParameterError("this is not a regular file, so no sample can be taken of it", file=path)
        self._path = path
        self.parts = [Part(path, (status.st_size,), 1)]

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        found = []
        with open(self._path, "rb") as file:
            for span in spans:
                file.seek(span.offset[0])
                found.append(file.read(span.lengths[0]))
                if len(found[-1]) < span.lengths[0]:
                    raise ParameterError("the file was cut while it was sampled: is it being written?", file=self._path)
        return found
