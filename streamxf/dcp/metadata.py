"""Between DCP's ``Metadata`` and results, as planners and torch's readers have them, and the items of the index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.buffers import collector_paused
from streamxf.checkpoint.datafile import FileRecord, SavedFile
from streamxf.checkpoint.pickled import OWN, PLANNER_DATA, descriptors_of, members_of, plain_members
from streamxf.checkpoint.saving import Extensions
from streamxf.errors import MetadataError, UnsupportedError, redacted
from streamxf.format.index import Index
from streamxf.format.items import Chunk, Item, ObjectItem, Path, Place, TensorItem, is_path
from streamxf.torch_private import StorageInfo

_FLAGS = ("requires_grad", "pin_memory")
_FORMATS = {"channels_last": torch.channels_last, "preserve": torch.preserve_format}
_DCP_VERSION: str = getattr(filesystem, "CURRENT_DCP_VERSION", "1.0.0")  # which torch 2.7 does not have


# -- from DCP --------------------------------------------------------------------------------------------------


def extra_of(content: Metadata) -> dict[str, Any]:
    """What planners put into the metadata besides: planner data that is not paths, and attributes of their own. Raises
    UnsupportedError if something of it is not plain data.
    """
    found = {name: value for name, value in vars(content).items() if name not in OWN}
    if content.planner_data is not None and not paths_of(content):
        found[PLANNER_DATA] = content.planner_data
    return plain_members(found, "the planner has")


def paths_of(content: Metadata) -> dict[str, Path]:
    """The planner data, if it says where items stand in a nested state dict, and nothing else."""
    data = content.planner_data
    known = isinstance(data, dict) and data.keys() <= content.state_dict_metadata.keys()
    return data if known and all(map(is_path, data.values())) else {}


def stored_properties(properties: TensorProperties) -> dict[str, bool | str]:
    """What is not as in a plain tensor."""
    found: dict[str, bool | str] = {name: True for name in _FLAGS if getattr(properties, name)}
    if properties.layout != torch.strided:
        found["layout"] = str(properties.layout).removeprefix("torch.")
    for name, value in _FORMATS.items():
        if properties.memory_format == value:
            found["memory_format"] = name
    return found


# -- results of a save, from rank to rank --------------------------------------------------------------------

_ATTRIBUTE = "streamxf_note"


class _Note(NamedTuple):
    """What goes with the ``_StorageInfo`` of an item, where it is not what items without a note have; the record of a
    file goes with its first item.
    """

    framed: bool
    sha256: bytes | None = None
    number: int | None = None
    record: FileRecord | None = None


@collector_paused()
def results_of(file: SavedFile, indexes: Sequence[MetadataIndex], extensions: Extensions) -> list[WriteResult]:
    """Results of a file's items, whose `indexes` are in their order."""
    record: FileRecord | None = file.record
    usual = _Note(not extensions.in_blocks)
    results = []
    for written, index in zip(file.written, indexes, strict=True):
        info = StorageInfo(file.record.path, written.at, written.size)
        framed = written.framed if index.offset is not None else usual.framed
        note = _Note(framed, written.sha256, written.number, record)
        if note != usual:
            setattr(info, _ATTRIBUTE, note)
        record = None
        results.append(WriteResult(index=index, size_in_bytes=written.size, storage_data=info))
    return results


def records_in(results: Iterable[WriteResult]) -> tuple[FileRecord, ...]:
    """The records of the files of all ranks."""
    notes = (getattr(result.storage_data, _ATTRIBUTE, None) for result in results)
    return tuple(note.record for note in notes if note is not None and note.record is not None)


@collector_paused()
def items_of(content: Metadata, results: Iterable[WriteResult], extensions: Extensions) -> dict[str, Item]:
    """The items of a save that is about to be published, from the planner's `content` and the results of all ranks.
    Raises UnsupportedError if something has no place in the index, or was not stored.
    """
    places = _places(results, extensions)
    paths = paths_of(content)
    items: dict[str, Item] = {}
    for name, entry in content.state_dict_metadata.items():
        path = paths.get(name)
        try:
            if isinstance(entry, BytesStorageMetadata):
                items[name] = ObjectItem(name, places[name, None][0], path)
                continue
            chunks = tuple(
                Chunk(tuple(chunk.offsets), tuple(chunk.sizes), *places[name, tuple(chunk.offsets)])
                for chunk in entry.chunks
            )
        except KeyError:
            raise UnsupportedError(
                "the metadata has a part of an item that was not stored, so the checkpoint would be incomplete; "
                "nothing was published. Save shards together with all other ranks (no_dist=False), or each rank for "
                "itself with use_collectives=False",
                item=name,
            ) from None
        dtype = str(entry.properties.dtype).removeprefix("torch.")
        items[name] = TensorItem(name, dtype, tuple(entry.size), chunks, path, stored_properties(entry.properties))
    return items


