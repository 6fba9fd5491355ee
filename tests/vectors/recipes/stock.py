"""Checkpoints that torch's own writers made, and what else such a pickle can say."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from tests.forge import BOUND, KEYED, PUBLISHED, identity_of
from tests.sealing import ENCRYPT, HYBRID, container, encrypted, entry, hpke_wrap, wrapped, zstd
from tests.vectors.recipes.vector import HELD, NOTHING, Reader, Vector, holding
from tests.vectors.recipes.world import FILE, FRAMED, OBJECT, PIECES, ZSTD, Piece, content_of

Change = Callable[[Metadata], object]
FRAMES = tuple(piece if piece.kind == OBJECT else replace(piece, kind=FRAMED) for piece in PIECES)
TRANSFORM = "stream.zstd/1"
FIRST = MetadataIndex("weight", torch.Size((0, 0)), 0)
STEP, STRAY = MetadataIndex("step"), MetadataIndex("stray")


def vectors() -> list[Vector]:
    """All of them."""
    return [*_right(), *_pickles(), *_places(), *_policy()]


def _key(piece: Piece) -> MetadataIndex:
    return MetadataIndex(piece.name, None if piece.kind == OBJECT else torch.Size(piece.offset))


def stored(
    change: Change | None = None,
    texts: tuple[str, ...] | None = None,
    pack: Callable[[Piece], bytes] = lambda piece: piece.data,
    *,
    protocol: int = 4,
    mend: Callable[[bytes], bytes] = lambda data: data,
) -> dict[str, bytes]:
    """The files; `texts` are the descriptors of all items, `pack` makes what is stored, `mend` alters the pickle."""
    data, places = b"", dict[Any, Any]()
    for piece in FRAMES:
        made = pack(piece)
        info = _StorageInfo(FILE, len(data), len(made))
        info.transform_descriptors = None if texts is None else list(texts)
        places[_key(piece)] = info
        data += made
    tensor = TensorStorageMetadata(
        TensorProperties(torch.float32),
        torch.Size((4, 3)),
        [ChunkStorageMetadata(torch.Size(p.offset), torch.Size(p.shard)) for p in FRAMES if p.kind == FRAMED],
    )
    content = Metadata({"step": BytesStorageMetadata(), "weight": tensor}, storage_data=places)
    if change is not None:
        change(content)
    return {".metadata": mend(pickle.dumps(content, protocol)), FILE: data}


def _sealed(chain: tuple[str, ...] = (ZSTD,), **changes: Any) -> Callable[[Piece], bytes]:
    """Containers, as an attached writer makes them; their identity may be of another item."""

    def pack(piece: Piece) -> bytes:
        flags = BOUND | (KEYED if ENCRYPT in chain else 0)
        moved = replace(piece, **changes.get("identity", {})) if piece.kind == FRAMED else piece
        about = moved.name, moved.kind, moved.dtype, moved.offset, moved.shard, moved.tensor
        usual = {"flags": flags, "identity": identity_of(*about)} | changes.get("header", {})
        payload = zstd(piece.data) if ZSTD in chain else piece.data
        made = container(chain, [payload], len(piece.data), **usual)
        return (encrypted(made) if ENCRYPT in chain else made).container()

    return pack


def _holds(name: str, about: str, files: dict[str, bytes], reader: Reader = NOTHING, **facts: str) -> Vector:
    return Vector(f"stock-{name}", about, lambda: files, {"holds": content_of(FRAMES)}, reader, facts)


def _breaks(
    rule: str, name: str, about: str, files: dict[str, bytes], reader: Reader = NOTHING, **facts: str
) -> Vector:
    return Vector(f"{rule}-stock-{name}", about, lambda: files, {"breaks": rule}, reader, facts)


def _attribute(name: str, value: Any) -> Change:
    return lambda content: setattr(content, name, value)


def _zstd(piece: Piece) -> bytes:
    return zstd(piece.data)


UNBOUND = {"flags": KEYED, "identity": b""}


def _right() -> list[Vector]:
    def first(data: bytes) -> bytes:
        return data.replace(b"ctorch.distributed.checkpoint.", b"ctorch.distributed._shard.checkpoint.")

    def ignored(content: Metadata) -> None:
        content.planner_data = {"weight": ("a", 1), "step": ["a"], "other": ("b",), 7: 7}
        content.storage_data[MetadataIndex("gone", torch.Size((0,)))] = _StorageInfo("gone", 0, 1)
        form = TensorProperties(torch.int7, memory_format=torch.channels_last)
        content.later = [PurePosixPath("/a"), OrderedDict(a=1.5), form]

    meta = StorageMeta("a", "b", "c")
    return [
        *(_holds(str(number), f"protocol {number}", stored(protocol=number)) for number in (2, 3, 4, 5)),
        _holds("ignored", "what readers ignore", stored(ignored)),
        _holds("storage-meta", "where it was saved", stored(_attribute("storage_meta", meta))),
        _holds("1.13", "as torch 1.13 names its classes", stored(protocol=2, mend=first)),
        _holds("transform", "torch's own compression", stored(texts=(TRANSFORM,), pack=_zstd)),
        _holds("container", "as an attached writer stores items", stored(texts=(f"{ZSTD}#level=3",), pack=_sealed())),
        _holds(
            "unbound",
            "containers that are not bound",
            stored(texts=(ZSTD,), pack=_sealed(header={"flags": 0, "identity": b""})),
        ),
    ]


def _pickles() -> list[Vector]:
    """F1: the pickle itself."""

    class Calls:
        def __init__(self, function: Any, *arguments: Any) -> None:
            self.made = function, arguments

        def __reduce__(self) -> Any:
            return self.made

    def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
        def change(data: bytes) -> bytes:
            assert data.count(old) >= 1
            return data.replace(old, new, 1)

        return change

    def extra(value: Any) -> dict[str, bytes]:
        return stored(_attribute("extra", value))

    mended: list[tuple[str, str, Callable[[bytes], bytes]]] = [
        ("continued", "a byte follows", lambda data: data + b"."),
        ("cut", "the last byte is missing", lambda data: data[:-1]),
        ("persistent", "a persistent id", lambda data: data[:-1] + b"0Nq\0" + b"Q."),
        ("extension", "an extension code", lambda data: data[:-1] + b"\x82\x010."),
        ("protocol-0", "protocol 0", lambda data: b"\x80\0" + data[2:]),
        ("protocol-6", "protocol 6", lambda data: b"\x80\6" + data[2:]),
        ("dict", "a dict and no Metadata", lambda data: pickle.dumps({}, 4)),
        ("list", "Metadata in a list", lambda data: data[:11] + b"]" + data[11:-1] + b"a."),
        ("stateless", "Metadata without attributes", lambda data: data[: data.index(b"}")] + b"."),
    ]
    return [
        *(_breaks("F1", name, about, stored(mend=mend)) for name, about, mend in mended),
        _breaks("F1", "function", "a function that does not belong there", extra(os.getpid)),
        _breaks("F1", "call", "a call of one", extra(Calls(os.system, "true"))),
        _breaks("F1", "class-with-argument", "a class called with an argument", extra(Calls(BytesStorageMetadata, 1))),
        _breaks("F1", "dtype-called", "a dtype called", extra(Calls(torch.Size, 1))),
        _breaks(
            "F1", "module", "a right name from another module", stored(mend=replaced(b"filesystem", b"filesystex"))
        ),
    ]


def _places() -> list[Vector]:
    """What the records say."""

    def info(key: MetadataIndex, **values: Any) -> Change:
        return lambda content: content.storage_data[key].__dict__.update(values)

    def tensor(**values: Any) -> Change:
        return lambda content: content.state_dict_metadata["weight"].__dict__.update(values)

    def chunks(*boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> Change:
        made = [ChunkStorageMetadata(torch.Size(at), torch.Size(size)) for at, size in boxes]
        return tensor(chunks=made)

    def renamed(old: str, new: Any) -> Change:
        def change(content: Metadata) -> None:
            content.state_dict_metadata[new] = content.state_dict_metadata.pop(old)
            for key in [key for key in content.storage_data if key.fqn == old]:
                content.storage_data[replace(key, fqn=new)] = content.storage_data.pop(key)

        return change

    cases: list[tuple[str, str, str, Change]] = [
        ("F1", "no-items", "no dict of items", _attribute("state_dict_metadata", [])),
        ("F1", "no-places", "no dict of places", _attribute("storage_data", None)),
        ("F1", "place-missing", "a chunk without a place", lambda content: content.storage_data.pop(FIRST)),
        ("F1", "name-empty", "an item without a name", renamed("step", "")),
        ("F1", "name-surrogate", "a lone surrogate in a name", renamed("step", "\ud800")),
        ("F1", "name-number", "a number for a name", renamed("step", 7)),
        (
            "F1",
            "stray",
            "an entry that belongs to no item, and has no place",
            lambda c: c.storage_data.update({STEP: 5}),
        ),
        ("F1", "offset-negative", "an offset of -1", info(STEP, offset=-1)),
        ("F1", "offset-true", "true for an offset", info(STEP, offset=True)),
        ("F1", "offset-2-63", "an offset of 2^63", info(STEP, offset=2**63)),
        ("F1", "length-text", "a length that is text", info(STEP, length="7")),
        ("F1", "descriptors-text", "descriptors that are text", info(STEP, transform_descriptors=TRANSFORM)),
        ("F1", "descriptors-nine", "nine descriptors", info(STEP, transform_descriptors=[TRANSFORM] * 9)),
        ("F1", "properties", "a tensor without properties", tensor(properties=None)),
        ("F1", "size", "a size that is a tuple", tensor(size=(4, 3))),
        ("F1", "chunks", "chunks that are a tuple", tensor(chunks=())),
        ("M4", "path", "a path that leads out", info(STEP, relative_path="../" + FILE)),
        ("M5", "gap", "rows that are in no chunk", chunks(((0, 0), (2, 3)))),
        ("M5", "beyond", "a chunk that reaches beyond the tensor", chunks(((0, 0), (2, 3)), ((2, 0), (3, 3)))),
        ("M5", "overlap", "a row in two chunks", chunks(((0, 0), (3, 3)), ((2, 0), (2, 3)))),
        ("F2", "beyond", "an item that ends a byte beyond its file", lambda c: _longer(c.storage_data[STEP])),
        ("F2", "codec", "a codec, and no container", info(STEP, transform_descriptors=[ZSTD])),
    ]
    sealed = _sealed()
    published = {"flags": BOUND | PUBLISHED}
    return [
        *(_breaks(rule, name, about, stored(change)) for rule, name, about, change in cases),
        _breaks("F2", "no-descriptors", "a container without descriptors", stored(pack=sealed)),
        _breaks("F2", "chain", "another chain", stored(texts=("streamxf.lz4/1",), pack=sealed)),
        _breaks("F2", "chain-longer", "a codec more", stored(texts=(ZSTD, ZSTD), pack=sealed)),
        _breaks("F3", "published", "a published container", stored(texts=(ZSTD,), pack=_sealed(header=published))),
        *(
            _breaks("F3", name, f"a container of another {name}", stored(texts=(ZSTD,), pack=_sealed(identity=other)))
            for name, other in (
                ("name", {"name": "other"}),
                ("dtype", {"dtype": "int32"}),
                ("offset", {"offset": (1, 0)}),
                ("shard", {"shard": (1, 3)}),
                ("tensor", {"tensor": (5, 3)}),
            )
        ),
    ]


def _longer(info: _StorageInfo) -> None:
    info.length += 1


def _policy() -> list[Vector]:
    """K7 and K8."""
    private = wrapped([entry(*hpke_wrap(HYBRID))])
    shared, public = (stored(texts=(f"{ENCRYPT}#{text}",), pack=_sealed((ENCRYPT,))) for text in (wrapped(), private))
    unbound = stored(texts=(f"{ENCRYPT}#{wrapped()}",), pack=_sealed((ENCRYPT,), header=UNBOUND))
    bound, open_ = {"require": "bound"}, {"require": "encrypted"}
    unsigned = holding(HYBRID, trust=(), allow_unsigned=True)
    return [
        _holds("bound", "encrypted and bound", shared, HELD, **bound),
        _holds("encrypted", "encrypted, and not bound", unbound, HELD, **open_),
        _holds("unsigned", "for a private key, and the reader accepts that", public, unsigned, **bound),
        _breaks("K7", "index", "a reader that requires an index", shared, HELD),
        _breaks("K7", "bound", "a reader that requires bound items", unbound, HELD, **bound),
        _breaks("K7", "bare", "a reader that requires encryption", stored(), HELD, **open_),
        _breaks("K3", "none", "no key", shared),
        _breaks("K8", "private", "for a private key", public, holding(HYBRID, trust=()), **bound),
        _breaks("K8", "signers", "a reader that names signers", shared, holding("aeskw"), **bound),
    ]
