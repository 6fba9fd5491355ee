"""A metadata file read: trailer, key and vouchers first, and only then what it says; docs/format.md, "Reading"."""

from __future__ import annotations

import errno
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Literal, Self
from weakref import finalize

from streamxf import errors
from streamxf.buffers import collector_paused
from streamxf.checkpoint.access import Access, Renaming
from streamxf.checkpoint.bare import placed
from streamxf.checkpoint.pickled import pickled
from streamxf.format.digests import Digests
from streamxf.format.index import File, Index
from streamxf.format.items import Chunk, Item, TensorItem
from streamxf.format.limits import DIGEST_BYTES, MAX_METADATA, NO_RANK, TRAILER_BYTES
from streamxf.format.names import SLIP, metadata_among, rank_metadata_among, rank_of
from streamxf.format.sections import Sections, Trailer, slices
from streamxf.format.table import ItemTable
from streamxf.format.tiling import overlap
from streamxf.format.values import Nesting
from streamxf.keys import KeyRing
from streamxf.keys.envelope import DataKey, KeySet, Vouchers
from streamxf.keys.pair import VerifyKey
from streamxf.storage.reading import StoredFile
from streamxf.storage.storage import Storage
from streamxf.torchsave.unpickler import read_stock
from streamxf.wording import inside_text, many, some

_SHOWN = 8
_OF_OTHERS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_REPLACED = "the metadata was replaced while it was read: another save was published here. Start again"
OR_CHOOSE = "or name those of all ranks (expect_save_id), or choose: `streamxf salvage` (--rank, --merge-ranks)"
_OF_ANY = (".metadata", ".distcp", *_OF_OTHERS)


def _below(storage: Storage) -> list[str]:
    """The folders in a folder that hold files of checkpoints, as in that of a run."""
    with suppress(OSError):
        found = sorted(name for name in storage.folders() if name[0] != ".")
        return [name for name in found if any(file.endswith(_OF_ANY) for file in storage.child(name).names(()))]
    return []


SLIP_RANK = NO_RANK  # of a slip, which has metadata of a rank that there is not: renamed, it describes no checkpoint
_TAIL = 2**16  # bytes that are read first: all that matters of most

Mode = bool | Literal["root"]
Sharer = Callable[[StoredFile, bytes], object] | None


