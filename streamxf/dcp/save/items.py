"""Between DCP's plans and results and what a save takes and gives: parts, their bytes, and where they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from streamxf.checkpoint.destination import Extensions
from streamxf.checkpoint.saving import Entry, FileRecord, SavedFile
from streamxf.checkpoint.sources import Content, Staging, content_of, dtype_name
from streamxf.dcp.metadata import extra_of, paths_of, stored_properties
from streamxf.errors import MetadataError, UnsupportedError, located
from streamxf.format import limits
from streamxf.format.header import Identity, Kind
from streamxf.format.items import ITEMSIZES, Chunk, Item, ObjectItem, Place, TensorItem
from streamxf.stream.encoder import MemorySource
from streamxf.torch_private import StorageInfo


def part_of(item: WriteItem) -> Identity:
    """What an item is, without its writer."""
    data = item.tensor_data
    if item.type == WriteItemType.BYTE_IO or data is None:
        return Identity(b"", Kind.OBJECT, item.index.fqn)
    chunk, dtype = data.chunk, dtype_name(data.properties.dtype)
    return Identity(b"", Kind.TENSOR, item.index.fqn, dtype, tuple(chunk.offsets), tuple(chunk.sizes), tuple(data.size))


def planned_bytes(item: WriteItem) -> int:
    """The bytes of a tensor's elements, as its plan has it; 0 for an object, and where an element has no size."""
    data = item.tensor_data
    if data is None or dtype_name(data.properties.dtype) not in ITEMSIZES:
        return 0
    return data.chunk.sizes.numel() * data.properties.dtype.itemsize


def entries_of(items: Iterable[WriteItem], resolve: Callable[[WriteItem], Any], block_size: int) -> Iterator[Entry]:
    """What is to be written to one file; `resolve` gives an item's data when it is its turn."""
    staging = Staging(block_size)
    for item in items:
        yield part_of(item), partial(_content, item, resolve, staging)


def _content(item: WriteItem, resolve: Callable[[WriteItem], Any], staging: Staging) -> Content:
    data = resolve(item)
    if item.type == WriteItemType.BYTE_IO:
        return Content(MemorySource(data.getbuffer()), Kind.OBJECT)
    with located(item=item.index.fqn):
        _check_planned(item, data)
        return content_of(data.detach(), staging)


def _check_planned(item: WriteItem, data: torch.Tensor) -> None:
    plan = item.tensor_data
    if plan is not None and (data.dtype != plan.properties.dtype or data.size() != plan.chunk.sizes):
        raise UnsupportedError(
            f"the planner returned a tensor of {data.dtype} and shape {tuple(data.size())} to save, and had announced "
            f"{plan.properties.dtype} and shape {tuple(plan.chunk.sizes)}, which is what readers look for: change the "
            "tensor in the state dict, before it is planned"
        )


# Bytes that the index has of each, without names, numbers and lists; and of everything else, its run among it.
_ITEM = len(':{"dtype":"","shape":,"chunks":[],"path":},')
_CHUNK = len('{"file":,"at":,"bytes":,"offset":,"shape":,"framed":true},')
_HASH = len(',"sha256":""') + 2 * limits.DIGEST_BYTES
_FILE = _WRITER = 160
_REST = limits.MAX_RUN + 2**16


def check_index(plans: Sequence[SavePlan], files: int | None, hashed: bool) -> None:
    """Refuse to begin a save whose index may be larger than readers take: raises MetadataError.

    - `files`: the most that each rank writes; None for one for each item.
    - `hashed`: whether there is a SHA-256 for each item.
    """
    most = index_bound(plans, files, hashed)
    if most > limits.MAX_INDEX:
        raise MetadataError(
            f"the index of this save may take {most:,} bytes, and {limits.MAX_INDEX:,} are allowed; nothing was "
            "written. Save fewer items or shards, or shorter names"
        )


def index_bound(plans: Sequence[SavePlan], files: int | None, hashed: bool) -> int:
    """The most bytes of JSON that the index of a save has, but for what planners put there past their plans."""
    count = [len(plan.items) if files is None else min(files, len(plan.items)) for plan in plans]
    chunk = _CHUNK + len(str(sum(count))) + _HASH * hashed
    size = _REST + _FILE * sum(count) + _WRITER * len(plans)
    paths: dict[str, Any] = {}
    for plan in plans:
        paths |= plan.planner_data if isinstance(plan.planner_data, dict) else {}
    seen: set[str] = set()
    for plan in plans:
        at = len(str(sum(map(_most_stored, plan.items))))
        for item in plan.items:
            name, data = item.index.fqn, item.tensor_data
            size += chunk + at + len(str(_most_stored(item)))
            if data is not None:
                size += len(str([*data.chunk.offsets])) + len(str([*data.chunk.sizes]))
            if name in seen:
                continue
            seen.add(name)
            size += _ITEM + len(json.dumps(name)) + len(json.dumps(paths.get(name), default=str))
            if data is not None:
                size += len(str(data.properties.dtype)) + len(str([*data.size]))
                if properties := stored_properties(data.properties):
                    size += len(',"properties":' + json.dumps(properties))
    with suppress(UnsupportedError):  # the planner may leave it out
        size += len(json.dumps(extra_of(Metadata(dict.fromkeys(seen), paths))))  # type: ignore[arg-type]
    return size


def _most_stored(item: WriteItem) -> int:
    planned = planned_bytes(item)
    return 2 * planned + 2**16 if planned else limits.MAX_RAW_SIZE


_ATTRIBUTE = "streamxf_note"


class _Note(NamedTuple):
    """What goes with the ``_StorageInfo`` of an item, where it is not what items without a note have; the record of a
    file goes with its first item.
    """

    framed: bool
    sha256: bytes | None
    record: FileRecord | None


def results_of(file: SavedFile, indexes: Sequence[MetadataIndex], extensions: Extensions) -> list[WriteResult]:
    """Results of a file's items, whose `indexes` are in their order."""
    record: FileRecord | None = file.record
    usual = not extensions.in_blocks
    results = []
    for written, index in zip(file.written, indexes, strict=True):
        info = StorageInfo(file.record.path, written.at, written.size)
        framed = written.part.kind is Kind.FRAMED
        if record is not None or written.sha256 is not None or (framed != usual and index.offset is not None):
            setattr(info, _ATTRIBUTE, _Note(framed, written.sha256, record))
        record = None
        results.append(WriteResult(index=index, size_in_bytes=written.size, storage_data=info))
    return results


def records_in(results: Iterable[WriteResult]) -> tuple[FileRecord, ...]:
    """The records of the files of all ranks."""
    notes = (getattr(result.storage_data, _ATTRIBUTE, None) for result in results)
    return tuple(note.record for note in notes if note is not None and note.record is not None)


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
    descriptors, usual = extensions.recorded, _Note(not extensions.in_blocks, None, None)
    found = {}
    for result in results:
        info, offset = result.storage_data, result.index.offset
        framed, sha256, _ = getattr(info, _ATTRIBUTE, usual)
        place = Place(info.relative_path, info.offset, info.length, descriptors, sha256)
        found[result.index.fqn, tuple(offset) if offset is not None else None] = place, framed
    return found
