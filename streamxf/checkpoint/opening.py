"""From an item's place in a file to its stream: size, chain, identity, policy and seal are checked before any block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Self

from streamxf import errors
from streamxf.budget import Budget
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.elements import Elements, framed_elements
from streamxf.checkpoint.metadata import Metadata
from streamxf.codec import providers_in, what_to_install
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.format.bare import alignment, pieces_of
from streamxf.format.digests import Expected
from streamxf.format.header import Header, Identity, Kind
from streamxf.format.index import File
from streamxf.format.items import Chunk, Item, ObjectItem, Place, TensorItem, element_size
from streamxf.format.limits import CONTAINER_MAGIC, MAX_VALUES
from streamxf.keys.envelope import DataKey
from streamxf.report import Meter
from streamxf.storage.reading import FileSlice, StoredFile
from streamxf.stream.container import ChainOpener, StoredStream, read_header
from streamxf.stream.reader import BareBlocks, Blocks, MemoryBlocks, StreamReader, read_all

_START = 1024  # bytes that hold most headers; longer ones are parsed

RAW_SLACK = 2**20  # bytes that torch.save's framing may add to a tensor; twice its own, for subclasses of several parts

MAX_TRANSFORMED = 64 * 2**30
"""Bytes that a stream transform may make of an item: it declares no size, so this is all that stops it."""


@dataclass(slots=True, unsafe_hash=True)
class ItemPart:
    """What is to be opened, at `place`: an object, or a chunk of a tensor; compared by what is `said` of either."""

    item: Item = field(compare=False)  # of which other chunks would be read
    chunk: Chunk | None = None
    place: Place = field(init=False)
    said: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        item, stored = self.item, self.item if self.chunk is None else self.chunk
        assert not isinstance(stored, TensorItem)
        self.place = stored.place
        self.said = (item.name, item.dtype, item.shape) if isinstance(item, TensorItem) else (item.name,)

    @classmethod
    def of(cls, item: Item) -> Iterator[Self]:
        """All streams of an item: those of a tensor's chunks, or that of an object."""
        return (cls(item, chunk) for chunk in (item.chunks if isinstance(item, TensorItem) else [None]))

    @property
    def planned(self) -> int:
        """Bytes of the elements, before a chain; 0 for an object, and where an element has no size."""
        return self.identity(b"").size

    @property
    def kind(self) -> Kind:
        if self.chunk is None:
            return Kind.OBJECT if self.place.span is None else Kind.VALUE
        return Kind.FRAMED if self.chunk.framed else Kind.TENSOR

    @property
    def alignment(self) -> int:
        """What its place in a file is a multiple of."""
        return alignment(self.place.size) if self.chunk is not None and self.chunk.raw else 1

    def identity(self, writer_id: bytes) -> Identity:
        item, chunk, number = self.item, self.chunk, self.place.number or 0
        if chunk is None or not isinstance(item, TensorItem):
            return Identity(writer_id, self.kind, item.name, number=number)
        return Identity(writer_id, self.kind, item.name, item.dtype, chunk.offset, chunk.shape, item.shape, number)

    def check(self, found: Identity, writer_id: bytes) -> None:
        wanted = self.identity(writer_id)
        if found.writer_id != writer_id:
            raise errors.IdentityError(
                "the container was written by another process or save than its file: it was swapped"
            )
        # an index ties its items to containers by number, so that they can be renamed there alone
        shared = wanted.kind is Kind.VALUE or self.place.number is not None
        known = found._replace(name=wanted.name) if shared else found
        if self.place.number is None:
            known = known._replace(number=0)
        if known != wanted:
            raise errors.IdentityError(
                f"the container holds {_shown(found)}, where {_shown(wanted)} belongs: it was swapped"
            )

    def elements(self, blocks: Blocks) -> Elements:
        """A tensor's elements. Raises MetadataError if they are another's, UnsupportedError if torch must make it."""
        assert self.chunk is not None
        assert isinstance(self.item, TensorItem)
        if self.chunk.framed:
            return framed_elements(blocks, self.item.dtype, self.chunk.shape)
        return Elements(blocks, 0, self.item.itemsize, self.chunk.shape)

    def max_size(self, object_limit: Callable[[int], int | None]) -> int | None:
        """The most bytes that the stream may have; None for any number."""
        if self.place.span is not None:
            return MAX_VALUES
        if isinstance(self.item, ObjectItem) or self.chunk is None:
            return object_limit(self.place.size)
        if not self.chunk.framed:
            return self.planned
        return 2 * self.item.size + RAW_SLACK if element_size(self.item.dtype) else None


