"""DCP checkpoints, streamxf's and others': what their metadata says."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from streamxf.collector import collector_paused
from streamxf.dcp.load.advice import unfinished, why_missing
from streamxf.dcp.load.items import Require
from streamxf.dcp.metadata.file import key_fragment
from streamxf.dcp.metadata.manifest import Manifest
from streamxf.dcp.metadata.tiling import check_apart
from streamxf.dcp.publish.listing import RANK_METADATA, list_files, made_by_writers, rank_of
from streamxf.dcp.reader import FileSystemReader
from streamxf.dcp.verify.metadata import read_content
from streamxf.descriptor import ENCRYPT
from streamxf.errors import MetadataError, NoCheckpointError, located
from streamxf.formats.contents import Contents, Entry, Format, Part
from streamxf.formats.location import Location
from streamxf.keys import KeyRing
from streamxf.keys.envelope import Envelope
from streamxf.wording import many

_OWN = "streamxf."


@dataclass(frozen=True)
class Loaded:
    """A metadata file.

    Attributes
    ----------
    name : str
    rank : int or None
        Whose it is; None for that of all ranks.
    metadata : Metadata
    manifest : Manifest or None
    authenticated : bool
        False where a MAC was there and could not be checked.
    """

    name: str
    rank: int | None
    metadata: Metadata
    manifest: Manifest | None
    authenticated: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """What an entry is made of.

    Attributes
    ----------
    file : int
        Which metadata file describes it, by its number.
    index : MetadataIndex
        Its name and offsets there.
    """

    file: int
    index: MetadataIndex


def reader_for(location: Location, keys: KeyRing, require: Require | None = None) -> Any:
    """A reader of the checkpoint."""
    if location.filesystem is None:
        return FileSystemReader(location.given, keys=keys, require=require)
    from streamxf.dcp.fsspec import FsspecReader

    return FsspecReader(location.given, keys=keys, require=require, **location.storage_options)


def metadata_names(location: Location, listed: Iterable[str]) -> list[str]:
    """The metadata files in their order.

    Raises
    ------
    MetadataError
        If there are none, and data files all the same.
    """
    names = set(listed)
    if ".metadata" in names:
        return [".metadata"]
    ranks = sorted(filter(RANK_METADATA.fullmatch, names), key=lambda name: rank_of(name) or 0)
    if not ranks:
        if (text := unfinished(names)) is not None:
            raise NoCheckpointError(text, file=location.given)
        raise MetadataError(why_missing(names, 0), file=location.given)
    return ranks


def read_contents(location: Location, keys: KeyRing) -> Contents:
    """What a checkpoint holds, by its metadata alone; needs no keys.

    Raises
    ------
    StreamxfError
        If the metadata is damaged or missing, or there are keys, and none of them opens it.
    """
    reader = reader_for(location, keys)
    listed = list_files(reader.fs, reader.path)
    files: list[Loaded] = []
    for name in metadata_names(location, listed):
        rank = rank_of(name)
        path = reader.fs.concat_path(reader.path, name)
        with located(file=os.fspath(path)):
            content = read_content(reader._read_file(path), keys, rank, False)
        files.append(Loaded(name, rank, content.metadata, content.manifest, content.authenticated))
    return Description.of(files).contents(location, listed)


@dataclass(frozen=True, slots=True)
class _Needed:
    """How large a file is, or at least."""

    size: int
    exact: bool

    def fits(self, size: int) -> bool:
        return size == self.size if self.exact else size >= self.size


@dataclass(frozen=True)
class Description:
    """What metadata files, one or one for each rank, say together.

    Attributes
    ----------
    files : sequence of Loaded
    entries : dict of str to Entry
    stored : dict of str to tuple of Stored
        In the order of the entries' parts.
    paths : dict of str to tuple
        As in `Source`.
    descriptors : dict
        Its keys are the codecs' descriptors as items have them, each list of them once.
    copies : int
        Entries that several ranks have under one name, besides the first.
    """

    files: Sequence[Loaded]
    entries: dict[str, Entry]
    stored: dict[str, tuple[Stored, ...]]
    paths: dict[str, Any]
    descriptors: dict[tuple[str, ...], None]
    copies: int

    @classmethod
    @collector_paused()
    def of(cls, files: Sequence[Loaded]) -> Description:
        """Put them together."""
        made = cls(files, {}, {}, {}, {}, 0)
        if len(files) == 1:
            for entry, stored in _described(files[0].metadata, 0, made.descriptors):
                made.entries[entry.name] = entry
                made.stored[entry.name] = stored
            made._add_paths(files[0].metadata.planner_data)
            return made
        found: dict[str, list[tuple[int | None, Entry, tuple[Stored, ...]]]] = {}
        for number, file in enumerate(files):
            for entry, stored in _described(file.metadata, number, made.descriptors):
                found.setdefault(entry.name, []).append((file.rank, entry, stored))
        copies = 0
        for name, each in found.items():
            for level, (rank, entry, stored) in enumerate(_merged(each)):
                label = name if not level else _free(f"{name} (rank {rank})", found)
                made.entries[label] = replace(entry, name=label)
                made.stored[label] = stored
                copies += level > 0
        for file in files:
            made._add_paths(file.metadata.planner_data)
        return replace(made, copies=copies)

    def _add_paths(self, planner_data: Any) -> None:
        if isinstance(planner_data, dict):
            for name, path in planner_data.items():
                if name in self.entries and isinstance(path, tuple):
                    self.paths.setdefault(name, path)

    @collector_paused()
    def contents(self, location: Location, listed: Mapping[str, int | None]) -> Contents:
        """All that is told of the checkpoint; `listed` are the names in its folder, and their sizes."""
        packages: dict[str, str] = {}
        for file in self.files:
            packages.update(file.manifest.packages if file.manifest is not None else {})
        envelopes = self._envelopes()
        recipients = {f"{each.kind}:{each.key_id}": None for envelope in envelopes for each in envelope.recipients}
        signers = {envelope.signature[0]: None for envelope in envelopes if envelope.signature is not None}
        sizes = self._sizes(location, listed)
        missing = [name for name in self._needed if name not in sizes]
        wrong = [name for name, needed in self._needed.items() if name in sizes and not needed.fits(sizes[name])]
        own = any(file.manifest is not None for file in self.files) or self._has_own_codecs()
        return Contents(
            location.given,
            Format.STREAMXF if own else Format.DCP,
            self.entries,
            sizes,
            packages,
            tuple(file.manifest.save_id for file in self.files if file.manifest is not None),
            tuple(recipients),
            tuple(signers),
            (*self._notes(bool(signers)), *_file_notes(missing, wrong, self._beside(listed))),
            incomplete=(*missing, *wrong),
        )

    def _has_own_codecs(self) -> bool:
        chains = {part.chain for entry in self.entries.values() for part in entry.parts}
        return any(text.startswith(_OWN) for chain in chains for text in chain)

    def _envelopes(self) -> list[Envelope]:
        texts: dict[str, None] = {}
        for file in self.files:
            if file.manifest is not None and file.manifest.key is not None:
                texts[file.manifest.key] = None
        for descriptors in self.descriptors:
            texts.update((text, None) for text in descriptors if text.startswith(f"{ENCRYPT}/1#"))
        return [Envelope.parse(key_fragment(text)) for text in texts]

    @cached_property
    def _needed(self) -> dict[str, _Needed]:
        """The files that the metadata names, itself among them."""
        named = {file.name: _Needed(0, False) for file in self.files}
        for file in self.files:
            facts = file.manifest.files if file.manifest is not None else {}
            named |= {name: _Needed(each.size, True) for name, each in facts.items()}
        for entry in self.entries.values():
            for part in entry.parts:
                known = named.get(part.file)
                if known is None or (not known.exact and known.size < part.start + part.stored_bytes):
                    named[part.file] = _Needed(part.start + part.stored_bytes, False)
        return named

    def _sizes(self, location: Location, listed: Mapping[str, int | None]) -> dict[str, int]:
        """Those of the files that are there."""
        sizes: dict[str, int] = {}
        for name in self._needed:
            size = listed.get(name)
            if size is None:
                with suppress(FileNotFoundError):
                    size = location.size(name)
            if size is not None:
                sizes[name] = size
        return sizes

    def _beside(self, listed: Mapping[str, int | None]) -> list[str]:
        return [name for name in listed if name not in self._needed and made_by_writers(name)]

    def _notes(self, signed: bool) -> list[str]:
        notes = []
        if not all(file.authenticated for file in self.files):
            notes.append("It is encrypted, and nobody has vouched for what its metadata says here: that needs a key.")
        if signed:
            notes.append("The signatures were not checked.")
        if not any(file.manifest is not None for file in self.files):
            notes.append("Its metadata names no versions, and nothing shows whether it was damaged or altered.")
        if self.files[0].rank is not None:
            notes.append(
                f"It was saved without collectives: {many(len(self.files), 'rank')} with metadata of "
                f"{'their' if len(self.files) > 1 else 'its'} own."
            )
        if self.copies:
            notes.append(
                f"{many(self.copies, 'item')} of a name that lower ranks use, too: the rank stands behind these names."
            )
        return notes


def _file_notes(missing: Sequence[str], wrong: Sequence[str], beside: Sequence[str]) -> Iterator[str]:
    if missing:
        yield (
            f"{many(len(missing), 'data file')} that the metadata names, such as {missing[0]}, "
            f"{'are' if len(missing) > 1 else 'is'} not there."
        )
    if wrong:
        yield (
            f"{many(len(wrong), 'data file')}, such as {wrong[0]}, {'have' if len(wrong) > 1 else 'has'} another size "
            "than the metadata says."
        )
    if beside:
        yield (
            f"{many(len(beside), 'file')} of other saves, such as {min(beside)}, "
            f"{'lie' if len(beside) > 1 else 'lies'} beside it; `streamxf clean` removes what is left over."
        )


def _described(
    metadata: Metadata, number: int, seen: dict[tuple[str, ...], None]
) -> Iterable[tuple[Entry, tuple[Stored, ...]]]:
    places = metadata.storage_data or {}
    for name, item in metadata.state_dict_metadata.items():
        if not isinstance(item, TensorStorageMetadata):
            index = MetadataIndex(name)
            yield Entry(name, None, (), None, (_part((), (), places[index], seen),)), (Stored(number, index),)
            continue
        dtype, shape = item.properties.dtype, tuple(item.size)
        parts, stored = [], []
        for chunk in item.chunks:
            index = MetadataIndex(name, chunk.offsets)
            parts.append(_part(tuple(chunk.offsets), tuple(chunk.sizes), places[index], seen))
            stored.append(Stored(number, index))
        raw = math.prod(shape) * dtype.itemsize
        yield Entry(name, str(dtype).removeprefix("torch."), shape, raw, tuple(parts)), tuple(stored)


def _part(offsets: tuple[int, ...], shape: tuple[int, ...], place: Any, seen: dict[tuple[str, ...], None]) -> Part:
    descriptors = tuple(place.transform_descriptors or ())
    seen[descriptors] = None
    return Part(offsets, shape, place.relative_path, place.offset, place.length, _chain(descriptors))


@lru_cache(256)
def _chain(descriptors: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text.partition("#")[0] for text in reversed(descriptors))


_Each = tuple[int | None, Entry, tuple[Stored, ...]]


def _merged(each: list[_Each]) -> list[_Each]:
    """What ranks have under one name, as few entries as that makes: shards of one tensor become one."""
    rank, first, _ = each[0]
    alike = all(_may_join(first, entry) for _, entry, _ in each)
    if len(each) == 1 or (alike and _apart([entry for _, entry, _ in each])):
        parts = tuple(part for _, entry, _ in each for part in entry.parts)
        return [(rank, replace(first, parts=parts), tuple(index for _, _, stored in each for index in stored))]
    levels: list[_Each] = []
    seen: Counter[tuple[int, ...]] = Counter()  # shards that were there before
    for rank, entry, stored in each:
        level = max(seen[part.offsets] for part in entry.parts)
        seen.update(part.offsets for part in entry.parts)
        while level < len(levels):
            lowest, other, others = levels[level]
            if _may_join(other, entry) and _apart([other, entry]):
                levels[level] = lowest, replace(other, parts=other.parts + entry.parts), others + stored
                break
            level += 1
        else:
            levels.append((rank, entry, stored))
    return levels


def _may_join(one: Entry, other: Entry) -> bool:
    return one.is_tensor and (one.dtype, one.shape) == (other.dtype, other.shape)


def _apart(entries: Sequence[Entry]) -> bool:
    try:
        check_apart(entries[0].shape, [(part.offsets, part.shape) for entry in entries for part in entry.parts])
    except MetadataError:
        return False
    return True


def _free(label: str, taken: Mapping[str, Any]) -> str:
    while label in taken:
        label += "'"
    return label