@dataclass(frozen=True)
class Metadata:
    """What a metadata file says.

    - `rank`: whose it is; None for that of all ranks.
    - `index`: None for a checkpoint of another writer.
    - `modules`: third-party packages that provide codecs.
    - `authenticated`: whether it was vouched for: false where it is encrypted and there are no keys, or nothing can be.
    - `wrapped`: the wrapped data key of the process that published; empty if it is not encrypted.
    - `vouchers`: as text; empty if it is neither encrypted nor signed.
    - `digest`: D of the format, what the vouchers are made for.
    - `pickled`: whether torch's own readers can read the file.
    """

    name: str
    rank: int | None
    items: Mapping[str, Item]
    index: Index | None
    modules: tuple[str, ...] = ()
    authenticated: bool = False
    wrapped: str = ""
    vouchers: str = ""
    digest: bytes = b""
    pickled: bool = True

    @property
    def files(self) -> Mapping[str, File]:
        return self.index.files if self.index is not None else {}

    @property
    def nesting(self) -> Nesting:
        """What it says of nesting, with the `extra` of its index; of another writer's, that nothing is known."""
        return Nesting() if self.index is None else Nesting(self.index.extra)

    def each(self) -> Iterable[Item]:
        """Its items one by one; faster than by their names where they are many."""
        return self.items.each() if isinstance(self.items, ItemTable) else self.items.values()

    @property
    def keys(self) -> KeySet | None:
        """For whom it is encrypted, and what vouches for it; None if it is not encrypted."""
        return KeySet.parse(self.wrapped, self.vouchers, self.digest) if self.wrapped else None

    @property
    def signers(self) -> tuple[str, ...]:
        """The ids of those who signed, which nobody has verified."""
        return Vouchers.parse(self.vouchers).signers if self.vouchers else ()

    @property
    def keyless(self) -> bool:
        """Whether it is encrypted, and was read without keys."""
        return bool(self.wrapped) and not self.authenticated

    def check(self) -> None:
        """Check all items of a large index, each of which is else checked when it is read. Raises MetadataError."""
        if self.index is not None and isinstance(self.index.items, ItemTable):
            self.index.items.check()

    def named(self) -> Iterable[str]:
        """The paths of its data files."""
        if self.index is not None:
            return self.index.files
        return {place.file for item in self.items.values() for place in item.places}

    def of_files(self, names: Iterable[str]) -> Metadata:
        """What it says of these data files, besides their items."""
        index = self.index
        if index is not None:
            files = {name: index.files[name] for name in names if name in index.files}
            index = replace(index, items={}, files=files, packages={}, extra={}, run=None)
        return replace(self, items={}, index=index)

    def with_digests(self, found: Mapping[tuple[str, int, int], bytes]) -> Index:
        """Its index for a signature: with the digests of what is stored, by file, place and size."""
        assert self.index is not None
        firsts, data = dict[tuple[str, int, int], int](), bytearray()
        for at in sorted(found):
            firsts[at] = len(data) // DIGEST_BYTES
            data += found[at]

        def numbered(part: Any) -> Any:
            place = part.place._replace(digest=firsts[part.place[:3]])
            return part._replace(place=place) if isinstance(part, Chunk) else replace(part, place=place)

        items = {
            item.name: replace(item, chunks=tuple(map(numbered, item.chunks)))
            if isinstance(item, TensorItem)
            else numbered(item)
            for item in self.each()
        }
        return replace(self.index, items=items, digests=Digests.of(bytes(data)))

    def data_key(self, wrapped: bytes, keys: KeyRing) -> DataKey:
        """The data key of a file's writer, `File.key` of which is `wrapped`; raises as `KeyRing.unwrap`."""
        published = keys.unwrap(self.wrapped)
        return published.unwrap(wrapped) if any(wrapped) else published

    @staticmethod
    def sections_in(file: StoredFile, share: Sharer = None) -> Sections | None:
        """Root and keys of a metadata file, read from later; None if it has no trailer. Raises MetadataError."""
        if not file.size:
            raise errors.MetadataError("the file is empty: it was truncated, or never written; restore it")
        end = min(file.size, _TAIL)
        file.read_ahead(file.size - end, end)
        tail = file.read(file.size - end, end)
        trailer = Trailer.parse(tail, file.size)
        if trailer is None:
            return None
        if share is not None and file.size > end:
            share(file, trailer.digest)
        if trailer.size > end:
            tail = file.read(file.size - trailer.size, trailer.size - end) + tail
        return trailer.split(tail[-trailer.size :], read=file.read)

    @staticmethod
    def named_in(remains: bytes) -> Iterable[str]:
        """The data files of all ranks in an index that can still be read, whatever its digest; none without."""
        with suppress(errors.StreamxfError):
            if trailer := Trailer.parse(remains[-TRAILER_BYTES:], len(remains)):
                parts = trailer.split(remains[-trailer.size :], read=slices(remains), intact=False)
                index = Index.parse(parts.root, parts.parts, parts.parts_size, increment=parts.increment)
                return index.files if index.rank is None else ()
        return ()

    @classmethod
    def of(cls, sections: Sections, name: str, access: Access, *, listing: Mode = False) -> Self:
        """What a metadata file says, once its keys have opened it; raises as `read_metadata`."""
        lines = sections.key_lines()
        keys = KeySet.parse(*lines, sections.digest) if lines is not None else None
        wrapped, vouchers = lines or ("", "")
        opened = not wrapped or bool(len(access.keys)) or not listing
        check_vouchers(sections, lines, access, "the checkpoint", opened)
        how = {"lazy": listing == "root", "increment": sections.increment}
        index = Index.parse(sections.root, sections.parts, sections.parts_size, **how)
        if index.keyed != bool(wrapped):
            raise errors.MetadataError("the metadata has keys exactly if its chain encrypts, and this contradicts that")
        if (index.digests is not None) != bool(keys is not None and keys.signers):
            raise errors.MetadataError(
                "digests and a signature belong together, and the metadata has only one of them: the signature was "
                "removed or added"
            )
        is_slip = name.endswith(SLIP)
        if index.rank != (SLIP_RANK if is_slip else rank_of(name)) or (index.rank == SLIP_RANK and not is_slip):
            whose = "all ranks" if index.rank is None else f"rank {index.rank}"
            raise errors.MetadataError(f"this is the metadata of {whose}: the file was renamed or copied")
        access.check_save(index.save_id)
        made = name, index.rank, index.items, index, index.modules, opened, wrapped, vouchers
        return cls(*made, sections.digest if vouchers else b"", sections.pickled)

    def stock_pickle(self, wrapped: Mapping[bytes, str], checkpoint_id: str) -> bytes:
        """That for torch's own readers, of a checkpoint with an index; arguments and errors as in `pickled`."""
        assert self.index is not None
        return pickled(self.index, wrapped, checkpoint_id)

    @staticmethod
    def unfinished(names: Collection[str]) -> str | None:
        """What a folder without metadata is, if a conversion to it was interrupted or is at work; else None."""
        if not (finished := sum(name.endswith(".distcp") and f"{name}{SLIP}" in names for name in names)):
            return None
        return (
            "there is no checkpoint here yet: a pack, transcode or salvage to this folder was interrupted, or is at "
            f"work. Finished so far: {many(finished, 'data file')}. Repeat it to resume from there and to publish the "
            "checkpoint; to give it up, delete the folder"
        )

    @staticmethod
    def absent(storage: Storage, names: Collection[str], rank: int | None = None) -> errors.MetadataError:
        """The error where a folder with these `names` has no metadata, or none of that `rank`."""
        folder = storage.label()
        if (text := Metadata.unfinished(names)) is not None:
            return errors.NoCheckpointError(text, file=folder)
        ranks = rank_metadata_among(names)
        if rank is not None and ranks:
            return errors.MetadataError(
                f"the folder has metadata of single ranks ({some(ranks, most=_SHOWN)}), and none of rank {rank}: such "
                "a checkpoint is loaded by the ranks that saved it",
                file=folder,
            )
        if any(name.endswith(".distcp") for name in names):
            return errors.MetadataError(
                "the folder has data files and no metadata at all. Either no save to it was ever published (a later "
                "save removes these files), or its .metadata was lost: then restore a copy, or see "
                "`streamxf salvage --without-metadata`",
                file=folder,
            )
        text = "there is no checkpoint in the folder, or no such folder"
        if below := _below(storage):
            return errors.NoCheckpointError(inside_text(below), file=folder)
        if others := sorted(name for name in names if name.endswith(_OF_OTHERS)):
            text = f"the folder is not a checkpoint of DCP; it has files of other formats: {some(others)}"
        return errors.NoCheckpointError(text, file=folder)

    def no_file(self, storage: Storage, path: str) -> errors.StreamxfError:
        """The error where a data file is missing: ReplacedError if that is since another save was published here."""
        storage.forget_listings()
        if self.index is not None and self.name:
            with suppress(errors.StreamxfError, OSError):  # where that fails, the file is the news
                now = read_metadata(storage, self.name, Access(), listing="root").index
                if now is None or now.save_id != self.index.save_id:
                    return errors.ReplacedError(_REPLACED, file=storage.label(self.name))
        text = "the file that holds the item is missing from the checkpoint"
        return errors.MetadataError(text, file=storage.label(path))

    @staticmethod
    def lacking(files: Sequence[Metadata], unusable: Iterable[int | None] = ()) -> Iterator[str]:
        """Which ranks of its save have no metadata here, if any, as a sentence; that of some may be `unusable`."""
        there = {each.rank for each in files} | {*unusable}
        count = max((each.index.ranks or 0 for each in files if each.index is not None), default=0)
        if (lacking := count - sum(rank is not None and rank < count for rank in there)) > 0:
            names = [f"rank {rank}" for rank in islice((r for r in range(count) if r not in there), _SHOWN)]
            more = f" and {lacking - len(names):,} more" if lacking > len(names) else ""
            yield f"{count:,} ranks saved it, and there is no metadata of {', '.join(names)}{more}: restore their files"

    @staticmethod
    def mixed(files: Sequence[Metadata]) -> Iterator[str]:
        """Which ranks are of which save, if metadata of single ranks is of several, as a sentence."""
        groups: dict[Any, list[str]] = {}
        for rank, index in ((each.rank, each.index) for each in files):
            if rank is not None and index is not None:
                groups.setdefault((index.ranks, index.group), []).append(f"rank {rank}")
        if len(groups) > 1:
            saves = "; ".join(some(ranks, most=_SHOWN) for ranks in groups.values())
            yield f"the metadata of its ranks is of {len(groups)} saves: {saves}. Restore those of one save"

    @staticmethod
    def check_one_save(files: Sequence[Metadata], access: Access, at: str, *texts: str, strict: bool = False) -> None:
        """Raise MetadataError if single ranks' metadata is of several saves; where that, or what `texts` say, is not
        sure to be wrong, warn, but if keys or signers are to exclude it. Saves that `access` names make one.
        """
        indexes = [each.index for each in files if each.index is not None]
        texts += (*Metadata.mixed(files),)
        if not texts or access.expected_saves == frozenset(index.save_id for index in indexes):
            return
        sure = any(len({getattr(index, name) for index in indexes} - {None}) > 1 for name in ("group", "ranks"))
        if strict or sure or access.require is not None or access.trust:
            raise errors.MetadataError(f"{'. '.join(texts)}; {OR_CHOOSE}", file=at)
        for text in texts:
            warnings.warn(f"{at}: {text}", stacklevel=5)

    def signed_by(self, trust: Iterable[VerifyKey]) -> bool:
        """Whether one of `trust` signed the index; AuthenticationError for a wrong signature in the name of one."""
        return bool(self.vouchers) and Vouchers.parse(self.vouchers).signed_by(trust, self.digest)


