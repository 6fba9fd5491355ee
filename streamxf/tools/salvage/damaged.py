"""`DamagedCheckpoint`: what metadata or data files tell of a checkpoint, read so that damage stops nothing else.

Where no metadata can be used, `rebuild` makes it of data files alone. Containers of streamxf's writer say themselves
which item they hold, which part of it, and who wrote them. What nothing says is which processes saved together, so the
caller is asked; and which items stood where a header is damaged.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Self

from streamxf import errors
from streamxf.buffers import Scratch
from streamxf.cached import cached_property
from streamxf.codecs.encrypt import Encrypt
from streamxf.format.items import Chunk, ObjectItem, Place
from streamxf.keys import KeyRing
from streamxf.places import GLOBAL, Storage, made_by_saves, metadata_among, rank_of
from streamxf.reading import (
    Access,
    Blocks,
    Budget,
    Item,
    ItemOpener,
    ItemPart,
    KeySet,
    Kind,
    Metadata,
    Path,
    Progress,
    Scan,
    Shares,
    StoredFile,
    StreamReader,
    TensorItem,
    read_metadata,
)
from streamxf.tools.damage import UNKNOWN_RANKS, Damage, is_unread
from streamxf.tools.nesting import MAX_LISTS, list_lengths
from streamxf.tools.verify.report import WITHOUT_CRC
from streamxf.wording import many, some

Copy = tuple[ItemOpener, ItemPart]
"""One of the copies that there are of an object or a shard, and what reads the items of its metadata."""

_KNOWN = re.compile(
    r"data\.pkl|data/[0-9]+|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id", re.ASCII
)
_WITHOUT = (
    "`streamxf salvage --without-metadata` looks for the items in the data files themselves; read what that cannot "
    "check, first"
)
_FOREIGN = "none of the data files that the metadata names is here: it is of another save, or its own files were lost"


class DamagedCheckpoint:
    """What is left of a checkpoint, and a list of what is not; a context manager, which closes its files.

    Every check of a reader holds but one: a file whose size is not the index's is read all the same, since each item
    is bound to its place and has its own CRCs or tags.

    - `metadata`: what could be read; it has no name if it was made of what the data files say.
    - `stored`: items by name, with the shards that any rank has.
    - `damaged`: what is known to be lost already.
    - `unchecked`: what cannot be checked, in words.
    - `paths`: of items, in the nested state dict.
    """

    def __init__(self, storage: Storage, access: Access, metadata: Sequence[Metadata], budget: Budget) -> None:
        self.storage, self.access, self.metadata, self.budget = storage, access, metadata, budget
        self.paths: dict[str, Path] = {}
        self.damaged: list[Damage] = []
        self.unchecked: list[str] = []
        self.shares = Shares(None, {})
        self._files = storage.open_files()
        self._openers = [ItemOpener(each, access, budget, partial(self._open_file, each)) for each in metadata]
        self.stored = self._united()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def _united(self) -> dict[str, Item]:
        found: dict[str, list[Item]] = {}
        refused: set[str] = set()
        for metadata in self.metadata:
            if metadata.index is None and metadata.name:
                self.unchecked.append(
                    f"the metadata {metadata.name} has no digest, since streamxf's writer did not make it: names, "
                    "shapes and places of the items are used as they are"
                )
                refused |= self._overlaps(metadata)
                bare = sum(any(part.kind is Kind.TENSOR for part in ItemPart.of(item)) for item in metadata.each())
                self.unchecked += [WITHOUT_CRC[1].format(many(bare, "tensor"))] if bare else []
            for item in metadata.each():
                found.setdefault(item.name, []).append(item)
                if item.path is not None:
                    self.paths[item.name] = item.path
        kept = ((name, items) for name, items in found.items() if name not in refused)
        made = {name: TensorItem.merged(items) if len(items) > 1 else items[0] for name, items in kept}
        for name in (name for name, item in made.items() if item is None):
            error = errors.MetadataError("the metadata of two ranks contradict each other about it: choose one (rank)")
            self.damaged.append(Damage.of(error, name))
        return {name: item for name, item in made.items() if item is not None}

    @property
    def first(self) -> Metadata:
        """The first metadata, of those that have an index if any has."""
        return min(self.metadata, key=lambda each: each.index is None)

    def copy_of(self, name: str, in_one_piece: bool) -> Item:
        """An item as it is to be saved again."""
        item = replace(self.stored[name], path=self.paths.get(name))
        if not isinstance(item, TensorItem) or not in_one_piece:
            return item
        first = item.places[0] if item.chunks else Place("", 0, 0, ())
        return replace(item, chunks=(Chunk((0,) * len(item.shape), item.shape, first, False),))

    def copies(self, item: Item, chunk: Chunk | None) -> Sequence[Copy]:
        if len(self._openers) == 1:
            return [(self._openers[0], ItemPart(item, chunk))]
        return self._copies[_key(item.name, chunk)]

    @cached_property
    def _copies(self) -> dict[Hashable, list[Copy]]:
        found: dict[Hashable, list[Copy]] = {}
        for opener in self._openers:
            for wanted in chain.from_iterable(map(ItemPart.of, opener.metadata.each())):
                found.setdefault(_key(wanted.item.name, wanted.chunk), []).append((opener, wanted))
        return found

    def expect(self, names: Collection[str], progress: Progress | None) -> None:
        """Have `progress` told of the stored bytes of these items, as they are read."""
        known = [self.stored] if len(self.metadata) == 1 else [each.items for each in self.metadata]
        items = (each[name] for each in known for name in names if name in each)
        self.shares = Shares(progress, {place[:2]: place.size for item in items for place in item.places})

    def _overlaps(self, metadata: Metadata) -> set[str]:
        """Items that share bytes of a file: one of the places is damaged, and nothing vouches for either."""
        found: set[str] = set()
        places = sorted((*place[:3], item.name) for item in metadata.items.values() for place in item.places)
        at, reach, last = "", 0, ""
        for file, begin, size, name in places:
            if file == at and begin < reach:
                error = errors.MetadataError("the metadata gives two items the same bytes of a file: it is damaged")
                self.damaged += [Damage.of(error, one, self.storage.label(file)) for one in (name, last)]
                found |= {name, last}
            if file != at or begin + size > reach:
                at, reach, last = file, begin + size, name
        return found

    def stream(self, copy: Copy) -> Blocks:
        """The stream of a copy, with all checks; what has no codec is compared with its CRCs, if there are any."""
        opener, wanted = copy
        place = wanted.place
        file = self._open_file(opener.metadata, place.file)
        share = self.shares.begin(place[:2])
        stored = file.counted(share.advance).slice(place.at, place.size)
        blocks = opener.blocks(stored, wanted)
        if place.crcs is not None or wanted.kind is Kind.TENSOR or blocks.header is not None:
            return blocks
        self.budget.spend(blocks.size, "the item")
        blocks = opener.blocks(stored.read_whole(Scratch()), wanted)  # what is compared is what is loaded
        _check_bare(StreamReader(blocks).read(), self.access)
        return blocks

    def _open_file(self, metadata: Metadata, name: str) -> StoredFile:
        try:
            return self._files[name]
        except FileNotFoundError as error:
            raise metadata.no_file(self.storage, name) from error


def _key(name: str, chunk: Chunk | None) -> Hashable:
    return name if chunk is None else (name, *chunk[:2])


def _check_bare(data: bytes, access: Access) -> None:
    """Compare what was stored without a codec, all of it, with its CRC-32.

    A record under a name that torch does not write is refused: torch does without a record whose name is damaged.
    """
    archive = access.objects.check_records(io.BytesIO(data), len(data))
    if archive is None:
        raise errors.ContainerError(
            "the item was stored without a codec and without CRCs (torch.serialization.set_crc32_options), so "
            "damage to it cannot be detected. dcp.load reads it as it is"
        )
    for name in archive.sizes:
        if not _KNOWN.fullmatch(name):
            raise errors.MetadataError(f"its record {name!r:.80} has a name that torch.save never uses: it is damaged")


def open_damaged(
    storage: Storage,
    access: Access,
    rank: int | None,
    merge_ranks: bool,
    without_metadata: bool | Collection[str],
    progress: Progress | None,
) -> DamagedCheckpoint:
    """What there is of a checkpoint; to be closed. Arguments and errors are those of `salvage`."""
    if access.expected_saves is not None and without_metadata:
        raise errors.ParameterError(
            "without_metadata cannot find out which save it is, so expect_save_id means nothing"
        )
    if isinstance(without_metadata, str):
        raise errors.ParameterError("without_metadata= is True, or a list of writer ids")
    if not storage.is_folder():
        raise errors.UnsupportedError("this is a file, and not a checkpoint's folder", file=storage.label())
    names = storage.names()
    read: list[Metadata] = []
    failures: list[errors.StreamxfError | OSError] = []
    files = metadata_among(names)
    ranks = [rank_of(name) for name in files]
    if rank is not None and rank not in ranks:
        there = "has metadata of all ranks together" if files == [GLOBAL] else f"has that of the ranks {ranks!s:.200}"
        raise errors.ParameterError(f"rank={rank}: the checkpoint {there}")
    for name in files if rank is None else [files[ranks.index(rank)]]:
        try:
            metadata = _read(storage, access, name)
            if without_metadata and _is_of_others(metadata, names, without_metadata):
                raise errors.MetadataError(_FOREIGN, file=storage.label(name))
            read.append(metadata)
        except (errors.StreamxfError, OSError) as error:
            stops = errors.is_exhausted(error) or isinstance(error, errors.StaleError)
            if stops or (is_unread(error) and not without_metadata):
                raise
            failures.append(error)
    shown = all(each.index is not None and each.index.group is not None for each in read)
    mixed = "".join(Metadata.mixed(read))
    if len(read) > 1 and (mixed or not shown) and not merge_ranks and access.expected_saves is None:
        unknown = "nothing shows that all of it is of one save: after a crash some may be older"
        raise errors.PolicyError(
            f"each rank has its own metadata here, and {mixed or unknown}. Choose one of them (rank), name the save "
            "ids of all ranks (expect_save_id), or say that they belong together (merge_ranks)",
            file=storage.label(),
        )
    if not read and not (without_metadata and any(map(writer_of, names))):
        raise storage.doubted(_nothing(storage, failures[0] if failures else None, names, bool(len(access.keys))))
    if read:
        used = {file for each in read for file in each.named()}
        checkpoint = DamagedCheckpoint(storage, access, read, access.budget(storage.held_by(used, names)))
        if any(_is_of_others(each, names) for each in read):
            checkpoint.unchecked.append(f"the data files here: {_FOREIGN}. {_WITHOUT}")
    elif access.trust and not len(access.keys):
        raise errors.PolicyError(
            "signers are trusted, and their signatures stand in the metadata, without which nothing can be of them: "
            "leave trust out if you vouch for the data files",
            file=storage.label(),
        )
    else:
        metadata, damaged, budget = rebuild(storage, access, names, without_metadata, progress)
        checkpoint = DamagedCheckpoint(storage, access, [metadata], budget)
        checkpoint.damaged += damaged
        checkpoint.unchecked.append(
            "no metadata could be used: that no data file of the save is missing, and that all files are of one save, "
            "is what you vouched for"
        )
    checkpoint.damaged += map(Damage.of, failures)
    if list_lengths(checkpoint.paths.values()) > MAX_LISTS + 16 * len(checkpoint.paths):  # which would take memory
        checkpoint.paths.clear()
        checkpoint.unchecked.append(
            "the metadata describes longer lists than its items fill, so the state dict is flat"
        )
    save_ids = frozenset(each.index.save_id for each in read if each.index is not None)
    if read and GLOBAL not in names and rank is None and save_ids != access.expected_saves:
        lacking = map(partial(errors.MetadataError, file=storage.label()), Metadata.lacking(read, ranks))
        checkpoint.damaged += map(Damage.of, lacking)
        if mixed or not shown:
            checkpoint.unchecked.append(UNKNOWN_RANKS)
        others = sorted(name for name in names if writer_of(name) and name not in used)
        if others and not failures:
            checkpoint.unchecked.append(
                f"if this is the newest save: no metadata names {many(len(others), 'data file')} here, {others[0]} "
                "among them; saves that failed may have left them, or a newer one whose .metadata is lost"
            )
    return checkpoint


def _read(storage: Storage, access: Access, name: str) -> Metadata:
    full = storage.label(name)
    try:
        found = read_metadata(storage, name, access)
        found.check()
    except OSError as error:
        if errors.is_exhausted(error) or is_unread(error):
            raise
        text = f"the metadata cannot be read: {type(error).__name__}: {error}"
        raise errors.MetadataError(text, file=full) from error
    if found.index is None and any(map(writer_of, found.named())):
        text = "the metadata has lost its index, so nothing vouches for it: the file was cut or altered"
        raise errors.MetadataError(text, file=full)
    return found


def _is_of_others(metadata: Metadata, names: Collection[str], writers: bool | Collection[str] = True) -> bool:
    """Whether metadata names none of the data files of streamxf's writers here, nor, if given, of these `writers`."""
    files, there = {*metadata.named()}, {*filter(writer_of, names)}
    if not isinstance(writers, bool):
        names = there = {name for name in there if writer_of(name) in writers}
    return bool(files) and bool(there) and files.isdisjoint(names)


