"""`Catalog`: what a checkpoint holds by its metadata, or by what its data files say of themselves, and who reads it."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from streamxf.checkpoint.access import UNKNOWN_RANKS, Access
from streamxf.checkpoint.metadata import GLOBAL, Metadata, metadata_name, rank_of, read_metadata
from streamxf.checkpoint.nesting import MAX_LISTS, list_lengths
from streamxf.checkpoint.opening import Wanted
from streamxf.checkpoint.publish.names import OWN_FILE, TORCH_FILE
from streamxf.checkpoint.storage import Storage, storage_errors
from streamxf.errors import (
    IdentityError,
    KeyMissingError,
    KeyServiceError,
    MetadataError,
    ParameterError,
    PolicyError,
    StreamxfError,
    UnsupportedError,
    WrongKeyError,
)
from streamxf.format.items import Item, ObjectItem, Path, TensorItem
from streamxf.objects.policy import Objects
from streamxf.progress import Progress
from streamxf.proportion import Budget
from streamxf.tools.salvage.rebuild import rebuild
from streamxf.tools.salvage.remains import Remains
from streamxf.tools.salvage.result import Lost
from streamxf.wording import many

_UNCHECKED_METADATA = (
    "the metadata {} has no digest, since streamxf's writer did not make it: names, shapes and places of the items are "
    "used as they are"
)
_UNLIKELY_LISTS = "the metadata describes longer lists than its items fill, so the state dict is flat"
_WITHOUT = (
    "`streamxf salvage --without-metadata` looks for the items in the data files themselves; read what that cannot "
    "check, first"
)
_MUTE = (
    "there is no metadata, and the data files are not of streamxf's writers: they do not say what they hold. Restore "
    ".metadata from a copy"
)
_NEWER = (
    "if this is the newest save: no metadata names {} here, {} among them; saves that failed may have left "
    "them, or a newer one whose .metadata is lost"
)


@dataclass
class Catalog:
    """All items by name, with the chunks of all ranks, their paths in the nested state dict, and the sources that read
    them; several may have a chunk. `damaged` is what is known to be lost already, and `budget` pays for the rest.
    """

    objects: Objects
    budget: Budget
    items: dict[str, Item] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    sources: list[Remains] = field(default_factory=list)
    damaged: list[Lost] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    save_ids: dict[str, str] = field(default_factory=dict)

    def add(self, source: Remains) -> None:
        """Take in what the metadata of `source` says."""
        metadata, refused = source.metadata, set()
        self.sources.append(source)
        if metadata.index is not None:
            self.save_ids[metadata.name] = metadata.index.save_id
        elif metadata.name:
            self.unchecked.append(_UNCHECKED_METADATA.format(metadata.name))
            refused = self._overlaps(source)
        for name, item in metadata.items.items():
            if item.path is not None:
                self.paths[name] = item.path
            known = self.items.get(name)
            made = item if known is None else _joined(known, item)
            if made is None and name not in refused:
                message = "the metadata of two ranks contradict each other about it: choose one (rank)"
                self.damaged.append(Lost(name, None, None, None, MetadataError.__name__, message))
            if made is None:
                refused.add(name)
            else:
                self.items[name] = made
        for name in refused:
            self.items.pop(name, None)

    def check_paths(self) -> None:
        """Forget where items stood if the lists there would take memory that the items do not explain."""
        if list_lengths(self.paths.values()) > MAX_LISTS + 16 * len(self.paths):
            self.paths.clear()
            self.unchecked.append(_UNLIKELY_LISTS)

    def copies(self, wanted: Wanted) -> Iterator[tuple[Remains, Wanted]]:
        """Who can read an object or a shard, and as what."""
        chunk = wanted.chunk
        for source in self.sources:
            item = source.items.get(wanted.item.name)
            if chunk is None and isinstance(item, ObjectItem):
                yield source, Wanted(item)
            elif chunk is not None and isinstance(item, TensorItem):
                if len(self.sources) == 1:
                    yield source, wanted
                    continue
                yield from ((source, Wanted(item, each)) for each in item.chunks if each[:2] == chunk[:2])

    def close(self) -> None:
        """Close all files."""
        for source in self.sources:
            source.close()

    def _overlaps(self, source: Remains) -> set[str]:
        """Items that share bytes of a file: of two places one is damaged, and where nothing vouches for the metadata
        nothing shows which.
        """
        found: set[str] = set()
        places = sorted((*place[:3], item.name) for item in source.items.values() for place in item.places)
        at, reach, last = "", 0, ""
        for file, begin, size, name in places:
            if file == at and begin < reach:
                for one in (name, last):
                    message = "the metadata gives two items the same bytes of a file: it is damaged"
                    self.damaged.append(Lost(one, source.full(file), None, None, MetadataError.__name__, message))
                    found.add(one)
            if file != at or begin + size > reach:
                at, reach, last = file, begin + size, name
        return found


def _joined(known: Item, item: Item) -> Item | None:
    """What two ranks have under one name; None if that contradicts itself."""
    if isinstance(known, ObjectItem) and isinstance(item, ObjectItem):
        return known
    if not isinstance(known, TensorItem) or not isinstance(item, TensorItem):
        return None
    if (known.dtype, known.shape) != (item.dtype, item.shape):
        return None
    seen = {chunk[:2] for chunk in known.chunks}
    return replace(known, chunks=known.chunks + tuple(chunk for chunk in item.chunks if chunk[:2] not in seen))


@contextmanager
def open_catalog(
    storage: Storage,
    access: Access,
    *,
    rank: int | None,
    merge_ranks: bool,
    without_metadata: bool | Collection[str],
    progress: Progress | None,
) -> Iterator[Catalog]:
    """What there is of a checkpoint, to be read in the block. Arguments and errors are those of `salvage`."""
    if access.expected_saves is not None and without_metadata:
        raise ParameterError("without_metadata cannot find out which save it is, so expect_save_id means nothing")
    if isinstance(without_metadata, str):
        raise ParameterError("without_metadata= is True, or a list of writer ids")
    with storage_errors(storage.given):
        if not storage.is_folder():
            raise UnsupportedError("this is a file, and not a checkpoint's folder", file=storage.given)
        names = storage.names()
    found: list[Metadata] = []
    damaged: list[Lost] = []
    failed: StreamxfError | None = None
    ranks = sorted(each for name in names if (each := rank_of(name)) is not None)
    for one in _candidates(GLOBAL in names, ranks, rank):
        try:
            found.append(_read(storage, access, metadata_name(one)))
        except StreamxfError as error:
            failed = failed or error
            damaged.append(Lost.of(error))
    if len(found) > 1 and not merge_ranks and access.expected_saves is None:
        raise PolicyError(
            "each rank has metadata of its own here, and nothing says that all of them are of one save: after a crash "
            "some may be older. Choose one of them (rank), name the save ids of all ranks (expect_save_id), "
            "or say that they belong together (merge_ranks)",
            file=storage.given,
        )
    if not found and not (without_metadata and any(map(OWN_FILE.fullmatch, names))):
        raise _nothing(storage.given, failed, names, bool(len(access.keys)))
    if found:
        files = {place.file for each in found for item in each.items.values() for place in item.places}
        catalog = Catalog(access.objects, access.budget(storage.held_by(files, names)))
        catalog.damaged += damaged
    else:
        rebuilt = rebuild(storage, access, names, without_metadata, progress)
        found = [rebuilt.metadata]
        catalog = Catalog(access.objects, rebuilt.budget)
        catalog.damaged += damaged + rebuilt.damaged
        catalog.unchecked.append(rebuilt.unchecked)
    for metadata in found:
        catalog.add(Remains(storage, access, metadata, catalog.budget.renewed()))
    catalog.check_paths()
    complete = frozenset(catalog.save_ids.values()) == access.expected_saves
    if found[0].name and GLOBAL not in names and rank is None and not complete:
        catalog.unchecked.append(UNKNOWN_RANKS)
        others = sorted(name for name in names if OWN_FILE.fullmatch(name) and name not in files)
        if others and not damaged:
            catalog.unchecked.append(_NEWER.format(many(len(others), "data file"), others[0]))
    try:
        yield catalog
    finally:
        catalog.close()


def _candidates(has_global: bool, ranks: list[int], rank: int | None) -> Sequence[int | None]:
    """Whose metadata to use; None for that of all."""
    if rank is None:
        return [None] if has_global else ranks
    if has_global or rank not in ranks:
        there = "has metadata of all ranks together" if has_global else f"has that of the ranks {ranks!s:.200}"
        raise ParameterError(f"rank={rank}: the checkpoint {there}")
    return [rank]


def _read(storage: Storage, access: Access, name: str) -> Metadata:
    full = storage.full(name)
    try:
        with storage_errors(full):
            found = read_metadata(storage, name, access)
    except OSError as error:
        raise MetadataError(f"the metadata cannot be read: {type(error).__name__}: {error}", file=full) from error
    own = any(OWN_FILE.fullmatch(place.file) for item in found.items.values() for place in item.places)
    if own and found.index is None:
        raise MetadataError(
            "the metadata has lost its index, so nothing vouches for it: the file was cut or altered", file=full
        )
    return found


def _nothing(path: str, failed: StreamxfError | None, names: Mapping[str, object], keyed: bool) -> Exception:
    """The error where no metadata can be used."""
    if not any(map(OWN_FILE.fullmatch, names)):
        if failed is not None:
            return failed
        if any(map(TORCH_FILE.fullmatch, names)):
            return MetadataError(_MUTE, file=path)
        return FileNotFoundError(errno.ENOENT, "there is no checkpoint", path)
    if failed is None:
        failed = MetadataError("the checkpoint has no metadata", file=path)
    if isinstance(failed, IdentityError | KeyServiceError) or (isinstance(failed, KeyMissingError) and not keyed):
        return failed  # which says nothing about damage
    advice = _WITHOUT
    if isinstance(failed, KeyMissingError | WrongKeyError | PolicyError):
        advice = f"If that cannot be, .metadata is damaged: {_WITHOUT}"
    made = type(failed)(f"{failed.message}. {advice}", file=failed.file, item=failed.item, block=failed.block)
    made.__cause__ = failed
    return made
