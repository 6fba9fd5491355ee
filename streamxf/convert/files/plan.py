"""`Plan`: which files a checkpoint becomes, and what stands in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from streamxf.convert.files import huggingface, safetensors, torchfile
from streamxf.convert.files.layout import File
from streamxf.convert.origin import ITEM, Origin, Pickled
from streamxf.descriptor import shorten
from streamxf.errors import MetadataError, ParameterError, UnsupportedError
from streamxf.formats.choosing import chosen
from streamxf.formats.contents import Entry, Format
from streamxf.formats.source import Source
from streamxf.wording import many

_SUFFIXES = {".safetensors": Format.SAFETENSORS, **dict.fromkeys(torchfile.SUFFIXES, Format.TORCH)}
_SHOWN = 5


@dataclass(frozen=True)
class Plan:
    """What is to be written.

    Attributes
    ----------
    files : sequence of File
    folder : bool
        Whether they lie in a folder; else there is one, the target.
    tensors, objects : int
        How many are in them.
    restored, left_out, notes
        As in `Unpacked`.
    """

    files: Sequence[File]
    folder: bool
    tensors: int
    objects: int
    restored: bool = False
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def format_of(name: str) -> Format | None:
    """The format that a file's name says."""
    return _SUFFIXES.get(os.path.splitext(name)[1].lower())


def origin_of(source: Source) -> Origin | None:
    """What `pack` kept of the files that it packed; None if it did not make this checkpoint.

    Raises
    ------
    MetadataError
        If the item is none of pack's.
    """
    entry = source.contents.entries.get(ITEM)
    return Origin.from_plain(source.load_object(entry)) if entry is not None else None


def fresh(
    source: Source,
    format: Format,
    name: str,
    only: Sequence[str],
    prefix: str,
    shard_size: int,
    *,
    skip_objects: bool,
) -> Plan:
    """New files.

    Parameters
    ----------
    format : Format
        `SAFETENSORS`, `TORCH` or `HUGGING_FACE`.
    name : str
        Of the file, where there is one.
    only, prefix, shard_size, skip_objects
        As in `unpack`.

    Raises
    ------
    ParameterError
        If no item is chosen.
    UnsupportedError
        If the format has no place for an item.
    """
    found = chosen(source.contents.entries, only, prefix)
    entries = {shown: entry for shown, entry in found.items() if entry.name != ITEM}
    if not entries and (only or prefix):
        raise ParameterError("no item has such a name, so there is nothing to write", file=source.contents.path)
    tensors = {shown: entry for shown, entry in entries.items() if entry.is_tensor}
    objects = [shown for shown in entries if shown not in tensors]
    if format is Format.TORCH:
        paths = {shown: _path(source.paths.get(entry.name), shown, prefix) for shown, entry in entries.items()}
        file = torchfile.fresh(name, entries, paths, source.load_object)
        return Plan([file], False, len(tensors), len(objects))
    if objects and not skip_objects:
        more = f" and {len(objects) - _SHOWN:,} more" if len(objects) > _SHOWN else ""
        raise UnsupportedError(
            f"{format} has no place for {many(len(objects), 'object')} besides tensors: "
            f"{', '.join(map(shorten, objects[:_SHOWN]))}{more}. Write a .pt file or a DCP checkpoint, which "
            "have a place for them, choose items by only= or prefix=, or allow to leave objects out (skip_objects)"
        )
    safetensors.check_fit(tensors)
    extra = source.contents.extra if source.contents.format is Format.SAFETENSORS else {}
    metadata = {"format": "pt", **extra}  # without which transformers refuses a file
    folder = format is Format.HUGGING_FACE
    if folder:
        files = huggingface.fresh(tensors, metadata, shard_size)
    else:
        files = [safetensors.fresh(name, tensors, metadata)]
    return Plan(files, folder, len(tensors), 0, left_out=tuple(objects))


def restored(source: Source, origin: Origin, name: str) -> Plan:
    """The files that were packed; a single one under the name `name`.

    Raises
    ------
    MetadataError
        If the checkpoint does not hold what was packed.
    """
    entries = {item: entry for item, entry in source.contents.entries.items() if item != ITEM}

    def pickled(file: str, kept: Pickled) -> File:
        return torchfile.restored(file, kept, entries, source.load_object)

    folder = origin.format is Format.HUGGING_FACE
    if folder:
        files = huggingface.restored(origin, entries, pickled)
    elif len(origin.heads) + len(origin.pickled) != 1:
        raise MetadataError("it does not say how the one file looked that was packed", item=ITEM)
    elif origin.heads:
        files = [safetensors.restored(name, head, entries) for head in origin.heads.values()]
    else:
        files = [pickled(name, kept) for kept in origin.pickled.values()]
    _check_all(entries, origin, files)
    tensors = sum(entry.is_tensor for entry in entries.values())
    lost = sorted(origin.left_out)
    notes = (f"{many(len(lost), 'file')} of the folder had not been kept, such as {shorten(lost[0])}",) if lost else ()
    return Plan(files, folder, tensors, len(entries) - tensors, restored=True, notes=notes)


def _check_all(entries: Mapping[str, Entry], origin: Origin, files: Iterable[File]) -> None:
    """Refuse to leave out what the checkpoint has and the packed files had not, and to write anything twice."""
    written: set[str] = set()
    headed = (set(file.tensors()) for file in files if not origin.pickled or file.name in origin.heads)
    for names in (*headed, *map(torchfile.names_in, origin.pickled.values())):
        if twice := names & written:
            raise MetadataError(
                f"it has {shorten(min(twice))} in two of the files that were packed; ask for another format", item=ITEM
            )
        written |= names
    if lost := [name for name in entries if name not in written]:
        raise MetadataError(
            f"{many(len(lost), 'item')} of the checkpoint, {shorten(lost[0])} first, were not in the files that were "
            "packed; ask for another format",
            item=ITEM,
        )


def _path(path: tuple[str | int, ...] | None, name: str, prefix: str) -> tuple[str | int, ...]:
    """Where an item is nested without the tables that `prefix` names; on top where that is no whole table."""
    if path is None or not prefix:
        return path or (name,)
    for depth in range(1, len(path)):
        if ".".join(map(str, path[:depth])) + "." == prefix:
            return path[depth:]
    return (name,)