def _nothing(
    storage: Storage, failed: errors.StreamxfError | OSError | None, names: Mapping[str, object], keyed: bool
) -> Exception:
    """The error where no metadata can be used."""
    path, own = storage.label(), any(map(writer_of, names))
    if failed is not None and (not own or isinstance(failed, OSError)):
        return failed
    if not own:
        if any(name.endswith(".distcp") and made_by_saves(name) for name in names):
            return errors.MetadataError(
                "there is no metadata, and the data files are not of streamxf's writers: they do not say what they "
                "hold. Restore .metadata from a copy",
                file=path,
            )
        return Metadata.absent(storage, names)
    if failed is None:
        if (text := Metadata.unfinished(names)) is not None:
            return errors.NoCheckpointError(text, file=path)
        failed = errors.MetadataError("the checkpoint has no metadata", file=path)
    if isinstance(failed, errors.IdentityError | errors.KeyServiceError) or (
        isinstance(failed, errors.KeyMissingError) and not keyed
    ):
        return failed  # which says nothing about damage
    advice = _WITHOUT
    if isinstance(failed, errors.KeyMissingError | errors.WrongKeyError | errors.PolicyError):
        advice = f"If that cannot be, .metadata is damaged: {_WITHOUT}"
    made = type(failed)(f"{failed.message}. {advice}", file=failed.file, item=failed.item, block=failed.block)
    made.__cause__ = failed
    return made