def read_metadata(
    storage: Storage, name: str, access: Access, *, listing: Mode = False, size: int | None = None, share: Sharer = None
) -> Metadata:
    """Read a metadata file, or a slip. With `listing`, an encrypted one needs no keys, and nothing of it is
    authenticated; with ``"root"``, items are not looked at, but for their digests where an index is small. `size` is
    what it has by a listing. `share` may have all but its end read by others, who know the digest in its trailer, too.

    Raises FileNotFoundError; MetadataError if the file is damaged, hostile or inconsistent; AuthenticationError if it
    was altered; KeyMissingError, WrongKeyError, KeyServiceError if none of the keys opens it; PolicyError if it is
    weaker than what is required; IdentityError if it is another save than the expected one; ParameterError if items
    cannot be renamed as `access` says; ReplacedError if other files took its place again and again. An index that reads
    from the file later raises that, too.
    """
    storage.warn_of_caches()
    with errors.located(file=storage.label(name)), storage.doubting():
        try:
            return _read_once(storage, name, access, listing, size, share)
        except errors.ReplacedError:  # what was read is of two versions
            return _read_once(storage, name, access, listing, None, share)


def _read_once(storage: Storage, name: str, access: Access, listing: Mode, size: int | None, share: Sharer) -> Metadata:
    with ExitStack() as stack:
        file = stack.enter_context(storage.open(name)) if size is None else storage.sized(name, size)
        try:
            sections = Metadata.sections_in(file, share)
            if sections is None:
                return _renamed(_stock(storage, file, name, access), access.renaming)
            made = Metadata.of(sections, name, access, listing=listing)
        except FileNotFoundError as error:  # of a key, say; only a metadata file that is not there may pass for one
            raise errors.MetadataError(f"the metadata cannot be used: FileNotFoundError: {error}") from error
        except (errors.MetadataError, errors.ContainerError, errors.PolicyError, errors.ForeignError, OSError) as error:
            _check_same(storage, name, file, error)
            raise
        readers: list[Any] = [made.items.parts] if isinstance(made.items, ItemTable) else []
        readers += [] if made.index is None or made.index.digests is None else [made.index.digests]
        for each in readers:  # they read from the file for as long as one of them is used
            each.on_error.append(partial(_check_same, storage, name, file))
            each.beside = readers[-1] if each is not readers[-1] else None
        if readers:
            finalize(readers[-1], stack.pop_all().close)
        return _renamed(made, access.renaming)


