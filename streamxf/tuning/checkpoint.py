"""A DCP checkpoint as a source: a reader is asked for the sampled boxes only, checked as in any load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from streamxf.container.header import WRITER_ID_BYTES, Identity, Kind
from streamxf.dcp.compat import metadata_name
from streamxf.dcp.reader import FileSystemReader
from streamxf.dcp.save.datafile import row_length
from streamxf.errors import MetadataError, ParameterError
from streamxf.keys import KeysLike
from streamxf.tuning.sample import Part, Place


class Checkpoint:
    """The stored tensors of a checkpoint, chunk by chunk; objects that are no tensors are left out.

    Parameters
    ----------
    path : str
        Its folder.
    keys : Key, bytes, several of them or a KeyRing
        As for `FileSystemReader`.

    Raises
    ------
    ParameterError
        If the folder has no global metadata.
    StreamxfError
        If the metadata cannot be used, or needs another key.
    """

    def __init__(self, path: str, keys: KeysLike = None) -> None:
        self._reader = _SampleReader(path, keys=keys)
        try:
            metadata = self._reader.read_metadata()
        except FileNotFoundError:
            raise _no_metadata(path) from None
        self._reader.set_up_storage_reader(metadata, True)
        self._chunks: list[MetadataIndex] = []
        self._dtypes: list[torch.dtype] = []
        self.parts: list[Part] = []
        for name, item in metadata.state_dict_metadata.items():
            if not isinstance(item, TensorStorageMetadata):
                continue
            dtype = item.properties.dtype
            for number, chunk in enumerate(item.chunks):
                offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
                self._chunks.append(MetadataIndex(name, chunk.offsets, number))
                self._dtypes.append(dtype)
                identity = Identity(bytes(WRITER_ID_BYTES), Kind.TENSOR, offsets, name)
                text, row = str(dtype).removeprefix("torch."), row_length(sizes, dtype)
                self.parts.append(Part(name, text, sizes, dtype.itemsize, identity, row))

    def read(self, places: Sequence[Place]) -> list[bytes]:
        collector = _Collector([self._dtypes[place.part] for place in places])
        items = [self._request(number, place) for number, place in enumerate(places)]
        self._reader.read_data(LoadPlan(items), collector).wait()
        return [collector.found[number] for number in range(len(places))]

    def _request(self, number: int, place: Place) -> ReadItem:
        chunk = self._chunks[place.part]
        offsets, lengths = torch.Size(place.box.offsets), torch.Size(place.box.lengths)
        return ReadItem(
            type=LoadItemType.TENSOR,
            dest_index=MetadataIndex(chunk.fqn, chunk.offset, number),
            dest_offsets=torch.Size([0] * len(offsets)),
            storage_index=chunk,
            storage_offsets=offsets,
            lengths=lengths,
        )


class _SampleReader(FileSystemReader):
    """Nobody made a tensor of the size that the metadata claims, so decoding one whole needs a bound."""

    _bounded = True


class _Collector(LoadPlanner):
    """Gives a reader memory for each box, and keeps the bytes that it puts there.

    Parameters
    ----------
    dtypes : list of torch.dtype
        Of the boxes, by the number in their ``dest_index``.
    """

    def __init__(self, dtypes: list[torch.dtype]) -> None:
        self._dtypes = dtypes
        self.found: dict[int, bytes] = {}

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return torch.empty(read_item.lengths, dtype=self._dtypes[self._number(read_item)], device="cpu")

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        self.found[self._number(read_item)] = flat.numpy().tobytes()

    def _number(self, read_item: ReadItem) -> int:
        number = read_item.dest_index.index
        if number is None:
            raise MetadataError("the reader asks for a tensor that is not in the plan", item=read_item.dest_index.fqn)
        return number

    # What follows is called by dcp.load, which is not in play here.

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def create_local_plan(self) -> LoadPlan:
        raise NotImplementedError

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        raise NotImplementedError

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        raise NotImplementedError

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise NotImplementedError


def _no_metadata(path: str) -> ParameterError:
    if os.path.exists(os.path.join(path, metadata_name(0))):
        return ParameterError(
            "the checkpoint has metadata of single ranks only (it was saved without collectives); tune the state dict "
            "instead",
            file=path,
        )
    return ParameterError(
        "the folder holds no .metadata, so it is no DCP checkpoint; pass a checkpoint's folder, a single file or a "
        "state dict",
        file=path,
    )
