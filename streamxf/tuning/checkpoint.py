"""A checkpoint of any format as a source: only the sampled boxes are read, checked as in any load."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from streamxf.container.header import WRITER_ID_BYTES, Identity, Kind
from streamxf.dcp.save.datafile import row_length
from streamxf.formats.opening import open_source
from streamxf.formats.source import Box, Source
from streamxf.keys import KeysLike
from streamxf.tuning.sample import Part, Place


class Checkpoint:
    """The stored tensors of a checkpoint, shard by shard; objects that are no tensors are left out.

    Parameters
    ----------
    path : str
        A folder, a file, or the URL of one.
    keys : Key, bytes, several of them or a KeyRing
        As for `open_source`.

    Raises
    ------
    NoCheckpointError
        If it is no checkpoint.
    StreamxfError
        If it cannot be used, or needs another key.
    """

    def __init__(self, path: str, keys: KeysLike = None) -> None:
        self._source: Source = open_source(path, keys=keys)
        self._shards: list[tuple[str, tuple[int, ...]]] = []
        self.parts: list[Part] = []
        for entry in self._source.contents.tensors:
            dtype: torch.dtype = getattr(torch, entry.dtype or "")
            for shard in entry.parts:
                self._shards.append((entry.name, shard.offsets))
                identity = Identity(bytes(WRITER_ID_BYTES), Kind.TENSOR, shard.offsets, entry.name)
                row = row_length(shard.shape, dtype)
                self.parts.append(Part(entry.name, entry.dtype, shard.shape, dtype.itemsize, identity, row))

    def read(self, places: Sequence[Place]) -> list[bytes]:
        with self._source as source:
            return [_bytes_of(tensor) for tensor in source.read(map(self._box, places))]

    def _box(self, place: Place) -> Box:
        name, start = self._shards[place.part]
        offsets = tuple(map(int.__add__, start, place.box.offsets))
        return Box(self._source.contents.entries[name], offsets, place.box.lengths)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    found: bytes = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return found
