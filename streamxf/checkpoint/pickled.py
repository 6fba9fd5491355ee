"""DCP's ``Metadata`` as a pickle, for torch's own readers; made of an index, without torch."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from streamxf.descriptor import ENCRYPT
from streamxf.errors import MetadataError, UnsupportedError, redacted
from streamxf.format.bare import raw_descriptor
from streamxf.format.index import Index
from streamxf.format.items import DTYPES, Chunk, Item, ObjectItem, Place, TensorItem
from streamxf.format.table import ItemTable
from streamxf.format.values import descriptor_of, from_json, to_json
from streamxf.torchsave.writing import named, plain

PLANNER_DATA = "planner_data"
OWN = {"state_dict_metadata", PLANNER_DATA, "storage_data", "storage_meta", "version"}
"""The attributes of DCP's ``Metadata``."""

_VERSION = "1.0.0"  # of DCP's metadata
_DCP = "torch.distributed.checkpoint"
_FORMATS = {"channels_last": 1, "preserve": 2}
_SMALL, _SIZES = [bytes((75, number)) for number in range(256)], [bytes((138, size)) for size in range(9)]
_LAYOUTS = {"strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"}


def is_extra(name: object) -> bool:
    """Whether planners may put something of that name into the metadata."""
    public = isinstance(name, str) and name.isidentifier() and name[0] != "_"
    return name == PLANNER_DATA or (public and name not in OWN)


def plain_members(found: Mapping[str, Any], who: str) -> dict[str, Any]:
    """What is put into the metadata besides, as `Index` has it; UnsupportedError says `who` put no plain data there."""
    members = {}
    for name, value in found.items():
        try:
            if not is_extra(name):
                raise MetadataError("of attributes, readers take those with a public name")
            members[name] = to_json(value)
        except MetadataError as error:
            raise UnsupportedError(
                f"{who} {name!r:.80} for DCP's metadata, which cannot be stored: {error.message}. It takes None, truth "
                "values, numbers, strings, bytes, lists, tuples and dicts of these"
            ) from None
    return members


