"""DCP's ``Metadata`` of what is stored, as planners and torch's readers have it: a part is made when it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from copyreg import __newobj__  # type: ignore[attr-defined]
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.distributed.checkpoint import filesystem, metadata

from streamxf.buffers import collector_paused
from streamxf.cached import cached_property
from streamxf.checkpoint.pickled import PLANNER_DATA, members_of
from streamxf.errors import redacted
from streamxf.format.items import Item, TensorItem
from streamxf.format.table import StoredChunks
from streamxf.format.tiling import Boxes
from streamxf.format.values import NESTING
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage
from streamxf.torch_private import StorageInfo

if TYPE_CHECKING:
    from streamxf.checkpoint import metadata as stored_metadata

FLAGS = ("requires_grad", "pin_memory")
FORMATS = {"channels_last": torch.channels_last, "preserve": torch.preserve_format}
_DCP_VERSION: str = getattr(filesystem, "CURRENT_DCP_VERSION", "1.0.0")  # which torch 2.7 does not have

FOUND = "streamxf_metadata"  # attributes of `StoredMetadata`: what a reader read, and where what a save published is
PUBLISHED = "streamxf_published"
_MADE = {"state_dict_metadata", PLANNER_DATA, "storage_data", "_found"}
FEW = 64  # shards of a tensor: of fewer, objects take no longer than columns


class StoredMetadata(metadata.Metadata):
    """DCP's metadata of a published save, each part of which is made when it is first used.

    The planner of the rank that published has made some parts. torch then sends the whole to all other ranks, which for
    a million chunks takes longer than the save: what arrives there is where it is published.
    """

    storage_meta: Any = cached_property(lambda self: metadata.StorageMeta(modules=[*self._found.modules]))
    version: Any = cached_property(lambda self: _DCP_VERSION if self._found else None)

    @classmethod
    def of(cls, found: stored_metadata.Metadata | BaseException) -> Self:
        """What was read; or the reason why it cannot be, which is raised where any part is used. DCP takes an exception
        of ``read_metadata`` for a missing file, logs it and looks for rank-local metadata: the reason would be lost.
        """
        made = cls.__new__(cls)
        vars(made).update({FOUND: found} if isinstance(found, BaseException) else {FOUND: found, **_extra(found)})
        return made

    @cached_property
    def _found(self) -> stored_metadata.Metadata:
        """What is stored. Of a save it is read as for a listing: without keys, so nothing of it is authenticated."""
        found: stored_metadata.Metadata | BaseException | None = vars(self).get(FOUND)
        if isinstance(found, BaseException):
            raise found
        if found is not None:
            return found
        from streamxf.checkpoint.access import Access  # what reads, which saves do not need
        from streamxf.checkpoint.metadata import read_metadata

        place, name = vars(self)[PUBLISHED]
        try:
            access = Access.of(expect_save_id=self.storage_meta.save_id)
            return read_metadata(open_storage(place), name, access, listing=True)
        except Exception as error:
            error.add_note(
                f"what dcp.save returned is read from {self.storage_meta.checkpoint_id} when it is used, without "
                "storage options; a reader's read_metadata() has these"
            )
            raise

    @cached_property
    @collector_paused()
    def state_dict_metadata(self) -> dict[str, metadata.STORAGE_TYPES]:  # type: ignore[override]
        items = self._found.items.items()
        return {
            name: LazyTensor.of(item.shape, item=item)
            if isinstance(item, TensorItem)
            else metadata.BytesStorageMetadata()
            for name, item in items
        }

    @cached_property
    def planner_data(self) -> Any:
        paths = {name: item.path for name, item in self._found.items.items() if item.path is not None}
        return _extra(self._found).get(PLANNER_DATA, paths or None)

    @cached_property
    def storage_data(self) -> dict[metadata.MetadataIndex, StorageInfo]:
        """Where everything is, without descriptors: streamxf's readers need none of it."""
        return storage_data_of(self._found.items)

    def __reduce_ex__(self, protocol: Any) -> Any:
        kept = {key: value for key, value in vars(self).items() if key not in (*_MADE, FOUND)}
        if PUBLISHED not in kept:  # what was read crosses whole, as an object of torch's, and readers read it anew
            return metadata.Metadata, tuple(getattr(self, each.name) for each in fields(metadata.Metadata)), kept
        place, name = kept[PUBLISHED]
        kept[PUBLISHED] = redacted(place.location()) if isinstance(place, Storage) else place, name
        return __newobj__, (type(self),), kept

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = copy(self)
        memo |= {id(kept): kept for kept in map(vars(self).get, (FOUND, PUBLISHED))}  # open files and storages
        vars(made).update(deepcopy(vars(self), memo))
        return made

    def __repr__(self) -> str:  # which raises nothing: tracebacks may show it
        found = vars(self).get(FOUND)
        return f"<metadata that cannot be used: {found}>" if isinstance(found, BaseException) else "<stored metadata>"