def _check_same(storage: Storage, name: str, file: StoredFile, error: Exception) -> None:
    """Say where `error` is, or raise ReplacedError if another file has taken the place of `file` meanwhile."""
    label = storage.label(name)
    if isinstance(error, errors.StreamxfError):
        error.locate(file=label)
    same, end = getattr(error, "errno", None) != errno.ESTALE, min(file.size, TRAILER_BYTES)
    storage.forget_listings()
    with suppress(errors.StreamxfError, OSError, RuntimeError), storage.open(name) as now:  # else `error` is the news
        same &= now.size == file.size and now.read(now.size - end, end) == file.read(file.size - end, end)
    if not same:
        raise errors.ReplacedError(_REPLACED, file=label) from error
    if (doubt := storage.doubted(error)) is not error:
        raise doubt


def _renamed(metadata: Metadata, renaming: Renaming | None) -> Metadata:
    if renaming is None:
        return metadata
    if metadata.rank is None and (unused := renaming.unused(metadata.items)):  # other ranks may have what one has not
        raise errors.ParameterError(f"the checkpoint has no items of these names, to be renamed: {some(unused)}")
    return replace(metadata, items=renaming.items(metadata.items))


def check_vouchers(sections: Sections, lines: tuple[str, str] | None, access: Access, what: str, opened: bool) -> None:
    """Check who vouches for contents with these lines of keys, as `access` requires; raises as `read_metadata`. Signers
    are enough for what is not `opened`.
    """
    wrapped, vouchers = lines or ("", "")
    if not wrapped and access.require is not None:
        raise access.not_encrypted(what)
    if access.trust and not (wrapped and len(access.keys)):
        access.keys.check_signed(access.trust, vouchers, sections.digest)
    if not (wrapped and opened):
        return
    try:
        access.keys.open(wrapped, vouchers, sections.digest)
    except errors.KeyMissingError as error:
        raise errors.KeyMissingError(f"this checkpoint is {error.message}") from None


