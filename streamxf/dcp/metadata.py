"""Between DCP's ``Metadata`` and results, as planners and torch's readers have them, and the items of the index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from copyreg import __newobj__  # type: ignore[attr-defined]
from dataclasses import fields
from functools import cache
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.buffers import collector_paused
from streamxf.cached import cached_property
from streamxf.checkpoint import metadata as stored_metadata
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.datafile import FileRecord, SavedFile
from streamxf.checkpoint.metadata import read_metadata
from streamxf.checkpoint.pickled import OWN, PLANNER_DATA, members_of, plain_members
from streamxf.checkpoint.sources import dtype_name
from streamxf.dcp.columns import Merged, PlannedItems, StoredResults
from streamxf.errors import UnsupportedError, redacted
from streamxf.format.extra import NESTING
from streamxf.format.header import Kind
from streamxf.format.index import ChunkColumns, Index
from streamxf.format.items import Chunk, Item, ObjectItem, Path, TensorItem, is_path
from streamxf.format.names import metadata_name
from streamxf.format.table import StoredChunks
from streamxf.format.tiling import Boxes
from streamxf.storage.opening import open_storage
from streamxf.storage.storage import Storage
from streamxf.torch_private import StorageInfo
from streamxf.torchsave.objects import dtype_of

_FLAGS = ("requires_grad", "pin_memory")
_FORMATS = {"channels_last": torch.channels_last, "preserve": torch.preserve_format}
_DCP_VERSION: str = getattr(filesystem, "CURRENT_DCP_VERSION", "1.0.0")  # which torch 2.7 does not have

FOUND = "streamxf_metadata"  # attributes of `StoredMetadata`: what a reader read, and where what a save published is
_PUBLISHED = "streamxf_published"
_MADE = {"state_dict_metadata", PLANNER_DATA, "storage_data", "_found"}


def extra_of(content: metadata.Metadata, paths: Mapping[str, Path]) -> dict[str, Any]:
    """What planners add: planner data that is not `paths`, and attributes. UnsupportedError if it is no plain data."""
    found = {name: value for name, value in vars(content).items() if name not in OWN | {FOUND, _PUBLISHED, "_found"}}
    if content.planner_data is not None and not paths:
        found[PLANNER_DATA] = content.planner_data
    return plain_members(found, "the planner has")


def paths_of(content: metadata.Metadata) -> dict[str, Path]:
    """The planner data, if it says where items stand in a nested state dict, and nothing else."""
    data = content.planner_data
    known = isinstance(data, dict) and data.keys() <= content.state_dict_metadata.keys()
    return data if known and all(map(is_path, data.values())) else {}


def stored_properties(properties: metadata.TensorProperties) -> dict[str, bool | str]:
    """What is not as in a plain tensor."""
    found: dict[str, bool | str] = {name: True for name in _FLAGS if getattr(properties, name)}
    if properties.layout != torch.strided:
        found["layout"] = str(properties.layout).removeprefix("torch.")
    for name, value in _FORMATS.items():
        if properties.memory_format == value:
            found["memory_format"] = name
    return found


@collector_paused()
def results_of(
    files: Sequence[SavedFile], items: Iterable[Sequence[WriteItem]], planned: Sequence[WriteItem]
) -> Sequence[WriteResult]:
    """Results of the items of `files`, with the shard, or the whole of an object, and with a file's first one the
    record of the file; `items` has those of each, in their order, which together are `planned`.
    """
    if isinstance(planned, PlannedItems) and (own := planned.as_sent()) is not None:
        places = [chunk.place for file in files for _, chunk in file.written]
        rows = {item.index: row for row, item in enumerate(planned)}
        if len(rows) == len(planned) and all(place.number is not None and place.sha256 is None for place in places):
            return StoredResults.of(own, [rows[item.index] for some in items for item in some], files)
    made = []
    for file, own_items in zip(files, items, strict=True):
        record: FileRecord | None = file.record
        for (_, stored), item in zip(file.written, own_items, strict=True):
            made.append(WriteResult(item.index, stored.place.size, (stored, record)))
            record = None
    return made


def records_in(results: Iterable[Sequence[WriteResult]]) -> list[FileRecord]:
    """The records of the files of all ranks."""
    made: list[FileRecord] = []
    for own in results:
        found = (result.storage_data[1] for result in own) if not isinstance(own, StoredResults) else own.records
        made += (record for record in found if record is not None)
    return made


@collector_paused()
def items_of(
    content: metadata.Metadata, paths: Mapping[str, Path], results: list[list[WriteResult]]
) -> dict[str, Item]:
    """The items of a save that is about to be published, from the planner's `content`, its `paths`, and the results of
    all ranks. Raises UnsupportedError if something has no place in the index, or was not stored.
    """
    stored: Mapping[str, Any] = _stored_columns(results, len(content.state_dict_metadata))
    if not stored:
        lists: dict[str, list[WriteResult]] = {}
        for result in chain.from_iterable(results):
            lists.setdefault(result.index.fqn, []).append(result)
        stored = lists
    items: dict[str, Item] = {}
    for name, entry in content.state_dict_metadata.items():
        path, chunks = paths.get(name), _chunks(name, entry, stored.get(name, []))
        if isinstance(entry, metadata.BytesStorageMetadata):
            items[name] = ObjectItem(name, chunks[0].place, path)
            continue
        dtype, properties = dtype_name(entry.properties.dtype), stored_properties(entry.properties)
        items[name] = TensorItem(name, dtype, tuple(entry.size), chunks, path, properties)
    return items


_FEW = 64  # shards of a tensor: of fewer, objects take no longer than columns


def _stored_columns(results: Sequence[Sequence[WriteResult]], names: int) -> dict[str, ChunkColumns]:
    """What all ranks stored, by name, where that is very much and came as columns; else nothing."""
    known = [own for own in results if isinstance(own, StoredResults)]
    if len(known) < len(results) or sum(map(len, known)) < _FEW * names:
        return {}
    items = Merged.of([own.planned for own in known])
    if items.again.any():
        return {}
    paths = sorted({record.path for own in known for record in own.records})  # as the index counts them
    ordinals = dict(zip(paths, range(len(paths)), strict=True))
    places = [own.places([ordinals[record.path] for record in own.records]) for own in known]
    whole, made = np.concatenate(places, 1)[:, items.order], {}
    for name, data, boxes, rows in items.spans():
        kind = Kind.TENSOR if data else Kind.OBJECT
        made[name] = ChunkColumns(boxes, whole[:, rows], paths, known[0].descriptors, kind)
    return made


def _chunks(name: str, entry: Any, own: ChunkColumns | Sequence[WriteResult]) -> Sequence[Chunk]:
    """What was stored of an item, as it was planned."""
    if isinstance(own, ChunkColumns):
        if isinstance(entry, PlannedTensor) and np.array_equal(own.boxes.offsets, entry.boxes.offsets):
            return own
        found: dict[Any, Chunk] = {chunk.offset: chunk for chunk in own}
        offsets: Iterable[Any] = [()]
    else:
        found, offsets = {each.index.offset: each.storage_data[0] for each in own}, [None]
    if not isinstance(entry, metadata.BytesStorageMetadata):
        offsets = (tuple(chunk.offsets) for chunk in entry.chunks)
    try:
        return tuple(map(found.__getitem__, offsets))
    except KeyError:
        raise UnsupportedError(
            "the metadata has a part of an item that was not stored, so the checkpoint would be incomplete; "
            "nothing was published. Save shards together with all other ranks (no_dist=False), or each rank for "
            "itself with use_collectives=False",
            item=name,
        ) from None


def complete(content: metadata.Metadata, index: Index, storage: Storage) -> None:
    """Put into `content` what torch's writers do, once `index` is published. Planners may keep it for the next save."""
    content.storage_meta = metadata.StorageMeta(redacted(storage.location()), index.save_id, modules=[*index.modules])
    if type(content) not in (metadata.Metadata, StoredMetadata):  # a planner's own class crosses ranks in its own way
        content.storage_data = _storage_data(index.items)
        return
    content.__class__ = StoredMetadata
    for name in ("storage_data", "_found", FOUND):  # of the save before
        vars(content).pop(name, None)
    setattr(content, _PUBLISHED, (storage, metadata_name(index.rank)))


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
        place, name = vars(self)[_PUBLISHED]
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
            name: LazyTensor.of(item) if isinstance(item, TensorItem) else metadata.BytesStorageMetadata()
            for name, item in items
        }

    @cached_property
    def planner_data(self) -> Any:
        paths = {name: item.path for name, item in self._found.items.items() if item.path is not None}
        return _extra(self._found).get(PLANNER_DATA, paths or None)

    @cached_property
    def storage_data(self) -> dict[metadata.MetadataIndex, StorageInfo]:
        """Where everything is, without descriptors: streamxf's readers need none of it."""
        return _storage_data(self._found.items)

    def __reduce_ex__(self, protocol: Any) -> Any:
        kept = {key: value for key, value in vars(self).items() if key not in (*_MADE, FOUND)}
        if _PUBLISHED not in kept:  # what was read crosses whole, as an object of torch's, and readers read it anew
            return metadata.Metadata, tuple(getattr(self, each.name) for each in fields(metadata.Metadata)), kept
        place, name = kept[_PUBLISHED]
        kept[_PUBLISHED] = redacted(place.location()) if isinstance(place, Storage) else place, name
        return __newobj__, (type(self),), kept

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = copy(self)
        memo |= {id(kept): kept for kept in map(vars(self).get, (FOUND, _PUBLISHED))}  # open files and storages
        vars(made).update(deepcopy(vars(self), memo))
        return made

    def __repr__(self) -> str:  # which raises nothing: tracebacks may show it
        found = vars(self).get(FOUND)
        return f"<metadata that cannot be used: {found}>" if isinstance(found, BaseException) else "<stored metadata>"


