"""Between DCP's ``Metadata``, as planners and torch's readers have it, and the items of the index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
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

from streamxf.dcp.extensions import Extensions
from streamxf.descriptor import ENCRYPT
from streamxf.errors import MetadataError, StreamxfError, UnsupportedError, redacted
from streamxf.format.index import Index, from_json, to_json
from streamxf.format.items import Chunk, Item, ObjectItem, Path, Place, TensorItem
from streamxf.format.limits import MAX_STEP, MAX_STEPS
from streamxf.torch_private import StorageInfo

_FLAGS = ("requires_grad", "pin_memory")
_FORMATS = {"channels_last": torch.channels_last, "preserve": torch.preserve_format}
_DCP_VERSION: str = getattr(filesystem, "CURRENT_DCP_VERSION", "1.0.0")  # which torch 2.7 does not have
_PLANNER_DATA = "planner_data"
_OWN = {field.name for field in fields(Metadata)}


class Stored(NamedTuple):
    """What a writer knows of an item that it stored, besides where. It travels on its ``_StorageInfo``, unless it is
    what `places_of` takes for granted.
    """

    framed: bool = False
    sha256: bytes | None = None


STORED_ATTRIBUTE = "streamxf_stored"


# -- from DCP --------------------------------------------------------------------------------------------------


def items_of(content: Metadata, results: Iterable[WriteResult], extensions: Extensions) -> dict[str, Item]:
    """The items of a save that is about to be published, from the planner's `content` and the results of all ranks.
    Raises UnsupportedError if something has no place in the index, or was not stored.
    """
    places = places_of(results, extensions)
    paths = content.planner_data if _has_paths(content) else {}
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
        items[name] = TensorItem(name, dtype, tuple(entry.size), chunks, path, _properties(entry.properties))
    return items


def places_of(
    results: Iterable[WriteResult], extensions: Extensions
) -> dict[tuple[str, tuple[int, ...] | None], tuple[Place, bool]]:
    """Where results stand, and whether in torch.save's frame, by name and offset."""
    descriptors, usual = extensions.recorded, Stored(not extensions.in_blocks)
    found = {}
    for result in results:
        info, offset = result.storage_data, result.index.offset
        framed, sha256 = getattr(info, STORED_ATTRIBUTE, usual)
        place = Place(info.relative_path, info.offset, info.length, descriptors, sha256)
        found[result.index.fqn, tuple(offset) if offset is not None else None] = place, framed
    return found


def extra_of(content: Metadata) -> dict[str, Any]:
    """What planners put into the metadata besides: planner data that is not paths, and attributes of their own. Raises
    UnsupportedError if something of it is not plain data.
    """
    found = {name: value for name, value in vars(content).items() if name not in _OWN}
    if content.planner_data is not None and not _has_paths(content):
        found[_PLANNER_DATA] = content.planner_data
    extra = {}
    for name, value in found.items():
        try:
            if not _is_extra(name):
                raise MetadataError("of attributes, readers take those with a public name")
            extra[name] = to_json(value)
        except MetadataError as error:
            raise UnsupportedError(
                f"the planner put {name!r:.80} into DCP's metadata, which cannot be stored: {error.message}. It takes "
                "None, truth values, numbers, strings, bytes, lists, tuples and dicts of these"
            ) from None
    return extra


def _is_extra(name: str) -> bool:
    return name == _PLANNER_DATA or (name.isidentifier() and name[0] != "_" and not hasattr(Metadata, name))


def _has_paths(content: Metadata) -> bool:
    """Whether the planner data says where items stand in a nested state dict, and nothing else."""
    data = content.planner_data
    known = isinstance(data, dict) and bool(data) and data.keys() <= content.state_dict_metadata.keys()
    return known and all(map(_is_path, data.values()))


def _is_path(path: Any) -> bool:
    return (
        type(path) is tuple
        and 1 <= len(path) <= MAX_STEPS
        and all(type(step) is str or (type(step) is int and 0 <= step <= MAX_STEP) for step in path)
    )


def _properties(properties: TensorProperties) -> dict[str, bool | str]:
    """What is not as in a plain tensor."""
    found: dict[str, bool | str] = {name: True for name in _FLAGS if getattr(properties, name)}
    if properties.layout != torch.strided:
        found["layout"] = str(properties.layout).removeprefix("torch.")
    for name, value in _FORMATS.items():
        if properties.memory_format == value:
            found["memory_format"] = name
    return found


# -- to DCP ----------------------------------------------------------------------------------------------------


def metadata_of(
    items: Iterable[Item], *, extra: Mapping[str, Any] | None = None, descriptors: Mapping[str, list[str]] | None = None
) -> Metadata:
    """DCP's metadata for items; `extra` as `extra_of` gives it.

    `descriptors` are, for each file, what torch's readers need to read its items, in the order in which they apply it.
    """
    entries: dict[str, Any] = {}
    stored: dict[MetadataIndex, StorageInfo] = {}
    paths: dict[str, Path] = {}
    texts = descriptors or {}
    size, index = _Sizes(), _metadata_index
    for item in items:
        name = item.name
        if item.path is not None:
            paths[name] = item.path
        if isinstance(item, ObjectItem):
            entries[name] = BytesStorageMetadata()
            file, at, length, *_ = item.place
            stored[index(name, None, None)] = StorageInfo(file, at, length, texts.get(file))
            continue
        chunks = []
        for number, (begin, shape, (file, at, length, *_), _framed) in enumerate(item.chunks):
            offset = size[begin]
            chunks.append(ChunkStorageMetadata(offset, size[shape]))
            stored[index(name, offset, number)] = StorageInfo(file, at, length, texts.get(file))
        entries[name] = TensorStorageMetadata(torch_properties(item), size[item.shape], chunks)
    made = Metadata(entries, paths or None, stored, StorageMeta())
    made.version = _DCP_VERSION
    for name, value in (extra or {}).items():
        if _is_extra(name):
            with suppress(MetadataError):  # of use only to the planner that put it there
                setattr(made, name, from_json(value))
    return made


def of_index(index: Index, wrapped: Mapping[bytes, str], checkpoint_id: Any) -> Metadata:
    """What torch's readers get, made of the index and each writer's wrapped data key, as text."""
    by_writer = {}
    for writer in index.writers if index.transforms or index.chain else ():
        keyed = (f"{text}#{wrapped[writer.id]}" if text.startswith(f"{ENCRYPT}/") else text for text in index.chain)
        by_writer[writer.id] = [*index.transforms, *keyed][::-1]
    files = index.files.items() if by_writer else ()
    descriptors = {path: by_writer[index.writers[file.writer].id] for path, file in files}
    content = metadata_of(index.items.values(), extra=index.extra, descriptors=descriptors)
    where = redacted(checkpoint_id) if isinstance(checkpoint_id, str) else checkpoint_id
    content.storage_meta = StorageMeta(checkpoint_id=where, save_id=index.save_id, modules=[*index.modules])
    return content


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

    def __init__(self, error: StreamxfError) -> None:
        object.__setattr__(self, "_error", error)

    def __repr__(self) -> str:
        """For tracebacks that show what variables hold; the generated one would raise."""
        return f"<metadata that cannot be used: {object.__getattribute__(self, '_error')}>"

    def raise_error(self) -> NoReturn:
        raise object.__getattribute__(self, "_error")

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN:
            raise object.__getattribute__(self, "_error")
        return object.__getattribute__(self, name)