_NAMED = re.compile(rb"__[0-9]{1,10}_[0-9]{1,10}_[0-9a-f]{32}\.distcp")
_LONGEST = 2**17  # bytes; a wrapped data key has at most 32 KiB
_WINDOW = 2**20
_MAX_REMAINS = 4 * 2**30
_MAX_WHOLE = 2**30  # of .metadata
_TRIED = 2**12
_UNDESCRIBED = "are described by no container, since they were saved raw or the container's header is damaged"
_SHOWN = 64


def rebuild(
    storage: Storage,
    access: Access,
    files: Mapping[str, int | None],
    chosen: bool | Collection[str],
    progress: Progress | None = None,
) -> tuple[Metadata, list[Damage], Budget]:
    """Find all items in the data files of one save, among `files`, which are all of the folder with their sizes.
    `chosen` are the writer ids that belong to the save; True if what is left of the metadata shows it.

    Returns what was found, as metadata without a name; what was not; and what may be made of the files. Raises
    PolicyError if nothing shows which files belong together; MetadataError, KeyMissingError, WrongKeyError if there is
    nothing, or nothing that can be decrypted.
    """
    save, missing = _one_save([*filter(writer_of, files)], _metadata(storage), chosen)
    budget = access.budget(storage.held_by(save, files))
    reader = _Files(storage, access, _WrappedKeys(_wrapped_in(storage, files), access.keys), budget)
    for name in missing:
        reader.gap(errors.MetadataError("the file is missing, and its contents are unknown"), name)
    shares = Shares(progress, {name: files[name] or 0 for name in save})
    for name in sorted(save):
        reader.read(name, shares)
    shares.finish()
    if reader.unknown and not reader.containers:
        raise errors.MetadataError(
            "no metadata can be used, and the data files have no containers: items that were saved without a codec, or "
            "raw, do not say what they are. Restore .metadata from a copy"
        )
    return Metadata("", None, reader.items(), None), reader.damaged, budget