def _extra(found: stored_metadata.Metadata) -> dict[str, Any]:
    return members_of(found.index.extra) if found.index is not None and found.index.extra.keys() - {NESTING} else {}


class LazyTensor(metadata.TensorStorageMetadata):
    """A tensor whose list of chunks, which may be long, is made when it is first asked for.

    - `item`: what a checkpoint has of it. `boxes`: of one that is about to be saved its chunks, by their offsets.
    """

    item: TensorItem
    boxes: Any = None

    @classmethod
    def of(cls, size: Sequence[int], **known: Any) -> Self:
        made = cls.__new__(cls)
        vars(made).update(known, size=torch.Size(size))
        return made

    @cached_property
    def properties(self) -> metadata.TensorProperties:  # type: ignore[override]
        from streamxf.torchsave.objects import dtype_of  # which saves do not need

        properties = metadata.TensorProperties(dtype_of(self.item.dtype, self.item.name))
        for name, value in self.item.properties.items():
            if name == "memory_format":
                properties.memory_format = FORMATS.get(str(value), torch.contiguous_format)
            elif name == "layout":
                layout = getattr(torch, str(value), None)
                properties.layout = layout if isinstance(layout, torch.layout) else torch.strided
            elif name in FLAGS:
                setattr(properties, name, bool(value))
        return properties

    @cached_property
    def chunks(self) -> list[metadata.ChunkStorageMetadata]:  # type: ignore[override]
        stored = self.item.chunks if self.boxes is None else self.boxes
        spans, size = stored.spans() if isinstance(stored, StoredChunks | Boxes) else stored, torch.Size
        if len(spans) < FEW:
            return [metadata.ChunkStorageMetadata(size(offset), size(shape)) for offset, shape, *_ in spans]
        return torch_chunks(spans)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, metadata.TensorStorageMetadata):
            return NotImplemented
        return (self.properties, self.size, self.chunks) == (other.properties, other.size, other.chunks)

    def __reduce__(self) -> Any:
        return metadata.TensorStorageMetadata, (self.properties, self.size, self.chunks)


@collector_paused()
def torch_chunks(spans: Iterable[Sequence[Any]]) -> list[metadata.ChunkStorageMetadata]:
    size = cache(torch.Size)
    return [metadata.ChunkStorageMetadata(size(offset), size(shape)) for offset, shape, *_ in spans]


@collector_paused()
def storage_data_of(items: Mapping[str, Item]) -> dict[metadata.MetadataIndex, StorageInfo]:
    stored = {}
    for name, item in items.items():
        offsets = [chunk.offset for chunk in item.chunks] if isinstance(item, TensorItem) else [None]
        for number, (offset, place) in enumerate(zip(offsets, item.places, strict=True)):
            index = metadata.MetadataIndex(name, offset, None if offset is None else number)
            stored[index] = StorageInfo(place.file, place.at, place.size)
    return stored
