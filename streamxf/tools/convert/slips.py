"""Slips: notes of the data files that are finished, so that a conversion that was killed can resume.

A slip lies beside its file until the checkpoint is published, and is removed with other leftovers. It is a metadata
file of a rank that no process has, without a pickle. So it is read as metadata is, with all checks, and where the data
is encrypted, only who has a key can have made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import read_metadata
from streamxf.checkpoint.publish import SLIP
from streamxf.checkpoint.storage import Storage
from streamxf.dcp.save.publishing import assemble
from streamxf.dcp.save.session import FileRecord, Save
from streamxf.errors import StreamxfError
from streamxf.format.items import Chunk, Item, ObjectItem, Place
from streamxf.tools.convert.conversion import Part

_NO_RANK = 2**31 - 1
_SUFFIX = ".slip"

Key = tuple[str, tuple[int, ...] | None]
"""The name of an item, and of a tensor the offset of a shard."""


class Finished(NamedTuple):
    """A data file that is stored: where its objects and shards are, and whether these are framed."""

    record: FileRecord
    places: Mapping[Key, tuple[Place, bool]]


def write_slip(storage: Storage, save: Save, job: str, items: Iterable[Item], file: Finished) -> None:
    """Note that a data file with parts of `items` is finished, for the conversion with the id `job`."""
    made = assemble(placed(items, file.places), {}, (file.record,), save.extensions, job, _NO_RANK, None)
    # not synced: one that a crash damages is ignored, and the data file is on the disk already
    storage.put(slip_of(file.record.path), made.data, sync=False)


def slip_of(file: str) -> str:
    """The name of the slip of a data file."""
    return f"{file}{_SUFFIX}"


def placed(items: Iterable[Item], places: Mapping[Key, tuple[Place, bool]]) -> dict[str, Item]:
    """Items at their new places, by name, tensors with the shards that have one."""
    made: dict[str, Item] = {}
    for item in items:
        if isinstance(item, ObjectItem):
            made[item.name] = replace(item, place=places[item.name, None][0])
            continue
        stored = ((chunk, places.get((item.name, chunk.offset))) for chunk in item.chunks)
        chunks = tuple(Chunk(chunk.offset, chunk.shape, *found) for chunk, found in stored if found is not None)
        made[item.name] = replace(item, chunks=chunks)
    return made


def finished_files(
    storage: Storage, save: Save, job: str, files: Sequence[Sequence[Part]], rank: int
) -> tuple[dict[int, Finished], int]:
    """Data files that earlier calls finished, by number; and how many slips are of other conversions or unusable."""
    listed = storage.names()
    found: dict[int, Finished] = {}
    others = 0
    for name in sorted(listed):
        match = SLIP.fullmatch(name)
        if match is None or int(match["rank"]) != rank:
            continue
        path = name.removesuffix(_SUFFIX)
        number = int(path.split("_")[3])
        try:
            slip = read_metadata(storage, name, _access(save), rank=_NO_RANK)
        except (StreamxfError, FileNotFoundError):  # damaged, a link, or not authenticated by a key of this call
            slip = None
        index = slip.index if slip is not None else None
        if slip is None or index is None or index.save_id != job or number >= len(files) or {*index.files} != {path}:
            others += 1
        elif number not in found and listed.get(path) == index.files[path].size:
            facts, wrapped = index.files[path], slip.wrapped[index.dek] if index.dek is not None else ""
            about = (save.modules, save.extensions.summary(), save.place)
            record = FileRecord(path, facts.size, facts.crc, index.writers[facts.writer].id, wrapped, *about)
            places = _places(index.items.values())
            if places.keys() == {_key(part) for part in files[number]}:
                found[number] = Finished(record, places)
    return found, others


def _key(part: Part) -> Key:
    chunk = part[0].chunk
    return part[0].item.name, chunk.offset if chunk is not None else None


def _places(items: Iterable[Item]) -> dict[Key, tuple[Place, bool]]:
    found: dict[Key, tuple[Place, bool]] = {}
    for item in items:
        if isinstance(item, ObjectItem):
            found[item.name, None] = item.place, False
        else:
            found |= {(item.name, chunk.offset): (chunk.place, chunk.framed) for chunk in item.chunks}
    return found


def _access(save: Save) -> Access:
    """What opens the slips of this conversion; if it encrypts, they must be authentic."""
    encryption = save.extensions.encryption
    if encryption is None:
        return Access()
    signer = encryption.signer
    return Access.of(list(encryption.recipients), trust=signer.verify_key if signer is not None else None)