class _Files:
    """Reads data files, container by container; `unknown` says whether one begins as none begins."""

    def __init__(self, storage: Storage, access: Access, keys: _WrappedKeys, budget: Budget) -> None:
        self.damaged: list[Damage] = []
        self.containers = 0
        self.unknown = False
        self._storage = storage
        self._keys = keys
        self._times, self._budget = budget.times, budget.renewed()  # of which what is found is copied
        self._opener = ItemOpener(Metadata("", None, {}, None), access)
        self._by_writer: dict[str, str] = {}
        self._found: dict[str, list[TensorItem | ObjectItem]] = {}

    def gap(self, error: Exception, file: str) -> None:
        """Note a piece of a file of which nothing says what it held."""
        self.damaged.append(Damage.of(error, None, self._storage.label(file)))

    def _lose(self, name: str, at: int, size: int, why: str = "are damaged") -> None:
        self.gap(errors.MetadataError(f"{size} bytes at {at} {why}, and their contents are unknown"), name)

    def read(self, name: str, shares: Shares) -> None:
        """Find everything in a file. Raises StreamxfError if it is encrypted, and no key opens what is left."""
        found: list[Any] = []  # up to where it cannot be read
        try:
            with self._storage.open(name) as opened:
                file = opened.counted(shares.begin(name).advance)
                size = file.most(self._times)
                if size < file.size:  # a hole has no end, and nothing in it
                    self._lose(name, size, file.size - size)
                whole = file.slice(0, size)
                scan = Scan(whole, bytes.fromhex(writer_of(name)))
                self.unknown |= scan.is_foreign()
                found += scan
        except (errors.StreamxfError, OSError) as error:
            if errors.is_exhausted(error):
                raise
            self.gap(error, name)
        for each in found:
            if not each.sure:
                self._lose(name, each.at, each.size, *(() if each.header is not None else (_UNDESCRIBED,)))
            if each.header is not None:
                self.containers += 1
                self._take(name, each)

    def items(self) -> dict[str, Item]:
        """Items out of what was found."""
        made: dict[str, Item] = {}
        for name, found in self._found.items():
            same = {(type(one), one.dtype, one.shape) if isinstance(one, TensorItem) else (type(one),) for one in found}
            chunks = sorted(chunk for one in found if isinstance(one, TensorItem) for chunk in one.chunks)
            if len(same) > 1 or len(found) > max(1, len({chunk.offset for chunk in chunks})):
                wrong = "it is there twice, or its chunks are of several kinds: they cannot all be of one save"
                self.damaged.append(Damage.of(errors.IdentityError(wrong), name))
            else:
                made[name] = replace(found[0], chunks=tuple(chunks)) if isinstance(found[0], TensorItem) else found[0]
        return made

    def _take(self, name: str, found: Any) -> None:
        header, fragment = found.header, ""
        assert header is not None
        assert header.identity is not None
        _, kind, item, dtype, offset, shape, whole, _ = header.identity
        if header.keyed:
            self._keys.check()
            try:
                fragment = self._fragment(writer_of(name), found)
            except errors.AuthenticationError as error:
                at = offset if kind is not Kind.OBJECT else None
                self.damaged.append(Damage.of(error, item, self._storage.label(name), at))
                return
        place = Place(name, found.at, found.size, _descriptors(header.chain, fragment))
        if kind is Kind.VALUE:
            self._take_values(place)
            return
        chunk = Chunk(offset, shape, place, kind is Kind.FRAMED)
        made = ObjectItem(item, place) if kind is Kind.OBJECT else TensorItem(item, dtype, whole, (chunk,))
        self._found.setdefault(item, []).append(made)

    def _take_values(self, place: Place) -> None:
        """Find the values in a container, as far as its stream is as it must be."""
        try:
            with self._storage.open(place.file) as file:
                wanted = ItemPart(ObjectItem("", place._replace(span=(0, 0))))
                stream = self._opener.values(file.slice(place.at, place.size), wanted)
            for name, span in StreamReader(stream).values(self._budget):
                self._found.setdefault(name, []).append(ObjectItem(name, place._replace(span=span)))
        except (errors.StreamxfError, OSError) as error:
            if errors.is_exhausted(error):
                raise
            self.gap(error, place.file)

    def _fragment(self, writer: str, found: Any) -> str:
        """The wrapped data key under which a container of this writer is sealed."""
        header, known = found.header, self._by_writer.get(writer)
        if known is not None:
            return known
        assert header is not None
        for text in self._keys:
            with suppress(errors.AuthenticationError):  # of another writer's data key
                self._opener.chain(header, Place("", 0, 0, _descriptors(header.chain, text))).unseal(header)
                self._by_writer[writer] = text
                return text
        raise errors.AuthenticationError("none of the data keys that are left belongs to the process that wrote it")