def _stock(storage: Storage, file: StoredFile, name: str, access: Access) -> Metadata:
    if access.require == "published":
        raise errors.PolicyError(
            "the metadata does not end in an index. If streamxf's writer saved this checkpoint, the file was cut or "
            f"altered: restore it. If torch's own writer did, {access.way_out}; where it was, pass require='encrypted' "
            "(or 'bound', for an attached writer)"
        )
    if access.trust:
        raise errors.PolicyError(
            "the metadata does not end in an index, so nobody can have signed it, and signers are trusted (trust): "
            "transcode the checkpoint with a signer, or leave trust out"
        )
    access.check_save(None)
    if file.size > MAX_METADATA:
        raise errors.MetadataError(
            f"the metadata has {file.size} bytes, {MAX_METADATA} are allowed where it is a pickle"
        )
    file.check_whole(file.size, errors.MetadataError)
    rank = rank_of(name)
    stock = read_stock(file.slice(0, file.size).read_at(0, file.size), rank)
    return Metadata(name, rank, placed(storage, stock.items), None, stock.modules)


def metadata_files(storage: Storage) -> list[str]:
    """The names of the metadata files that describe the checkpoint, in the order of ranks. Raises MetadataError if
    there are data files and no metadata, NoCheckpointError if there is nothing of a checkpoint.
    """
    try:
        names = storage.names()
    except NotADirectoryError:
        raise errors.NoCheckpointError(
            "this is a file, and a DCP checkpoint is a folder", file=storage.label()
        ) from None
    if not (found := metadata_among(names)):
        raise storage.doubted(Metadata.absent(storage, names))
    return found


_Each = tuple[int | None, Item]


@collector_paused()
def merge_ranks(files: Sequence[Metadata]) -> Mapping[str, Item]:
    """All items by name: shards of one tensor become one item. What several ranks have under one name, and is not that,
    has a key with the rank behind that name, but for that of the lowest rank.
    """
    if len(files) == 1:
        return files[0].items
    found: dict[str, list[_Each]] = {}
    for file in files:
        for name, item in file.items.items():
            found.setdefault(name, []).append((file.rank, item))
    items: dict[str, Item] = {}
    for name, each in found.items():
        for level, (rank, item) in enumerate(_layers(each)):
            label = f"{name} (rank {rank})" if level else name
            while level and label in found:
                label += "'"
            items[label] = item
    return items


def _layers(each: list[_Each]) -> list[_Each]:
    """What ranks have under one name, as few items as that makes."""
    if len(each) == 1:
        return each
    if (joined := _join_shards([item for _, item in each])) is not None:
        return [(each[0][0], joined)]
    levels: list[_Each] = []
    seen: Counter[tuple[int, ...]] = Counter()  # shards that were there before
    for rank, item in each:
        offsets = [chunk.offset for chunk in item.chunks] if isinstance(item, TensorItem) else []
        level = max(seen[offset] for offset in offsets or [()])
        seen.update(offsets or [()])
        while level < len(levels):
            lowest, other = levels[level]
            if (joined := _join_shards([other, item])) is not None:
                levels[level] = lowest, joined
                break
            level += 1
        else:
            levels.append((rank, item))
    return levels


def _join_shards(items: Sequence[Item]) -> TensorItem | None:
    """The tensor whose shards these are; None if they are not, or overlap."""
    made = TensorItem.merged(items)
    if not isinstance(made, TensorItem):
        return None
    chunks = tuple(chunk for item in items if isinstance(item, TensorItem) for chunk in item.chunks)
    return None if overlap(made.shape, [chunk[:2] for chunk in chunks]) else replace(made, chunks=chunks)