FileGiver = Callable[[str], StoredFile]


def _no_file(name: str) -> StoredFile:
    raise errors.UnsupportedError("it is a difference to what is in another file, which is not read here", file=name)


class ItemOpener:
    """Opens items that one metadata file describes.

    - `metadata`: what the file says. Without a name it was read by torch, or made up; that it has no index, is no sign.
    - `budget`: pays for what stream transforms make of items. None for readers, whose callers have made the memory.
    - `open_file`: gives the files of what lies beneath differences, as long as they are read.
    - `known`: is asked for what lies beneath each container that is opened, which may be in memory.
    """

    def __init__(
        self, metadata: Metadata, access: Access, budget: Budget | None = None, open_file: FileGiver = _no_file
    ) -> None:
        self.metadata, self.open_file = metadata, open_file
        self._access = access
        self.budget = budget
        self.known: Callable[[ItemPart, Header], memoryview | None] | None = None
        self._openers: dict[tuple[tuple[str, ...], bytes | None], ChainOpener] = {}
        self._values: tuple[Any, MemoryBlocks] | None = None  # of the last container that had some

    def blocks(self, source: FileSlice, wanted: ItemPart, meter: Meter | None = None) -> Blocks:
        """The stream of an item, of which `source` has the stored bytes; stream transforms are undone.

        Raises PolicyError if the item is weaker than what is required; ContainerError, IdentityError,
        AuthenticationError, MetadataError if it is damaged, another item's, altered, or stripped of its descriptors;
        UnknownCodecError, CodecNotAllowedError, DescriptorError, UnsupportedError, KeyMissingError, WrongKeyError if
        its chain cannot be rebuilt.
        """
        if wanted.place.span is None or wanted.place.crcs is not None:
            return self._whole(source, wanted, meter)
        stream = self.values(source, wanted, meter)
        return MemoryBlocks(self.value_in(stream, wanted), stream.header)

    @staticmethod
    def value_in(stream: MemoryBlocks, wanted: ItemPart) -> memoryview:
        """The bytes of a value in its stream; raises MetadataError."""
        begin, end = wanted.place.span or (0, 0)
        if end > stream.size:
            raise errors.MetadataError("the stream of values ends before this one: one of them was altered")
        return stream.data[begin:end]

    def values(self, source: FileSlice, wanted: ItemPart, meter: Meter | None = None) -> MemoryBlocks:
        """The stream that a value is in, which is decoded for the first of those in it; raises as `blocks`."""
        place, known = wanted.place.container, self._values
        if known is None or known[0] != place:
            blocks = self._whole(source, wanted, meter)
            known = self._values = place, MemoryBlocks(memoryview(read_all(blocks, meter)), blocks.header)
        return known[1]

    def _whole(self, source: FileSlice, wanted: ItemPart, meter: Meter | None) -> Blocks:
        stream, place = self._find(source, wanted), wanted.place
        stream.check()
        if (header := stream.header) is None:
            return self.content(self._bare(source, place), wanted, meter)
        return self.content(stream.decoded(self.chain(header, place), meter), wanted, meter)

    def examine(self, source: FileSlice, wanted: ItemPart) -> StoredStream:
        """The stream of an item as it is stored, with all that `blocks` could raise; without keys none is decrypted."""
        stream = self._find(source, wanted)
        if (header := stream.header) is None:
            stream.blocks = None if stream.errors else stream.attempt(self._bare, source, wanted.place)
            return stream
        stream.locked = not stream.errors and header.keyed and not len(self._access.keys)
        chain = None if stream.errors or stream.locked else stream.attempt(self.chain, header, wanted.place)
        return stream.examine(chain)

    def _expected(self, place: Place) -> Expected | None:
        """The digests of what is stored there, where the index is signed."""
        index = self.metadata.index
        if index is None or index.digests is None or place.digest is None:
            return None
        return Expected(index.digests, place.digest)

    def _bare(self, source: FileSlice, place: Place) -> BareBlocks:
        known, count = self._expected(place), pieces_of(source.length)
        return BareBlocks(source, place.crcs, None if known is None else known.digests.some(known.first, count))

    def _find(self, source: FileSlice, wanted: ItemPart) -> StoredStream:
        """The stream of an item, whose header was compared with what the metadata says."""
        place, index = wanted.place, self.metadata.index
        stream, header = StoredStream(source, None, self._expected(place)), None
        if index is not None and place.number is not None and not place.beneath:
            identity = wanted.identity(index.files[place.file].writer)
            with suppress(OSError):  # of a sector behind it
                start = source.read_at(0, min(_START, source.length))
                header = Header.expected(start, _bound(place.descriptors), identity)
        if header is None:
            header = stream.attempt(self._stored_header, source, place)  # says what is wrong with it
            if header is not None:
                stream.attempt(self._check_header, header, wanted)
        if header is not None and header.chain == header.block_chain:
            stream.check_size = partial(self._check_size, wanted)
        elif header is None and not (stream.errors or place.descriptors):
            stream.attempt(self._check_size, wanted, source.length)
        stream.header = header
        if header is not None and not stream.errors and self.known is not None:
            stream.held = self.known(wanted, header)
        if header is not None and not stream.errors and place.beneath and stream.held is None:
            stream.beneath = stream.attempt(self._beneath, header, wanted)
        return stream

    def _beneath(self, header: Header, wanted: ItemPart) -> tuple[StoredStream, Callable[[], ChainOpener]]:
        """The stream beneath a difference, and what gives the opener of its chain; raises IdentityError."""
        assert wanted.chunk is not None
        place, first, blocks = wanted.place.lower, wanted.place.digest, max(1, -(-wanted.planned // header.block_size))
        place = place._replace(digest=None if first is None else first + 1 + blocks)
        file = self.open_file(place.file)
        with errors.located(file=file.name):
            source = self.source(file, place)
            found = read_header(source)
            if found.digest != header.base or found.block_log2 != header.block_log2:
                text = "the container beneath a difference is not the one it was made from: one was swapped, or altered"
                raise errors.IdentityError(text)
            place = place._replace(number=found.identity.number if found.identity is not None else 0)
            stream = self._find(source, ItemPart(wanted.item, wanted.chunk._replace(place=place)))
            stream.file = file.name
            stream.check()
        return stream, partial(self.chain, found, place)

    def chain(self, header: Header, place: Place) -> ChainOpener:
        """What rebuilds the chain of a container, once for all that have it."""
        file = self._file_of(place)
        key = file.key if file is not None else None
        known = self._openers.get((place.descriptors, key))
        if known is None:
            descriptors = [*map(Descriptor.parse, place.descriptors[len(header.chain) - len(header.block_chain) :])]
            data_key = self._data_key(descriptors, key) if header.keyed else None
            about = descriptors, self._access.codecs, data_key, providers_in(self.metadata.modules)
            known = self._openers[place.descriptors, key] = ChainOpener(*about)
        return known

    def source(self, file: StoredFile, place: Place) -> FileSlice:
        """The stored bytes of an item, once the size of its file was compared."""
        known = self.metadata.files.get(place.file)
        if known is not None and known.size != file.size:
            text = f"the file has {file.size} bytes, the metadata says {known.size}: it was truncated or appended to"
            raise errors.ContainerError(text, file=file.name)
        return file.slice(place.at, place.size)

    def content(self, blocks: Blocks, wanted: ItemPart, meter: Meter | None = None) -> Blocks:
        """What an item's blocks hold, all stream transforms undone; raises as `blocks`."""
        described, header = wanted.place.descriptors, blocks.header
        transforms = described if header is None else [text for text in header.chain if text.startswith("!")]
        if not transforms:
            return blocks
        stream: Any = StreamReader(blocks, meter=meter)
        for descriptor in (text.removeprefix("!") for text in reversed(transforms)):
            stream = self._access.transform(descriptor, stream)
            if stream is None:
                missing = what_to_install(descriptor.partition("/")[0], providers_in(self.metadata.modules))
                raise errors.UnknownCodecError(f"{missing}. If it is a torch extension, pass a registry that knows it")
            if not hasattr(stream, "read"):
                raise errors.UnsupportedError(
                    f"the stream transform {errors.shorten(descriptor)!r} does not return a readable stream"
                )
        limit = wanted.max_size(self._access.objects.limit)
        data = _read_capped(stream, MAX_TRANSFORMED if limit is None else limit, self.budget)
        return MemoryBlocks(memoryview(data), blocks.header)

    def _check_size(self, wanted: ItemPart, size: int) -> None:
        limit = wanted.max_size(self._access.objects.limit)
        if limit is not None and size > limit:
            hint = "; weights_only=False lifts the limit for objects" if wanted.kind is Kind.OBJECT else ""
            raise errors.ContainerError(f"the item decodes to {size} bytes, of which it can have {limit}{hint}")

    def _stored_header(self, source: FileSlice, place: Place) -> Header | None:
        """The header of an item's container; None if the metadata or, without an index, its bytes show none."""
        index = self.metadata.index
        if index is not None:
            contained = place.number is not None
        else:
            contained = source.read_at(0, min(source.length, len(CONTAINER_MAGIC))) == CONTAINER_MAGIC
            if contained and not place.descriptors:
                text = "the item is stored in a container, and the metadata gives it no codecs"
                raise errors.MetadataError(f"{text}: its descriptors were removed")
            if not contained and any(text.startswith("streamxf.") for text in place.descriptors):
                text = "the metadata gives the item codecs, and it is not stored in a container: it was damaged"
                raise errors.ContainerError(text)
        if not contained and self._access.require is not None:
            raise self._access.not_encrypted("the item")
        return read_header(source) if contained else None

    def _check_header(self, header: Header, wanted: ItemPart) -> None:
        """Compare chain and identity with what the metadata says, and both with what is required."""
        file = self._file_of(wanted.place)
        found = header.chain if file is not None else tuple(text.removeprefix("!") for text in header.chain)
        recorded = _bound(wanted.place.descriptors)
        if found != recorded:
            raise errors.IdentityError(
                f"the stored chain is {' > '.join(header.chain)}, the metadata says {' > '.join(recorded)}: "
                "one of them was altered"
            )
        if file is None:
            self._check_unpublished(header, wanted)
        else:
            self._check_published(header, wanted, file.writer)

    def _file_of(self, place: Place) -> File | None:
        index = self.metadata.index
        return index.files[place.file] if index is not None else None

    def _check_published(self, header: Header, wanted: ItemPart, writer: bytes) -> None:
        identity = header.identity
        if bool(header.base) != bool(wanted.place.beneath):
            raise errors.IdentityError("header and metadata disagree on whether it is a difference: one was altered")
        if identity is None or not header.published:
            raise errors.IdentityError(
                "the container is not bound to a place in a checkpoint, though streamxf's writer made this one: it "
                "comes from elsewhere"
            )
        wanted.check(identity, writer)

    def _check_unpublished(self, header: Header, wanted: ItemPart) -> None:
        require, identity = self._access.require, header.identity
        if header.published and self.metadata.name:
            raise errors.MetadataError(
                "the item was published with an index, and the metadata has none: it was removed"
            )
        if identity is not None:
            wanted.check(identity, identity.writer_id)
        if require is None:
            return
        if not header.keyed:
            raise self._access.not_encrypted("the item")
        if require != "encrypted" and identity is None:
            raise errors.PolicyError(
                "the item is encrypted but not bound to its place (torch's own writer cannot do that), so items "
                "could be swapped; require='encrypted' accepts it"
            )

    def _data_key(self, descriptors: list[Descriptor], key: bytes | None) -> Callable[[], DataKey]:
        keys = self._access.keys
        if key is not None:
            if not len(keys):
                raise errors.KeyMissingError("this checkpoint is encrypted, and no keys were given")
            return partial(self.metadata.data_key, key, keys)
        fragment = next(descriptor.fragment for descriptor in descriptors if descriptor.name == ENCRYPT)
        return partial(keys.unwrap_unvouched, fragment)


@lru_cache(16)  # all items of a checkpoint have one chain
def _bound(descriptors: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text.partition("#")[0] for text in descriptors)


def _shown(identity: Identity) -> str:
    if identity.kind is Kind.VALUE:
        return f"values (number {identity.number})"
    if identity.kind is Kind.OBJECT:
        return f"the object {identity.name!r} (number {identity.number})"
    return (
        f"the {identity.kind} {identity.name!r} (number {identity.number}), {identity.dtype} {list(identity.shape)} at "
        f"{list(identity.offset)} of {list(identity.tensor_shape)}"
    )


def _read_capped(stream: Any, limit: int, budget: Budget | None) -> bytearray:
    """All of what a stream transform makes, up to `limit` bytes and as far as `budget` goes: it declares no size."""
    data = bytearray()
    while True:
        try:
            part = stream.read(min(2**20, limit + 1 - len(data)))
        except (errors.StreamxfError, MemoryError):
            raise
        except Exception as error:  # whatever a third party's transform raises
            if getattr(error, "errno", None) or errors.is_exhausted(error):  # the file below it cannot be read
                raise
            text = f"a stream transform cannot be undone: {type(error).__name__}: {error!s:.200}"
            raise errors.ContainerError(text) from error
        if not part:
            return data
        data += part
        if len(data) > limit:
            text = f"a stream transform makes more than {limit} bytes of the item, which is all that it can hold"
            raise errors.ContainerError(text)
        if budget is not None:
            budget.spend(len(part), "what a stream transform makes of the item")