def _descriptors(chain: tuple[str, ...], fragment: str) -> tuple[str, ...]:
    """As the metadata of other writers has them."""
    return tuple(
        f"{text}#{fragment}" if text.startswith(f"{Encrypt.name}/") else text.removeprefix("!") for text in chain
    )


class _WrappedKeys:
    """The wrapped data keys among `texts` that `keys` open: one that does not belong to its id does not count. They are
    tried when they are asked for, and no sooner: each may be a question to a service.
    """

    def __init__(self, texts: Iterator[str], keys: KeyRing) -> None:
        self._texts = texts
        self._keys = keys
        self._opened: list[str] = []
        self._reason: errors.StreamxfError | None = None

    def __iter__(self) -> Iterator[str]:
        yield from self._opened
        for text in self._texts:
            try:
                self._keys.unwrap_unvouched(text)
            except errors.KeyServiceError:
                raise
            except errors.DescriptorError:
                continue  # a piece of one
            except errors.StreamxfError as error:
                # WrongKeyError is what a damaged copy of a good one raises
                if self._reason is None or isinstance(self._reason, errors.WrongKeyError):
                    self._reason = error
            else:
                self._opened.append(text)
                yield text

    def check(self) -> None:
        """Raise StreamxfError if none opens: the first reason, or that there is none."""
        if next(iter(self), None) is None:
            raise self._reason or errors.MetadataError(
                "the checkpoint is encrypted, and its wrapped data key was in .metadata alone: nothing is left of "
                "it, so the items cannot be decrypted. Restore .metadata from a copy"
            )


