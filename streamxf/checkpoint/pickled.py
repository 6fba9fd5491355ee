"""DCP's ``Metadata`` as a pickle, for torch's own readers; made of an index, without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from streamxf.descriptor import ENCRYPT
from streamxf.errors import MetadataError, UnsupportedError, redacted
from streamxf.format.bare import raw_descriptor
from streamxf.format.extra import from_json, to_json
from streamxf.format.index import Index
from streamxf.format.items import ITEMSIZES, WITHOUT_ELEMENTS, Item, ObjectItem, Path, Place, TensorItem
from streamxf.torchsave.writing import named, plain

PLANNER_DATA = "planner_data"
OWN = {"state_dict_metadata", PLANNER_DATA, "storage_data", "storage_meta", "version"}
"""The attributes of DCP's ``Metadata``."""

_VERSION = "1.0.0"  # of DCP's metadata
_DCP = "torch.distributed.checkpoint"
_FORMATS = {"channels_last": 1, "preserve": 2}
_LAYOUTS = {"strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"}


def is_extra(name: object) -> bool:
    """Whether planners may put something of that name into the metadata."""
    public = isinstance(name, str) and name.isidentifier() and name[0] != "_"
    return name == PLANNER_DATA or (public and name not in OWN)


def plain_members(found: Mapping[str, Any], who: str) -> dict[str, Any]:
    """What is put into the metadata besides, as `Index` has it. Raises UnsupportedError, which says `who` put it there,
    if it is not plain data.
    """
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
    `checkpoint_id` where the checkpoint is. Raises MetadataError for a tensor of a dtype that is not known here.
    """
    made, items = _Pickle(descriptors_of(index, wrapped)), index.items.values()
    paths = [(item.name, partial(made.path, item.path)) for item in items if item.path is not None]
    extra = {name: partial(made.plain, value) for name, value in members_of(index.extra).items()}
    about: dict[str, Any] = {"checkpoint_id": redacted(checkpoint_id), "save_id": index.save_id, "load_id": None}
    content: dict[str, Any] = {
        "storage_data": partial(
            made.places, items
        ),  # first: it has wrapped keys, of which a copy may be all that is left
        "state_dict_metadata": partial(made.mapping, ((item.name, partial(made.entry, item)) for item in items)),
        PLANNER_DATA: partial(made.mapping, paths) if paths else None,
        "storage_meta": partial(made.object, "StorageMeta", **about, modules=[*index.modules]),
        "version": _VERSION,
    }
    made.object("Metadata", **content | extra)
    return b"\x80\x04" + bytes(made.opcodes) + b"."


def descriptors_of(index: Index, wrapped: Mapping[bytes, str]) -> dict[str, list[str]]:
    """What torch's readers need to read the items of each file, in the order in which they apply it; nothing where
    items are bare.
    """
    if not (index.transforms or index.chain):
        return {}
    by_writer: dict[bytes, list[str]] = {}
    for file in index.files.values():
        if file.writer not in by_writer:
            own = wrapped.get(file.writer)
            keyed = (f"{text}#{own}" if text.startswith(f"{ENCRYPT}/") else text for text in index.chain)
            by_writer[file.writer] = [*index.transforms, *keyed][::-1]
    return {path: by_writer[file.writer] for path, file in index.files.items()}


class _Pickle:
    """Opcodes of protocol 4. What never changes, such as names, sizes and classes, is remembered when it is written for
    the first time, and referred to from then on; so are lists of strings, each by itself.
    """

    def __init__(self, descriptors: Mapping[str, list[str]]) -> None:
        self.opcodes = bytearray()
        self._descriptors = descriptors
        self._raw: dict[Hashable, list[str]] = {}
        self._known: dict[Hashable, bytes] = {}

    def object(self, kind: str, /, **members: Any) -> None:
        """An object of one of DCP's classes. Its members are strings, numbers, None, sizes and lists of strings; or
        functions that write them.
        """
        self._make(kind)
        self.opcodes += b"}("
        for name, value in members.items():
            self._text(name)
            if callable(value):
                value()
            elif type(value) is str:
                self._text(value)
            elif type(value) is int:
                self._number(value)
            elif type(value) is tuple:
                self.opcodes += self._known.get(value) or self._remember(value, _size(value))
            elif value is None:
                self.opcodes += b"N"
            else:
                self._list(value)
        self.opcodes += b"ub"

    def _list(self, texts: list[str]) -> None:
        """Each text has a byte behind it that is not one of its own: salvage looks for wrapped keys in what is left."""
        if (known := self._known.get(id(texts))) is not None:
            self.opcodes += known
            return
        self.opcodes += self._remember(id(texts), b"]") + b"("
        for text in texts:
            self._text(text)
        self.opcodes += b"e"

    def mapping(self, items: Iterable[tuple[str, Callable[[], None]]]) -> None:
        self.opcodes += b"}("
        for name, value in items:
            self._text(name)
            value()
        self.opcodes += b"u"

    def plain(self, value: Any) -> None:
        self.opcodes += plain(value)

    def path(self, path: Path) -> None:
        self.opcodes += b"("
        for step in path:
            self._text(step) if isinstance(step, str) else self._number(step)
        self.opcodes += b"t"

    def entry(self, item: Item) -> None:
        if isinstance(item, ObjectItem):
            self._make("BytesStorageMetadata")
            return
        properties, chunks = partial(self._properties, item), partial(self._chunks, item)
        self.object("TensorStorageMetadata", properties=properties, size=item.shape, chunks=chunks)

    def places(self, items: Iterable[Item]) -> None:
        """Where each object and each chunk is, by ``MetadataIndex``."""
        self.opcodes += b"}("
        for item in items:
            if isinstance(item, ObjectItem):
                self.object("MetadataIndex", fqn=item.name, offset=None, index=None)
                self._stored(item.place, self._descriptors.get(item.place.file))
                continue
            for number, chunk in enumerate(item.chunks):
                self.object("MetadataIndex", fqn=item.name, offset=chunk.offset, index=number)
                texts = self._descriptors.get(chunk.place.file)
                if chunk.raw:
                    texts = self._raw.setdefault((item.dtype, chunk.shape), [raw_descriptor(item.dtype, chunk.shape)])
                self._stored(chunk.place, texts)
        self.opcodes += b"u"

    def _stored(self, place: Place, descriptors: list[str] | None) -> None:
        where: dict[str, Any] = {"relative_path": place.file, "offset": place.at, "length": place.size}
        if descriptors is not None:
            where["transform_descriptors"] = descriptors
        self.object("_StorageInfo", **where)

    def _chunks(self, item: TensorItem) -> None:
        self.opcodes += b"]("
        for offset, shape, *_ in item.chunks:
            self.object("ChunkStorageMetadata", offsets=offset, sizes=shape)
        self.opcodes += b"e"

    def _properties(self, item: TensorItem) -> None:
        self._make("TensorProperties")  # whose state is a tuple
        key = item.dtype, *item.properties.items()
        self.opcodes += (self._known.get(key) or self._remember(key, _properties(item))) + b"b"

    def _make(self, kind: str) -> None:
        if (known := self._known.get((kind,))) is None:
            home = f"{_DCP}.filesystem" if kind == "_StorageInfo" else f"{_DCP}.metadata"
            known = self._remember((kind,), named(home, kind))
        self.opcodes += known + b")\x81"

    def _text(self, text: str) -> None:
        if (known := self._known.get(text)) is None:
            encoded = text.encode()
            known = self._remember(text, b"X" + len(encoded).to_bytes(4, "little") + encoded)
        self.opcodes += known

    def _number(self, number: int) -> None:
        size = number.bit_length() // 8 + 1
        self.opcodes += bytes((75, number)) if number < 256 else bytes((138, size)) + number.to_bytes(size, "little")

    def _remember(self, key: Hashable, opcodes: bytes) -> bytes:
        """`opcodes`, which are written next, and put something on the stack that is asked for by `key` from then on."""
        number = len(self._known)
        self._known[key] = b"h" + bytes((number,)) if number < 256 else b"j" + number.to_bytes(4, "little")
        return opcodes + b"\x94"


def _size(numbers: tuple[int, ...]) -> bytes:
    return named("torch", "Size") + plain((numbers,)) + b"R"


def _properties(item: TensorItem) -> bytes:
    torch, facts = sys.modules.get("torch"), item.properties
    known = item.dtype in ITEMSIZES or item.dtype in WITHOUT_ELEMENTS
    if not known and not isinstance(getattr(torch, item.dtype, None), getattr(torch, "dtype", ())):
        raise MetadataError(f"there is no dtype {item.dtype} here; a newer torch may have it", item=item.name)
    layout = facts.get("layout") if facts.get("layout") in _LAYOUTS else "strided"
    layout_of = named("torch.serialization", "_get_layout") + plain((f"torch.{layout}",)) + b"R"
    form = plain((_FORMATS.get(str(facts.get("memory_format")), 0),))
    encoding = named(f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING") + form + b"R"
    grad, pinned = (plain(facts.get(flag) is True) for flag in ("requires_grad", "pin_memory"))
    return b"(" + named("torch", item.dtype) + layout_of + grad + encoding + pinned + b"t"