def _extra(found: stored_metadata.Metadata) -> dict[str, Any]:
    return members_of(found.extra) if found.extra.keys() - {NESTING} else {}


class LazyTensor(metadata.TensorStorageMetadata):
    """A tensor of a checkpoint. Its list of chunks, which may be long, is made when it is first asked for."""

    item: TensorItem

    @classmethod
    def of(cls, item: TensorItem) -> Self:
        made = cls.__new__(cls)
        made.size, made.item = torch.Size(item.shape), item
        return made

    @cached_property
    def properties(self) -> metadata.TensorProperties:  # type: ignore[override]
        return _torch_properties(self.item)

    @cached_property
    def chunks(self) -> list[metadata.ChunkStorageMetadata]:  # type: ignore[override]
        chunks, size = self.item.chunks, torch.Size
        spans = chunks.spans() if isinstance(chunks, StoredChunks) else chunks
        if len(chunks) < _FEW:
            return [metadata.ChunkStorageMetadata(size(offset), size(shape)) for offset, shape, *_ in spans]
        return torch_chunks(spans)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, metadata.TensorStorageMetadata):
            return NotImplemented
        return (self.properties, self.size, self.chunks) == (other.properties, other.size, other.chunks)

    def __reduce__(self) -> Any:
        return metadata.TensorStorageMetadata, (self.properties, self.size, self.chunks)