def _wrapped_in(storage: Storage, files: Collection[str]) -> Iterator[str]:
    """What looks like a wrapped data key in what is left of metadata; no more is read than a few could have."""
    seen: set[str] = set()
    left = _MAX_REMAINS
    for name in sorted((name for name in files if "metadata" in name), key=lambda name: (name != GLOBAL, name)):
        for window in _windows(storage, name):
            left -= len(window)
            if left < 0:
                return
            for found in KeySet.wrapped_in(window):
                if len(seen) < _TRIED and found not in seen:
                    seen.add(found)
                    yield found


def _windows(storage: Storage, name: str) -> Iterator[bytes]:
    """What is left of a metadata file, in pieces that share their ends, so that what is sought stands in one whole."""
    try:
        with storage.open(name) as file:
            size = file.most()
            for at in range(0, size, _WINDOW):
                yield file.read(at, min(_WINDOW + _LONGEST, size - at))
    except (errors.StreamxfError, OSError) as error:
        if errors.is_exhausted(error):
            raise


def _one_save(present: Collection[str], remains: bytes, chosen: bool | Collection[str]) -> tuple[list[str], list[str]]:
    """The files of one save among those of streamxf's writers, and those of it that are known to be missing.

    Each process has an id of its own in each save, and only what remains of ``.metadata`` may say which of them belong
    together: its index lists them all. It is not believed for anything else, and no damage makes up a random id.
    """
    there = set(map(writer_of, present))
    listed = {*Metadata.named_in(remains)}
    if not all(map(writer_of, listed)):
        listed.clear()
    named = listed or {name.decode("ascii") for name in _NAMED.findall(remains)}
    if chosen is not True:
        ids = set(chosen) if chosen else set()
        if unknown := sorted(ids - there):
            raise errors.ParameterError(f"without_metadata=: no data file here has the writer id {unknown[0]!r:.80}")
    elif not listed.isdisjoint(present):
        ids = set(map(writer_of, listed))
    elif named == set(present) or len(there) <= 1:
        ids = there
    else:
        by_id: dict[str, list[str]] = {}
        for name in sorted(present):
            by_id.setdefault(writer_of(name), []).append(name.split("_")[2])
        texts = [f"{writer} of rank {ranks[0]} ({many(len(ranks), 'file')})" for writer, ranks in by_id.items()]
        raise errors.PolicyError(
            "there are data files of several processes, and not enough is left of .metadata to tell which of them are "
            "of one save: a mixture would look whole. Name the writer ids that belong together, "
            f"without_metadata=[...] or --writer-id. There are {some(texts, most=_SHOWN)}"
        )
    missing = sorted(name for name in named if writer_of(name) in ids and name not in present)
    return [name for name in present if writer_of(name) in ids], missing


def _metadata(storage: Storage) -> bytes:
    """What is left of the metadata of all ranks."""
    try:
        with storage.open(GLOBAL) as file:
            size = min(file.size, _MAX_WHOLE)
            file.check_whole(size, errors.MetadataError)
            return file.read(0, size)
    except (errors.StreamxfError, OSError) as error:
        if errors.is_exhausted(error):
            raise
        return b""


def writer_of(name: str) -> str:
    """The writer id in the name of a data file of streamxf's writers; "" for others."""
    match = made_by_saves(name) if name.endswith(".distcp") else None
    return match.groupdict().get("writer", "") if match is not None else ""