def members_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What `plain_members` was given; what cannot be read is left out, since only the planner that gave it needs it."""
    members = {}
    for name, value in extra.items():
        if is_extra(name):
            with suppress(MetadataError):
                members[name] = from_json(value)
    return members


def pickled(index: Index, wrapped: Mapping[bytes, str], checkpoint_id: str) -> bytes:
    """The pickle at the head of a metadata file. `wrapped` is each writer's wrapped data key, as text, and
    `checkpoint_id` where the checkpoint is. Raises UnsupportedError for a tensor of a dtype that is not known here.
    """
    made = _Pickle(index, wrapped)
    items = (index.items.whole() if isinstance(index.items, ItemTable) else index.items).values()
    extra = {name: partial(made.plain, value) for name, value in members_of(index.extra).items()}
    about: dict[str, Any] = {"checkpoint_id": redacted(checkpoint_id), "save_id": index.save_id, "load_id": None}
    about["modules"] = [*index.modules]
    content: dict[str, Any] = {
        "storage_data": partial(made.places, items),  # first: a copy of its wrapped keys may be all that is left
        "state_dict_metadata": partial(made.entries, items),
        PLANNER_DATA: partial(made.paths, items) if any(item.path is not None for item in items) else None,
        "storage_meta": partial(made.object, ("StorageMeta", *about), *about.values()),
        "version": _VERSION,
    } | extra
    made.object(("Metadata", *content), *content.values())
    return b"\x80\x04" + bytes(made.opcodes) + b"."


_INDEX = "MetadataIndex", "fqn", "offset", "index"
_STORED = "_StorageInfo", "relative_path", "offset", "length"
_CODED = *_STORED, "transform_descriptors"
_TENSOR = "TensorStorageMetadata", "properties", "size", "chunks"
_CHUNK = "ChunkStorageMetadata", "offsets", "sizes"


class _Pickle:
    """Opcodes of protocol 4. What never changes, such as names, sizes and classes, is remembered when it is written for
    the first time, and referred to from then on; so are lists of strings, each by itself.
    """

    def __init__(self, index: Index, wrapped: Mapping[bytes, str]) -> None:
        self.opcodes = bytearray()
        self._writers = {path: file.writer for path, file in index.files.items()}
        self._wrapped = wrapped
        self._descriptors: dict[Any, list[str] | None] = {}
        self._own: dict[Hashable, list[str]] = {}  # of raw tensors and values, which have some of their own
        self._known: dict[Hashable, bytes] = {}
        self._alike: dict[Hashable, bytes] = {}  # tensors that differ in their names alone, as layers do
        self._heads: dict[tuple[str, ...], list[bytes]] = {}

    def object(self, form: tuple[str, ...], *values: Any) -> None:
        """An object of one of DCP's classes, `form` of which is the class and the names of its members. These are
        strings, numbers, None, sizes and lists of strings; or functions that write them.
        """
        opcodes, known, heads = self.opcodes, self._known, self._heads.get(form)
        for head, value in zip(heads or self._heads_of(*form), values, strict=True):
            opcodes += head
            kind = type(value)
            if kind is int:
                opcodes += _number(value)
            elif kind is list:
                opcodes += known.get(id(value)) or self._list(value)
            elif kind is str:
                opcodes += known.get(value) or self._text(value)
            elif kind is tuple:
                opcodes += known.get(value) or self._remember(value, _size(value))
            elif value is None:
                opcodes += b"N"
            else:
                value()
        opcodes += b"ub"
        if heads is None:
            self._heads[form] = [*self._heads_of(*form)]  # all of which is known by now

    def _heads_of(self, kind: str, *names: str) -> Iterator[bytes]:
        """What stands before each member, asked for when it is its turn."""
        begin = self._make(kind) + b"}("
        for name in names:
            yield begin + self._text(name)
            begin = b""

    def _list(self, texts: list[str]) -> bytes:
        """Each text has a byte behind it that is not one of its own: salvage looks for wrapped keys in what is left."""
        return self._remember(id(texts), b"]") + b"(" + b"".join(map(self._text, texts)) + b"e"

    def plain(self, value: Any) -> None:
        self.opcodes += plain(value)

    def paths(self, items: Iterable[Item]) -> None:
        self.opcodes += b"}("
        for item in items:
            if item.path is not None:
                steps = (self._text(step) if isinstance(step, str) else _number(step) for step in item.path)
                self.opcodes += self._text(item.name) + b"(" + b"".join(steps) + b"t"
        self.opcodes += b"u"

    def entries(self, items: Iterable[Item]) -> None:
        """What there is to say of each item."""
        self.opcodes += b"}("
        for item in items:
            self.opcodes += self._text(item.name)
            if isinstance(item, ObjectItem):
                self.opcodes += self._make("BytesStorageMetadata")
            else:
                self._tensor(item)
        self.opcodes += b"u"

    def _tensor(self, item: TensorItem) -> None:
        key = item.dtype, item.shape, *item.properties.items(), *(chunk[:2] for chunk in item.chunks)
        if known := self._alike.get(key):
            self.opcodes += known
            return
        begin = len(self.opcodes)
        self.object(_TENSOR, partial(self._properties, item), item.shape, partial(self._chunks, item.chunks))
        # what is written for the first time remembers parts of it, and cannot be repeated
        self._alike[key] = bytes(self.opcodes[begin:]) if key in self._alike else b""

    def places(self, items: Iterable[Item]) -> None:
        """Where each object and each chunk is, by ``MetadataIndex``."""
        self.opcodes += b"}("
        for item in items:
            if isinstance(item, ObjectItem):
                self.object(_INDEX, item.name, None, None)
                texts, span = self._needed(item.place), item.place.span
                if span is not None:
                    span = span if item.place.crcs is None else None
                    key = *item.place[:2], span
                    texts = self._own.setdefault(key, [*(texts or ()), descriptor_of(span)])
                self._stored(item.place, texts)
                continue
            for number, chunk in enumerate(item.chunks):
                if chunk.place.beneath:
                    text = "it is stored as a difference from another save, which torch's own readers cannot read"
                    raise UnsupportedError(f"{text}: `streamxf transcode` makes a whole checkpoint", item=item.name)
                self.object(_INDEX, item.name, chunk.offset, number)
                texts = self._needed(chunk.place)
                if chunk.raw:
                    texts = self._own.setdefault((item.dtype, chunk.shape), [raw_descriptor(item.dtype, chunk.shape)])
                self._stored(chunk.place, texts)
        self.opcodes += b"u"

    def _needed(self, place: Place) -> list[str] | None:
        """What torch's readers need for an item, in the order of its use; None for one that passed nothing."""
        key = self._writers[place.file], place.descriptors
        if key not in self._descriptors:
            own = self._wrapped.get(key[0])
            keyed = (f"{text}#{own}" if text.startswith(f"{ENCRYPT}/") else text for text in place.descriptors)
            self._descriptors[key] = [text.removeprefix("!") for text in keyed][::-1] or None
        return self._descriptors[key]

    def _stored(self, place: Place, descriptors: list[str] | None) -> None:
        if descriptors is None:
            self.object(_STORED, place.file, place.at, place.size)
        else:
            self.object(_CODED, place.file, place.at, place.size, descriptors)

    def _chunks(self, chunks: Iterable[Chunk]) -> None:
        self.opcodes += b"]("
        for offset, shape, *_ in chunks:
            self.object(_CHUNK, offset, shape)
        self.opcodes += b"e"

    def _properties(self, item: TensorItem) -> None:
        self.opcodes += self._make("TensorProperties")  # whose state is a tuple
        key = item.dtype, *item.properties.items()
        self.opcodes += (self._known.get(key) or self._remember(key, _properties(item))) + b"b"

    def _make(self, kind: str) -> bytes:
        if (known := self._known.get((kind,))) is None:
            home = f"{_DCP}.filesystem" if kind == "_StorageInfo" else f"{_DCP}.metadata"
            known = self._remember((kind,), named(home, kind))
        return known + b")\x81"

    def _text(self, text: str) -> bytes:
        if (known := self._known.get(text)) is None:
            encoded = text.encode(errors="surrogatepass")  # as pickle does; a path may hold any bytes
            known = self._remember(text, b"X" + len(encoded).to_bytes(4, "little") + encoded)
        return known

    def _remember(self, key: Hashable, opcodes: bytes) -> bytes:
        """`opcodes`, which are written next, and put something on the stack that is asked for by `key` from then on."""
        number = len(self._known)
        self._known[key] = b"h" + bytes((number,)) if number < 256 else b"j" + number.to_bytes(4, "little")
        return opcodes + b"\x94"


def _number(number: int) -> bytes:
    size = number.bit_length() // 8 + 1
    return _SMALL[number] if number < 256 else _SIZES[size] + number.to_bytes(size, "little")


def _size(numbers: tuple[int, ...]) -> bytes:
    return named("torch", "Size") + plain((numbers,)) + b"R"


def _properties(item: TensorItem) -> bytes:
    torch, facts = sys.modules.get("torch"), item.properties
    dtype = item.dtype.partition(":")[0]
    if dtype not in DTYPES and not isinstance(getattr(torch, dtype, None), getattr(torch, "dtype", ())):
        raise UnsupportedError(f"there is no dtype {item.dtype} here; a newer torch may have it", item=item.name)
    layout = facts.get("layout") if facts.get("layout") in _LAYOUTS else "strided"
    layout_of = named("torch.serialization", "_get_layout") + plain((f"torch.{layout}",)) + b"R"
    form = plain((_FORMATS.get(str(facts.get("memory_format")), 0),))
    encoding = named(f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING") + form + b"R"
    grad, pinned = (plain(facts.get(flag) is True) for flag in ("requires_grad", "pin_memory"))
    return b"(" + named("torch", dtype) + layout_of + grad + encoding + pinned + b"t"
