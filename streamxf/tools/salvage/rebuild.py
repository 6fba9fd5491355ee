"""Metadata made of data files alone, where none can be used.

Containers of streamxf's writer say themselves which item they hold, which part of it, and who wrote them. What nothing
says is which processes saved together, so the caller is asked; and which items stood where a header is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from streamxf import errors
from streamxf.budget import check_whole, held_bytes, most
from streamxf.checkpoint.opening import ItemOpener
from streamxf.descriptor import ENCRYPT, parse_parameters
from streamxf.format.header import Header, Identity, Kind
from streamxf.format.index import Index
from streamxf.format.limits import CONTAINER_MAGIC, MAX_METADATA, TRAILER_BYTES
from streamxf.format.names import GLOBAL, OWN_FILE
from streamxf.format.trailer import Sections, Trailer, slices
from streamxf.keys.envelope import WRAPPED_KEY, is_signed
from streamxf.places import Storage
from streamxf.reading import (
    Access,
    Budget,
    Chunk,
    Item,
    KeyRing,
    Metadata,
    ObjectItem,
    Place,
    Progress,
    Shares,
    TensorItem,
)
from streamxf.storage.reading import Counted
from streamxf.stream.scan import Found, Gap, Scan
from streamxf.tools.damage import Damage
from streamxf.wording import many, some

_NAMED = re.compile(rb"__[0-9]{1,10}_[0-9]{1,10}_[0-9a-f]{32}\.distcp")
_LONGEST = 2**17  # bytes; a wrapped data key has at most 32 KiB
_WINDOW = 2**20
_MAX_REMAINS = 4 * 2**30
_TRIED = 2**12
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
    save, missing = _one_save([name for name in files if OWN_FILE.fullmatch(name)], _metadata(storage), chosen)
    reader = _Files(storage, access, _WrappedKeys(_wrapped_in(storage, files), access.keys))
    for name in missing:
        reader.gap(errors.MetadataError("the file is missing, and its contents are unknown"), name)
    budget = access.budget(storage.held_by(save, files))
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

    def __init__(self, storage: Storage, access: Access, keys: _WrappedKeys) -> None:
        self.damaged: list[Damage] = []
        self.containers = 0
        self.unknown = False
        self._storage = storage
        self._keys = keys
        self._times = access.objects.max_expansion
        self._opener = ItemOpener(Metadata("", None, {}, None), access)
        self._by_writer: dict[bytes, str] = {}
        self._found: dict[str, list[tuple[Identity, Place]]] = {}

    def gap(self, error: Exception, file: str) -> None:
        """Note a piece of a file of which nothing says what it held."""
        self.damaged.append(Damage.of(error, None, self._storage.label(file)))

    def read(self, name: str, shares: Shares) -> None:
        """Find everything in a file. Raises StreamxfError if it is encrypted, and no key opens what is left."""
        found: list[Found | Gap] = []
        try:
            with self._storage.open(name) as opened:
                file = opened.through(Counted(opened.access, shares.begin(name).advance))
                size = min(file.size, most(held_bytes(file.raw, file.size), self._times))
                if size < file.size:  # a hole has no end, and nothing in it
                    found.append(Gap(size, file.size - size))
                whole = file.slice(0, size)
                start = whole.read_at(0, min(size, len(CONTAINER_MAGIC)))
                self.unknown |= bool(start.strip(b"\0")) and start != CONTAINER_MAGIC
                found += Scan(whole, bytes.fromhex(writer_of(name)))
        except (errors.StreamxfError, OSError) as error:
            if errors.is_exhausted(error):
                raise
            self.gap(error, name)
        for each in found:
            if isinstance(each, Gap) or not each.sure:
                text = f"{each.size} bytes at {each.at} are damaged, and their contents are unknown"
                self.gap(errors.MetadataError(text), name)
            if isinstance(each, Found):
                self.containers += 1
                self._take(name, each)

    def items(self) -> dict[str, Item]:
        """Items out of what was found."""
        made: dict[str, Item] = {}
        for name, parts in self._found.items():
            first, place = parts[0]
            same = {(one.kind is Kind.OBJECT, one.dtype, one.tensor_shape) for one, _ in parts}
            if len(same) > 1 or len({one.offset for one, _ in parts}) < len(parts):
                wrong = "it is there twice, or its chunks are of several kinds: they cannot all be of one save"
                self.damaged.append(Damage.of(errors.IdentityError(wrong), name))
            elif first.kind is Kind.OBJECT:
                made[name] = ObjectItem(name, place)
            else:
                chunks = (Chunk(one.offset, one.shape, at, one.kind is Kind.FRAMED) for one, at in parts)
                made[name] = TensorItem(name, first.dtype, first.tensor_shape, tuple(sorted(chunks)))
        return made

    def _take(self, file: str, found: Found) -> None:
        identity, fragment = found.header.identity, ""
        assert identity is not None
        if found.header.keyed:
            self._keys.check()
            try:
                fragment = self._fragment(found.header, identity)
            except errors.AuthenticationError as error:
                offset = identity.offset if identity.kind is not Kind.OBJECT else None
                self.damaged.append(Damage.of(error, identity.name, self._storage.label(file), offset))
                return
        place = Place(file, found.at, found.size, _descriptors(found.header, fragment))
        self._found.setdefault(identity.name, []).append((identity, place))

    def _fragment(self, header: Header, identity: Identity) -> str:
        """The wrapped data key under which a container is sealed."""
        known = self._by_writer.get(identity.writer_id)
        if known is not None:
            return known
        for text in self._keys:
            with suppress(errors.AuthenticationError):  # of another writer's data key
                self._opener.chain(header, Place("", 0, 0, _descriptors(header, text))).unseal(header)
                self._by_writer[identity.writer_id] = text
                return text
        raise errors.AuthenticationError("none of the data keys that are left belongs to the process that wrote it")


def _descriptors(header: Header, fragment: str) -> tuple[str, ...]:
    """As the metadata of other writers has them."""
    return tuple(
        f"{text}#{fragment}" if text.partition("/")[0] == ENCRYPT else text.removeprefix("!") for text in header.chain
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
                self._keys.unwrap_unvouched(parse_parameters(text, repeatable=("w",)))
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
    seen: set[bytes] = set()
    left = _MAX_REMAINS
    for name in sorted((name for name in files if "metadata" in name), key=lambda name: (name != GLOBAL, name)):
        for window in _windows(storage, name):
            left -= len(window)
            if left < 0:
                return
            for found in WRAPPED_KEY.findall(window):
                if len(seen) < _TRIED and found not in seen:
                    seen.add(found)
                    yield found.decode("ascii")


def _windows(storage: Storage, name: str) -> Iterator[bytes]:
    """What is left of a metadata file, in pieces that share their ends, so that what is sought stands in one whole."""
    try:
        with storage.open(name) as file:
            size = min(file.size, most(held_bytes(file.raw, file.size)))
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
    listed = _listed(remains)
    named = listed if listed is not None else {name.decode("ascii") for name in _NAMED.findall(remains)}
    if chosen is not True:
        ids = set(chosen) if chosen else set()
        if unknown := sorted(ids - there):
            raise errors.ParameterError(f"without_metadata=: no data file here has the writer id {unknown[0]!r:.80}")
    elif listed is not None and not listed.isdisjoint(present):
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
            size = min(file.size, MAX_METADATA)
            check_whole(file.raw, file.size, size, errors.MetadataError)
            return file.read(0, size)
    except (errors.StreamxfError, OSError) as error:
        if errors.is_exhausted(error):
            raise
        return b""


def _listed(remains: bytes) -> set[str] | None:
    """The files that an index names which can still be read, though its digest may not match."""
    try:
        trailer = Trailer.parse(remains[-TRAILER_BYTES:], len(remains))
        if trailer is None:
            return None
        begin, head = len(remains) - trailer.size, trailer.head_size
        root, parts = memoryview(remains)[begin : begin + trailer.root_size], remains[head : head + trailer.parts_size]
        keys = memoryview(remains)[begin + trailer.root_size :][: trailer.keys_size]
        hashed = is_signed(Sections(root, keys).key_lines())
        index = Index.parse(root, slices(parts), len(parts), hashed=hashed)
    except errors.StreamxfError:
        return None
    if index.rank is not None or not all(map(OWN_FILE.fullmatch, index.files)):
        return None
    return set(index.files)


def writer_of(name: str) -> str:
    return name.removesuffix(".distcp").rpartition("_")[2]