def _places(
    results: Iterable[WriteResult], extensions: Extensions
) -> dict[tuple[str, tuple[int, ...] | None], tuple[Place, bool]]:
    """Where results stand, and whether in torch.save's frame, by name and offset."""
    descriptors, usual = extensions.recorded, _Note(not extensions.in_blocks)
    found = {}
    for result in results:
        info, offset = result.storage_data, result.index.offset
        framed, sha256, number, _ = getattr(info, _ATTRIBUTE, usual)
        place = Place(info.relative_path, info.offset, info.length, descriptors, sha256, number)
        found[result.index.fqn, tuple(offset) if offset is not None else None] = place, framed
    return found


def complete(
    content: Metadata, results: Iterable[WriteResult], index: Index, records: Iterable[FileRecord], path: str
) -> None:
    """Put into `content` what torch's own writers do, once `index` is published."""
    descriptors = descriptors_of(index, {record.writer_id: record.wrapped for record in records})
    content.storage_data = stored = {}
    for result in results:
        info = stored[result.index] = result.storage_data
        info.transform_descriptors = descriptors.get(info.relative_path)
    content.storage_meta = StorageMeta(redacted(path), index.save_id, modules=[*index.modules])


# -- to DCP ----------------------------------------------------------------------------------------------------


def metadata_of(items: Mapping[str, Item], extra: Mapping[str, Any]) -> Metadata:
    """DCP's metadata for items by name; `extra` as `extra_of` gives it. What torch's readers need beside that is not in
    it.
    """
    entries: dict[str, Any] = {}
    stored: dict[MetadataIndex, StorageInfo] = {}
    paths: dict[str, Path] = {}
    size, index = _Sizes(), _metadata_index
    for name, item in items.items():
        if item.path is not None:
            paths[name] = item.path
        if isinstance(item, ObjectItem):
            entries[name] = BytesStorageMetadata()
            file, at, length, *_ = item.place
            stored[index(name, None, None)] = StorageInfo(file, at, length)
            continue
        chunks = []
        for number, (begin, shape, (file, at, length, *_), _framed) in enumerate(item.chunks):
            offset = size[begin]
            chunks.append(ChunkStorageMetadata(offset, size[shape]))
            stored[index(name, offset, number)] = StorageInfo(file, at, length)
        entries[name] = TensorStorageMetadata(torch_properties(item), size[item.shape], chunks)
    made = Metadata(entries, paths or None, stored, StorageMeta())
    made.version = _DCP_VERSION
    if extra:
        vars(made).update(members_of(extra))
    return made


class _Sizes(dict[tuple[int, ...], torch.Size]):
    """Each size once: layers have the same ones again and again, and a pickle stores an object once."""

    def __missing__(self, numbers: tuple[int, ...]) -> torch.Size:
        made = self[numbers] = torch.Size(numbers)
        return made


def _metadata_index(name: str, offset: torch.Size | None, number: int | None) -> MetadataIndex:
    """As the class makes one, which takes seven times as long; there is one for each chunk."""
    made = object.__new__(MetadataIndex)
    made.__dict__.update(fqn=name, offset=offset, index=number)
    return made


def torch_properties(item: TensorItem) -> TensorProperties:
    """What DCP records of a tensor; raises MetadataError for a dtype that this torch does not have."""
    dtype = getattr(torch, item.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise MetadataError(f"this torch has no dtype {item.dtype}; a newer one may have it", item=item.name)
    properties = TensorProperties(dtype)
    for name, value in item.properties.items() if item.properties else ():
        if name == "memory_format":
            properties.memory_format = _FORMATS.get(str(value), torch.contiguous_format)
        elif name == "layout":
            layout = getattr(torch, str(value), None)
            properties.layout = layout if isinstance(layout, torch.layout) else torch.strided
        elif name in _FLAGS:
            setattr(properties, name, bool(value))
    return properties


class UnreadableMetadata(Metadata):
    """Stands in for metadata that could not be read, and raises the reason as soon as it is used.

    DCP takes any exception of ``read_metadata`` for a missing file, logs it and looks for rank-local metadata, so that
    the reason would be lost. This gets past that point and raises the reason where DCP hands it to all ranks.
    """

    def __init__(self, error: Exception) -> None:
        object.__setattr__(self, "_error", error)

    def __repr__(self) -> str:
        """For tracebacks that show what variables hold; the generated one would raise."""
        return f"<metadata that cannot be used: {object.__getattribute__(self, '_error')}>"

    def raise_error(self) -> NoReturn:
        raise object.__getattribute__(self, "_error")

    def __getattribute__(self, name: str) -> Any:
        if name in OWN:
            raise object.__getattribute__(self, "_error")
        return object.__getattribute__(self, name)