class PlannedTensor(metadata.TensorStorageMetadata):
    """A tensor that is about to be saved. Its list of chunks is made when it is first asked for, by their offsets."""

    boxes: Boxes

    @cached_property
    def is_grid(self) -> bool:
        """As `Boxes.is_grid`; parts without elements are left out."""
        full = (self.boxes.sizes > 0).all(axis=1)
        inside = bool((self.boxes.offsets + self.boxes.sizes <= [*self.size]).all())
        return inside and Boxes(self.boxes.offsets[full], self.boxes.sizes[full]).is_grid(self.size)

    @cached_property
    def chunks(self) -> list[metadata.ChunkStorageMetadata]:  # type: ignore[override]
        return torch_chunks(self.boxes.spans())

    __eq__, __reduce__ = LazyTensor.__eq__, LazyTensor.__reduce__


def planned_entries(items: Merged) -> dict[str, metadata.STORAGE_TYPES]:
    """What all ranks together are about to save."""
    entries: dict[str, metadata.STORAGE_TYPES] = {}
    for name, data, boxes, _ in items.spans():
        if data is None:
            entries[name] = metadata.BytesStorageMetadata()
            continue
        entries[name] = made = PlannedTensor.__new__(PlannedTensor)
        (made.properties, made.size, _), made.boxes = data, boxes
    return entries


@collector_paused()
def torch_chunks(spans: Iterable[Sequence[Any]]) -> list[metadata.ChunkStorageMetadata]:
    size = cache(torch.Size)
    return [metadata.ChunkStorageMetadata(size(offset), size(shape)) for offset, shape, *_ in spans]


@collector_paused()
def _storage_data(items: Mapping[str, Item]) -> dict[metadata.MetadataIndex, StorageInfo]:
    stored = {}
    for name, item in items.items():
        offsets = [chunk.offset for chunk in item.chunks] if isinstance(item, TensorItem) else [None]
        for number, (offset, place) in enumerate(zip(offsets, item.places, strict=True)):
            index = metadata.MetadataIndex(name, offset, None if offset is None else number)
            stored[index] = StorageInfo(place.file, place.at, place.size)
    return stored


def _torch_properties(item: TensorItem) -> metadata.TensorProperties:
    properties = metadata.TensorProperties(dtype_of(item.dtype, item.name))
    for name, value in item.properties.items():
        if name == "memory_format":
            properties.memory_format = _FORMATS.get(str(value), torch.contiguous_format)
        elif name == "layout":
            layout = getattr(torch, str(value), None)
            properties.layout = layout if isinstance(layout, torch.layout) else torch.strided
        elif name in _FLAGS:
            setattr(properties, name, bool(value))
    return properties
